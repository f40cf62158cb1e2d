package proxy

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"connectrpc.com/connect"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/api/calls"
	"github.com/cay-run/cay/api/proto/process"
	"github.com/cay-run/cay/api/proto/process/processconnect"
	"github.com/cay-run/cay/internal/guest"
)

// starter is an agent that tells of what it was asked to start.
type starter struct {
	processconnect.UnimplementedProcessHandler
	mu      sync.Mutex
	started []string
}

func (s *starter) Start(_ context.Context, r *connect.Request[process.StartRequest], out *connect.ServerStream[process.StartResponse]) error {
	s.mu.Lock()
	s.started = append(s.started, r.Msg.GetProcess().GetCmd())
	s.mu.Unlock()
	return out.Send(&process.StartResponse{Event: &process.ProcessEvent{Event: &process.ProcessEvent_Start{Start: &process.ProcessEvent_StartEvent{Pid: 7}}}})
}

func (s *starter) take() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := s.started
	s.started = nil
	return out
}

// asking is a world with the sandbox i1, whose programs of a name in two parts are
// asked about.
func asking(t *testing.T, may func(context.Context, cay.SandboxID, cay.Start, ...cay.Origins) error) (*world, *starter) {
	t.Helper()
	w := newWorldWith(t, func(cfg *Config) { cfg.MayStart = may })
	agent := &starter{}
	_, h := processconnect.NewProcessHandler(agent)
	w.sandbox(t, "i1", func(tg *Target) { tg.AccessToken, tg.AskCommands = "token", []string{"ask *"} }, nil)
	server := httptest.NewUnstartedServer(h)
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetHTTP1(true)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Start()
	t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	w.guests[w.targets["i1"].Addr.String()+":49983"] = server.Listener.Addr().String()
	return w, agent
}

func startWith(ctx context.Context, t *testing.T, w *world, token string, options ...connect.ClientOption) error {
	t.Helper()
	c := processconnect.NewProcessClient(asHost{client(t, true), "49983-i1.x"}, w.front.URL, options...)
	input := false
	r := connect.NewRequest(&process.StartRequest{Stdin: &input, Process: &process.ProcessConfig{Cmd: "ask", Args: []string{"a b"}, Envs: map[string]string{"A": "1"}}})
	r.Header().Set("X-Access-Token", token)
	r.Header().Set("Authorization", "Basic cm9vdDo=")
	stream, err := c.Start(ctx, r)
	if err != nil {
		return err
	}
	defer stream.Close()
	for stream.Receive() {
	}
	return stream.Err()
}

// A command waits in every wire that the agent speaks, and reaches the agent after a
// yes alone.
func TestCommandsThatAreAskedAbout(t *testing.T) {
	var mu sync.Mutex
	var asked []cay.Start
	var say error
	w, agent := asking(t, func(_ context.Context, id cay.SandboxID, s cay.Start, _ ...cay.Origins) error {
		mu.Lock()
		defer mu.Unlock()
		if id != "i1" {
			t.Errorf("asked about %s", id)
		}
		asked = append(asked, s)
		return say
	})
	no := cay.Errorf(cay.Denied, "approval 1 is denied").WithCode(cay.CodeCommandDenied).WithHint("ask Ann")
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	for wire, options := range map[string][]connect.ClientOption{
		"Connect": nil, "Connect's JSON": {connect.WithProtoJSON()}, "gRPC": {connect.WithGRPC()}, "gRPC-Web": {connect.WithGRPCWeb()}, "gzip": {connect.WithSendGzip()},
	} {
		t.Run(wire, func(t *testing.T) {
			asked, say = nil, no
			err := startWith(ctx, t, w, "token", options...)
			var e *connect.Error
			if !errors.As(err, &e) || e.Code() != connect.CodePermissionDenied || e.Message() != "approval 1 is denied (ask Ann)" || e.Meta().Get(calls.ErrorCode) != cay.CodeCommandDenied {
				t.Errorf("refused with %v", err)
			}
			if started := agent.take(); len(started) > 0 {
				t.Errorf("%q reached the agent", started)
			}
			say = nil
			if err := startWith(ctx, t, w, "token", options...); err != nil {
				t.Errorf("after a yes: %v", err)
			}
			if started := agent.take(); len(started) != 1 {
				t.Errorf("%q reached the agent", started)
			}
			if len(asked) != 2 || asked[0].Line() != "ask 'a b'" || asked[0].User != "root" || asked[0].Env["A"] != "1" {
				t.Errorf("asked %+v", asked)
			}
			asked = nil
			_ = startWith(ctx, t, w, "wrong", options...)
			if agent.take(); len(asked) > 0 {
				t.Errorf("a stranger asks %+v", asked)
			}
		})
	}
}

