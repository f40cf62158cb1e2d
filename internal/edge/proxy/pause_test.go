package proxy

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/api/proto/process/processconnect"
	"github.com/cay-run/cay/internal/guest"
)

// sleeper is a sandbox that a pause takes away and that traffic wakes, with the same
// servers at other addresses.
type sleeper struct {
	*world
	t     *testing.T
	ports map[int]http.Handler

	mu    sync.Mutex
	fate  Fate
	wakes bool
	woken int
}

func newSleeper(t *testing.T, ports map[int]http.Handler) *sleeper {
	s := &sleeper{t: t, ports: ports, wakes: true}
	s.world = newWorldWith(t, func(cfg *Config) {
		cfg.Fate = func(cay.SandboxID) Fate {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.fate
		}
		cfg.Asleep = func(cay.SandboxID) (Target, bool) {
			s.mu.Lock()
			defer s.mu.Unlock()
			return Target{Public: true}, s.wakes && s.fate.State == cay.Paused
		}
		cfg.Wake = func(context.Context, cay.SandboxID) error {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.woken++
			s.fate = Fate{}
			s.sandbox(t, "i1", nil, ports)
			return nil
		}
	})
	s.sandbox(t, "i1", nil, ports)
	return s
}

// pause hides the sandbox and cuts it, as a node does.
func (s *sleeper) pause() {
	s.mu.Lock()
	s.fate = Fate{State: cay.Paused}
	s.mu.Unlock()
	s.end("i1")
}

func (s *sleeper) times() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.woken
}

func (s *sleeper) get(method, path string, port int, body string) (*http.Response, string) {
	s.t.Helper()
	req := s.request(s.t, method, path, fmt.Sprintf("%d-i1.localhost", port), nil)
	if body != "" {
		req.Body, req.ContentLength = io.NopCloser(strings.NewReader(body)), int64(len(body))
	}
	return s.do(s.t, req)
}

// A pause waits for the answers of requests that are under way.
func TestAPauseWaitsForAnswers(t *testing.T) {
	came, answer := make(chan struct{}), make(chan struct{})
	s := newSleeper(t, map[int]http.Handler{3000: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		close(came)
		<-answer
		fmt.Fprint(w, "done")
	})})
	go func() {
		<-came
		go s.pause()
		for { // the pause has begun
			s.Proxy.mu.Lock()
			_, known := s.upstreams["i1"]
			s.Proxy.mu.Unlock()
			if !known {
				close(answer)
				return
			}
		}
	}()
	if resp, body := s.get("POST", "/", 3000, "x"); resp.StatusCode != 200 || body != "done" || s.times() != 0 {
		t.Errorf("status %d, %q, woken %d times", resp.StatusCode, body, s.times())
	}
}

// A request that found the instance just before the pause, and of which the guest has
// heard nothing, reaches the sandbox once it runs again, with its body.
func TestARequestBeforeThePauseWakes(t *testing.T) {
	var s *sleeper
	var paused atomic.Bool
	s = newSleeper(t, map[int]http.Handler{guest.AgentPort: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		_, _ = w.Write(body)
	})})
	s.cfg.Used = func(context.Context, cay.SandboxID, bool) { // after the instance was found
		if !paused.Swap(true) {
			s.pause()
		}
	}
	for _, size := range []int{100, shortBody + 1} {
		paused.Store(false)
		was, text := s.times(), strings.Repeat("x", size)
		if resp, body := s.get("POST", guest.FilesPath, guest.AgentPort, text); resp.StatusCode != 200 || body != text || s.times() != was+1 {
			t.Errorf("%d bytes: status %d, %d bytes, woken %d times", size, resp.StatusCode, len(body), s.times()-was)
		}
	}
}

