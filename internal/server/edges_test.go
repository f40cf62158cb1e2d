package server_test

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/cay-run/cay/api/proto/process"
	"github.com/cay-run/cay/api/proto/process/processconnect"
	"github.com/cay-run/cay/client"
	"github.com/cay-run/cay/internal/server/servertest"
)

// Ports of the servers of a sandbox's user at the edge of time.
const (
	echoPort  = 9000 // agrees to another protocol, and says what it hears
	eventPort = 9001 // sends one event, and no end
)

// edge is a sandbox whose time is nearly over, and one request to it.
type edge struct {
	*servertest.World
	box  *client.Sandbox
	home string // of its user, on the test's machine
	mark string // what only this request writes
	pid  uint32 // of a terminal that writes a line to the mark's file
}

// said is how a request went: done, or refused with a status and a text.
type said struct {
	done   bool
	status int
	text   string
}

func (e edge) header(h http.Header, port int) {
	h.Set("E2b-Sandbox-Id", e.box.ID)
	h.Set("E2b-Sandbox-Port", strconv.Itoa(port))
	if port == 49983 {
		h.Set("X-Access-Token", e.box.AccessToken)
	}
}

func (e edge) send(ctx context.Context, method, path string, port int, body string, read func(io.Reader) bool) said {
	r, err := http.NewRequestWithContext(ctx, method, e.URL()+path, strings.NewReader(body))
	if err != nil {
		return said{text: err.Error()}
	}
	e.header(r.Header, port)
	if port == 49983 && method == http.MethodPost {
		r.Header.Set("Content-Type", "application/octet-stream")
		if path == processconnect.ProcessSendInputProcedure {
			r.Header.Set("Content-Type", "application/json")
		}
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return said{text: err.Error()}
	}
	defer resp.Body.Close()
	if resp.StatusCode/100 != 2 {
		text, _ := io.ReadAll(resp.Body)
		return said{status: resp.StatusCode, text: string(text)}
	}
	return said{done: read(resp.Body), status: resp.StatusCode, text: "not the whole answer"}
}

func (e edge) file() string { return filepath.Join(e.home, e.mark) }

func isAll(want string) func(io.Reader) bool {
	return func(r io.Reader) bool {
		got, err := io.ReadAll(r)
		return err == nil && string(got) == want
	}
}

func (e edge) agent() processconnect.ProcessClient {
	return processconnect.NewProcessClient(http.DefaultClient, e.URL())
}

// ofCall is what an error of an agent's call says.
func ofCall(err error) said {
	var refused *connect.Error
	if err != nil && connect.CodeOf(err) != connect.CodeUnknown {
		refused, _ = err.(*connect.Error)
	}
	if refused == nil {
		return said{text: fmt.Sprint(err)}
	}
	return said{text: refused.Code().String() + ": " + refused.Message()}
}

// start runs a command to its end, or a terminal until it has begun.
func (e edge) start(ctx context.Context, script string, pty bool) (uint32, said) {
	req := connect.NewRequest(&process.StartRequest{Process: &process.ProcessConfig{Cmd: "/bin/bash", Args: []string{"-c", script}}})
	if pty {
		req.Msg.Pty = &process.PTY{Size: &process.PTY_Size{Cols: 80, Rows: 24}}
	}
	e.header(req.Header(), 49983)
	stream, err := e.agent().Start(ctx, req)
	if err != nil {
		return 0, ofCall(err)
	}
	defer stream.Close()
	for stream.Receive() {
		switch event := stream.Msg().GetEvent().GetEvent().(type) {
		case *process.ProcessEvent_Start:
			if pty {
				return event.Start.GetPid(), said{done: true}
			}
		case *process.ProcessEvent_End:
			return 0, said{done: event.End.GetExitCode() == 0, text: event.End.GetError()}
		}
	}
	return 0, ofCall(stream.Err())
}