// A start is asked about in any form of its path and timeout, and a body that is no
// call is refused here.
func TestStartsInOddForms(t *testing.T) {
	asked := 0
	w, agent := asking(t, func(context.Context, cay.SandboxID, cay.Start, ...cay.Origins) error {
		asked++
		return cay.Errorf(cay.Denied, "no")
	})
	post := func(path, body string, h http.Header) int {
		r := w.request(t, "POST", path, "49983-i1.x", strings.NewReader(body))
		r.Header = http.Header{"X-Access-Token": {"token"}, "Content-Type": {"application/connect+json"}, "Connect-Protocol-Version": {"1"}}
		for name, values := range h {
			r.Header[name] = values
		}
		resp, err := client(t, false).Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		_, _ = io.Copy(io.Discard, resp.Body)
		return resp.StatusCode
	}
	message := `{"process":{"cmd":"ask","args":["x"]}}`
	frame := func(s string) string { return "\x00\x00\x00\x00" + string(rune(len(s))) + s }
	framed := frame(message)
	for what, path := range map[string]string{
		"plain": "/process.Process/Start", "two strokes": "//process.Process/Start", "a dot": "/./process.Process/Start", "escaped": "/process.Process/%53tart", "up": "/x/../process.Process/Start",
	} {
		before := asked
		post(path, framed, nil)
		if started := agent.take(); asked != before+1 || len(started) > 0 {
			t.Errorf("%s: asked %d times, started %q", what, asked-before, started)
		}
	}
	for what, h := range map[string]http.Header{
		"no time for the program": {"Connect-Timeout-Ms": {"0"}}, "a time that is none": {"Connect-Timeout-Ms": {"99999999999"}}, "an upgrade": {"Connection": {"Upgrade"}, "Upgrade": {"websocket"}},
	} {
		before := asked
		post("/process.Process/Start", framed, h)
		if started := agent.take(); asked != before+1 || len(started) > 0 {
			t.Errorf("%s: asked %d times, started %q", what, asked-before, started)
		}
	}
	for what, body := range map[string]string{
		"nothing": "", "no frame": "x", "no JSON": frame("x"), "a frame that is short": framed[:len(framed)-1], "a field twice": frame(`{"process":{"cmd":"a"},"process":{"cmd":"b"}}`),
		"too much": strings.Repeat("x", askedMost+1),
	} {
		before := asked
		post("/process.Process/Start", body, nil)
		if started := agent.take(); asked != before || len(started) > 0 {
			t.Errorf("%s: asked %d times, started %q", what, asked-before, started)
		}
	}
}

// Code is asked about as commands are.
func TestCodeThatIsAskedAbout(t *testing.T) {
	var asked []cay.Start
	var say error
	w := newWorldWith(t, func(cfg *Config) {
		cfg.MayStart = func(_ context.Context, _ cay.SandboxID, s cay.Start, _ ...cay.Origins) error {
			asked = append(asked, s)
			return say
		}
	})
	ran := ""
	w.sandbox(t, "i1", func(tg *Target) { tg.AccessToken, tg.AskCommands = "token", []string{"*"} }, map[int]http.Handler{
		guest.InterpPort: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			ran = string(body)
		}),
	})
	execute := func(body string) (int, map[string]any) {
		t.Helper()
		r := w.request(t, "POST", "/execute", "49999-i1.x", strings.NewReader(body))
		r.Header.Set("X-Access-Token", "token")
		resp, err := client(t, false).Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		var out map[string]any
		_ = json.NewDecoder(resp.Body).Decode(&out)
		return resp.StatusCode, out
	}
	const body = `{"code":"1+1","language":"r","context_id":"c","env_vars":{"A":"1"}, "more": 1} `
	if code, _ := execute(body); code != 200 || ran != body {
		t.Errorf("after a yes: %d, ran %q", code, ran)
	}
	if len(asked) != 1 || asked[0].Code != "1+1" || asked[0].Language != "r" || asked[0].Context != "c" || asked[0].Env["A"] != "1" {
		t.Errorf("asked %+v", asked)
	}
	ran, say = "", cay.Errorf(cay.Denied, "approval 1 waits").WithCode(cay.CodeCommandWaits)
	if code, out := execute(body); code != http.StatusForbidden || out["error_code"] != cay.CodeCommandWaits || out["message"] != "approval 1 waits" || ran != "" {
		t.Errorf("refused with %d %v, ran %q", code, out, ran)
	}
	if code, _ := execute(`{"code":1}`); code != http.StatusBadRequest || ran != "" {
		t.Errorf("what is no request: %d, ran %q", code, ran)
	}
	if code, _ := execute(`{"code":"` + strings.Repeat("x", askedMost) + `"}`); code != http.StatusForbidden || ran != "" {
		t.Errorf("what is too long: %d, ran %d bytes", code, len(ran))
	}
}

// The end of the sandbox's instance ends the wait, and starts nothing.
func TestAWaitThatIsCut(t *testing.T) {
	for what, replaced := range map[string]bool{"it is over": false, "it goes on as another": true} {
		t.Run(what, func(t *testing.T) {
			waits := make(chan struct{}, 1)
			w, agent := asking(t, func(ctx context.Context, _ cay.SandboxID, _ cay.Start, _ ...cay.Origins) error {
				waits <- struct{}{}
				<-ctx.Done()
				return ctx.Err()
			})
			ctx, cancel := context.WithTimeout(context.Background(), deadline)
			defer cancel()
			over := make(chan error, 1)
			go func() { over <- startWith(ctx, t, w, "token") }()
			<-waits
			w.mu.Lock()
			old := w.targets["i1"]
			delete(w.targets, "i1")
			if replaced {
				next := old
				next.Instance = cay.NewInstanceID()
				w.targets["i1"] = next
			}
			w.mu.Unlock()
			w.Cut("i1", old.Instance)
			err := <-over
			want := connect.CodeUnavailable // 502
			if replaced {
				want = connect.CodeUnknown // 409
			}
			if connect.CodeOf(err) != want {
				t.Errorf("the caller is told %v", err)
			}
			if started := agent.take(); len(started) > 0 {
				t.Errorf("%q reached the agent", started)
			}
		})
	}
}