// A request that may have reached the guest is sent again if it may run twice; else the
// answer says that the sandbox is paused.
func TestARequestThatAPauseCuts(t *testing.T) {
	for _, tt := range []struct {
		method, path string
		port, status int
		body, want   string
	}{
		{"GET", "/", 3000, 200, "", "awake"},
		{"POST", "/", 3000, 503, "x", `"message":"The sandbox was paused while the request was under way, which may have run"`},
		{"POST", processconnect.ProcessListProcedure, guest.AgentPort, 499, "{}", `{"code":"canceled","message":"The sandbox was paused while the request was under way, which may have run"}`},
	} {
		t.Run(fmt.Sprint(tt.method, tt.port), func(t *testing.T) {
			var calls atomic.Int32
			came := make(chan struct{})
			h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if calls.Add(1) > 1 {
					fmt.Fprint(w, "awake")
					return
				}
				_, _ = io.Copy(io.Discard, r.Body)
				close(came)
				<-r.Context().Done()
			})
			s := newSleeper(t, map[int]http.Handler{tt.port: h})
			go func() {
				<-came
				s.pause()
			}()
			req := s.request(t, tt.method, tt.path, fmt.Sprintf("%d-i1.localhost", tt.port), strings.NewReader(tt.body))
			req.Header.Set("Content-Type", "application/json")
			resp, body := s.do(t, req)
			if resp.StatusCode != tt.status || !strings.Contains(body, tt.want) {
				t.Errorf("status %d: %s", resp.StatusCode, body)
			}
			if retry := resp.Header.Get("Retry-After"); (tt.status == 503) != (retry != "") {
				t.Errorf("Retry-After %q", retry)
			}
		})
	}
}

// envelope is a message of a Connect stream.
func envelope(flags byte, text string) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{flags}, uint32(len(text))), text...)
}

// Streams of the agent and the interpreter end with an error that their clients read,
// where a message is whole; all others break.
func TestAPauseEndsStreams(t *testing.T) {
	for _, tt := range []struct {
		name, path, kind string
		port             int
		sent, end        []byte
	}{
		{"a command", processconnect.ProcessStartProcedure, "application/connect+json", guest.AgentPort, envelope(0, `{"event":{}}`),
			envelope(2, `{"error":{"code":"canceled","message":"The sandbox was paused; its processes continue when it is resumed"}}`)},
		{"half a message", processconnect.ProcessStartProcedure, "application/connect+json", guest.AgentPort, envelope(0, `{"event":{}}`)[:9], nil},
		{"code", guest.ExecutePath, "application/json", guest.InterpPort, []byte("{\"type\":\"stdout\"}\n"),
			[]byte(`{"name":"SandboxPaused","traceback":"","type":"error","value":"The sandbox was paused; its processes continue when it is resumed"}` + "\n")},
		{"half a line", guest.ExecutePath, "application/json", guest.InterpPort, []byte(`{"type":`), nil},
		{"a page's events", "/events", "text/event-stream", 3000, []byte("data: 1\n\n"), nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newSleeper(t, map[int]http.Handler{tt.port: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", tt.kind)
				_, _ = w.Write(tt.sent)
				_ = http.NewResponseController(w).Flush()
				<-r.Context().Done()
			})})
			resp, err := s.front.Client().Do(s.request(t, "POST", tt.path, fmt.Sprintf("%d-i1.localhost", tt.port), nil))
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			first := make([]byte, len(tt.sent))
			if _, err := io.ReadFull(resp.Body, first); err != nil {
				t.Fatal(err)
			}
			s.pause()
			rest, err := io.ReadAll(resp.Body)
			if !bytes.Equal(rest, tt.end) || (err == nil) != (tt.end != nil) {
				t.Errorf("ends with %q, %v", rest, err)
			}
			if s.times() != 0 {
				t.Error("the pause was undone")
			}
		})
	}
}

// A sandbox that does not run is not merely not found.
func TestWhatBecameOfIt(t *testing.T) {
	for _, tt := range []struct {
		name   string
		fate   Fate
		status int
		want   string
	}{
		{"unknown", Fate{}, 502, `"message":"The sandbox was not found","code":502}`},
		{"paused", Fate{State: cay.Paused}, 502, `"message":"The sandbox was not found","code":502,"error_code":"sandbox_paused","detail":"The sandbox is paused, and no request resumes it: connect to it first"}`},
		{"over", Fate{State: cay.Killed, Cause: cay.CauseTimeout}, 502, `"message":"The sandbox was not found","code":502,"error_code":"sandbox_ended","cause":"timeout","detail":"The sandbox has ended: its time was over"}`},
		{"lost", Fate{State: cay.Killed, Cause: cay.CauseHostLost}, 502, `"message":"The sandbox was not found","code":502,"error_code":"sandbox_ended","cause":"host_lost","detail":"The sandbox has ended: it was lost with its host"}`},
	} {
		s := newSleeper(t, nil)
		s.wakes = false
		s.fate = tt.fate
		s.end("i1")
		if resp, body := s.get("GET", "/", 3000, ""); resp.StatusCode != tt.status || !strings.HasSuffix(body, tt.want) {
			t.Errorf("%s: %d %s", tt.name, resp.StatusCode, body)
		}
	}
}