// verbs are what clients do; each is done once, or says why not.
var verbs = map[string]func(context.Context, edge) said{
	"renew": func(ctx context.Context, e edge) said {
		err := e.Client().SetTimeout(ctx, e.box.ID, time.Minute)
		return said{done: err == nil, text: fmt.Sprint(err)}
	},
	"exec": func(ctx context.Context, e edge) said {
		_, got := e.start(ctx, "echo ran >> "+e.file(), false)
		return got
	},
	"read": func(ctx context.Context, e edge) said {
		return e.send(ctx, "GET", "/files?path="+filepath.Join(e.home, "read"), 49983, "", isAll("to be read"))
	},
	"write": func(ctx context.Context, e edge) said {
		return e.send(ctx, "POST", "/files?path="+e.file(), 49983, "ran\n", func(io.Reader) bool { return true })
	},
	"HTTP": func(ctx context.Context, e edge) said {
		return e.send(ctx, "PUT", "/", 8000, e.mark, isAll(e.mark))
	},
	"SSE": func(ctx context.Context, e edge) said {
		return e.send(ctx, "GET", "/", eventPort, "", func(r io.Reader) bool {
			first := make([]byte, len("data: 1\n\n"))
			_, err := io.ReadFull(r, first)
			return err == nil && string(first) == "data: 1\n\n"
		})
	},
	"WebSocket": func(ctx context.Context, e edge) said {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", e.Addr().String())
		if err != nil {
			return said{text: err.Error()}
		}
		defer conn.Close()
		defer context.AfterFunc(ctx, func() { conn.Close() })()
		r, err := http.NewRequestWithContext(ctx, "GET", e.URL(), nil)
		if err != nil {
			return said{text: err.Error()}
		}
		e.header(r.Header, echoPort)
		r.Header.Set("Connection", "Upgrade")
		r.Header.Set("Upgrade", "websocket")
		if err := r.Write(conn); err != nil {
			return said{text: err.Error()}
		}
		in := bufio.NewReader(conn)
		resp, err := http.ReadResponse(in, r)
		if err != nil {
			return said{text: err.Error()}
		}
		if resp.StatusCode != http.StatusSwitchingProtocols {
			text, _ := io.ReadAll(resp.Body)
			return said{status: resp.StatusCode, text: string(text)}
		}
		fmt.Fprintln(conn, e.mark)
		line, err := in.ReadString('\n')
		return said{done: err == nil && line == e.mark+"\n", text: fmt.Sprint(err)}
	},
	"PTY input": func(ctx context.Context, e edge) said {
		input, err := json.Marshal(map[string]any{"process": map[string]any{"pid": e.pid}, "input": map[string]any{"pty": []byte(e.mark + "\n")}})
		if err != nil {
			return said{text: err.Error()}
		}
		return e.send(ctx, "POST", processconnect.ProcessSendInputProcedure, 49983, string(input), isAll("{}"))
	},
}

// fates are what a sandbox does when its time is over, and what a request to it may
// read then. A renewal is of the API, which finds what is paused and does not renew it.
var fates = map[string]struct {
	create map[string]any
	may    []string
	renew  string
	must   bool // requests succeed, but for those that were under way
}{
	"kill":           {map[string]any{}, []string{"The sandbox has ended: its time was over", "The sandbox was not found"}, "not found", false},
	"pause":          {map[string]any{"autoPause": true}, paused, "paused", false},
	"pause of files": {map[string]any{"autoPause": true, "autoPauseMemory": false}, paused, "paused", false},
	"auto-resume":    {map[string]any{"autoPause": true, "autoResume": map[string]bool{"enabled": true}}, paused[:2], "paused", true},
}

// paused are what a request may read that a pause met: under way, after it, or where the
// resume failed, as for the port of a guest that another program of this machine has.
var paused = []string{"was paused", "The sandbox is paused or away, and could not be reached now", "is paused, and no request resumes it"}

// TestVerbsAtTheEdgeOfTime sends requests of each kind, one after the other, to
// CAY_EDGE_TRIES (1) sandboxes of each fate, from 200 ms before their time is over until
// 500 ms after that came true. A success means done once, and of a renewal that the
// sandbox lives; no answer says that a paused sandbox is unknown, and with auto-resume
// requests succeed.
func TestVerbsAtTheEdgeOfTime(t *testing.T) {
	t.Parallel() // it waits more than it works
	tries, err := strconv.Atoi(cmp.Or(os.Getenv("CAY_EDGE_TRIES"), "1"))
	if err != nil {
		t.Fatal(err)
	}
	home := t.TempDir()
	if err := os.WriteFile(filepath.Join(home, "read"), []byte("to be read"), 0o644); err != nil {
		t.Fatal(err)
	}
	w := servertest.New(t)
	w.Machine.Agent = servertest.RealAgent(t, home)
	w.Machine.Ports = map[int]func(net.Conn){echoPort: echo, eventPort: oneEvent}
	w.Start()
	turns := make(chan struct{}, 16)
	var all sync.WaitGroup
	var mu sync.Mutex
	counts := map[string]int{}
	for fate := range fates {
		for verb := range verbs {
			for n := range tries {
				all.Go(func() {
					turns <- struct{}{}
					defer func() { <-turns }()
					done, refused := tryAtTheEdge(t, w, home, fate, verb, n)
					mu.Lock()
					defer mu.Unlock()
					counts[fmt.Sprintf("%-14s %-9s done", fate, verb)] += done
					counts[fmt.Sprintf("%-14s %-9s refused", fate, verb)] += refused
				})
			}
		}
	}
	all.Wait()
	text, _ := json.MarshalIndent(counts, "", " ") // numbers always marshal
	t.Logf("%s", text)
}

// tryAtTheEdge makes one sandbox and requests to it, and returns how many of them were
// done and refused.
func tryAtTheEdge(t *testing.T, w *servertest.World, home, fate, verb string, n int) (done, refused int) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	e := edge{World: w, home: home}
	err := e.create(ctx, fates[fate].create)
	for try := 0; err != nil && try < 3; try++ { // another program of this machine has a guest's port
		err = e.create(ctx, fates[fate].create)
	}
	if err != nil {
		t.Error(err)
		return
	}
	info, err := w.Client().Info(ctx, e.box.ID)
	if err != nil {
		t.Error(err)
		return
	}
	var after time.Time // of the last request
	for round := 0; after.IsZero() || time.Now().Before(after); round++ {
		e.mark = strings.ReplaceAll(fmt.Sprintf("%s-%s-%d-%d", fate, verb, n, round), " ", "-")
		if verb == "PTY input" && round == 0 {
			var began said
			if e.pid, began = e.start(ctx, "while read -t 60 x; do echo ran > "+home+"/$x; done", true); !began.done {
				t.Errorf("no terminal: %+v", began)
				return
			}
			defer func() { _ = syscall.Kill(-int(e.pid), syscall.SIGKILL) }() // a guest's would have ended with it
		}
		if round == 0 {
			at := -200 * time.Millisecond
			if verb == "renew" { // which is done once
				at += time.Duration(rand.IntN(700)) * time.Millisecond
			}
			time.Sleep(time.Until(info.EndAt.Add(at)))
		}
		got := verbs[verb](ctx, e)
		if why := e.judge(ctx, fate, verb, got); why != "" {
			t.Errorf("%s, %s, %v after its time: %s: %+v", fate, verb, time.Since(info.EndAt), why, got)
		}
		if got.done {
			done++
		} else {
			refused++
		}
		if got.done && verb == "renew" || ctx.Err() != nil {
			return
		}
		now, err := w.Client().Info(ctx, e.box.ID)
		if over := err != nil || now.State == "paused" || !now.EndAt.Equal(info.EndAt); over && after.IsZero() {
			after = time.Now().Add(500 * time.Millisecond)
		}
	}
	return
}

func (e *edge) create(ctx context.Context, more map[string]any) error {
	in := map[string]any{"templateID": "base", "timeout": 1}
	for k, v := range more {
		in[k] = v
	}
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, "POST", e.URL()+"/v2/sandboxes", bytes.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("X-API-Key", e.Key)
	r.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusCreated {
		return fmt.Errorf("create: %s", resp.Status)
	}
	return json.NewDecoder(resp.Body).Decode(&e.box)
}

// judge says what is wrong with how a request went, empty for nothing.
func (e edge) judge(ctx context.Context, fate, verb string, got said) string {
	f := fates[fate]
	switch {
	case got.done && verb == "renew":
		if now, err := e.Client().Info(ctx, e.box.ID); err != nil || now.State != "running" || time.Until(now.EndAt) < 30*time.Second {
			return fmt.Sprintf("it was renewed, and is %q, %v", now.State, err)
		}
	case verb == "renew":
		if !strings.Contains(got.text, f.renew) {
			return "it was not renewed for another reason"
		}
	case got.done && (verb == "exec" || verb == "write" || verb == "PTY input"):
		if ran := e.ran(ctx, verb); ran != "ran\n" {
			return fmt.Sprintf("the file is %q", ran)
		}
	case !got.done && verb == "exec" && e.ran(ctx, verb) == "ran\nran\n":
		return "it ran twice"
	// Go's client keeps the text to itself, which the other verbs read.
	case !got.done && verb == "exec" && (strings.HasSuffix(got.text, "502 Bad Gateway") || strings.HasSuffix(got.text, "503 Service Unavailable")):
	case got.done:
	case f.must && verb != "SSE" && verb != "WebSocket" && got.status == http.StatusBadGateway:
		return "it did not wake"
	default:
		for _, text := range f.may {
			if strings.Contains(got.text, text) {
				return ""
			}
		}
		if broken := got.status == 0 && (verb == "WebSocket" || fate == "kill"); !broken {
			return "it was refused for another reason"
		}
	}
	return ""
}

// ran is what the request wrote. A terminal's program has it a moment later.
func (e edge) ran(ctx context.Context, verb string) string {
	for {
		text, err := os.ReadFile(e.file())
		if err == nil && len(text) > 0 || verb != "PTY input" || ctx.Err() != nil {
			return string(text)
		}
		time.Sleep(time.Millisecond)
	}
}

// echo agrees to another protocol and returns each byte.
func echo(c net.Conn) {
	in := bufio.NewReader(c)
	if _, err := http.ReadRequest(in); err != nil {
		return
	}
	fmt.Fprint(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
	_, _ = io.Copy(c, in)
}

// oneEvent begins an answer without an end.
func oneEvent(c net.Conn) {
	in := bufio.NewReader(c)
	if _, err := http.ReadRequest(in); err != nil {
		return
	}
	fmt.Fprint(c, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: 1\n\n")
	_, _ = io.Copy(io.Discard, in)
}
