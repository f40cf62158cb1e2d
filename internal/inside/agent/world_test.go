package agent_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"go.uber.org/goleak"

	pb "github.com/cay-run/cay/api/proto/process"
	"github.com/cay-run/cay/api/proto/process/processconnect"
	"github.com/cay-run/cay/internal/guest"
	"github.com/cay-run/cay/internal/inside/agent"
	"github.com/cay-run/cay/internal/inside/agent/reap"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds what should take no time; a loaded machine takes some.
const patience = time.Minute

// world is an agent that serves a made-up sandbox: its accounts and files are
// those of root, its processes are real.
type world struct {
	t    testing.TB
	root string
	home string
	url  string
	log  *bytes.Buffer
}

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{t: t, root: t.TempDir(), home: openDir(t), log: &bytes.Buffer{}}
	for _, dir := range []string{"etc/ssl/certs", "dev", "proc", "run"} {
		must(t, os.MkdirAll(filepath.Join(w.root, dir), 0o755))
	}
	uid, gid := os.Geteuid(), os.Getegid()
	if uid == 0 {
		uid, gid = 1000, 1000
		must(t, os.Chown(w.home, uid, gid))
	}
	w.write("etc/passwd", fmt.Sprintf("root:x:0:0::/:/bin/sh\nuser:x:%d:%d::%s:/bin/sh\n", uid, gid, w.home))
	w.write("etc/group", "root:x:0:\nextra:x:4321:user\n")
	w.write("dev/urandom", "")
	w.write("proc/meminfo", "MemTotal: 1000 kB\nMemFree: 400 kB\nMemAvailable: 600 kB\nBuffers: 50 kB\nCached: 150 kB\n")

	reaper := reap.New(false)
	t.Cleanup(reaper.Close)
	a := agent.New(agent.Config{
		Reaper: reaper,
		Root:   w.root,
		Log:    slog.New(slog.NewTextHandler(w.log, nil)),
	})
	t.Cleanup(a.Close)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	var calls sync.WaitGroup // a server's Close does not wait for them
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls.Add(1)
		defer calls.Done()
		a.Handler().ServeHTTP(w, r)
	})
	go func() { served <- agent.Serve(ctx, l, h, slog.New(slog.DiscardHandler)) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
		calls.Wait()
	})
	w.url = "http://" + l.Addr().String()
	return w
}

func (w *world) write(name, text string) {
	w.t.Helper()
	must(w.t, os.WriteFile(filepath.Join(w.root, name), []byte(text), 0o644))
}

func (w *world) read(name string) string {
	w.t.Helper()
	b, err := os.ReadFile(filepath.Join(w.root, name))
	must(w.t, err)
	return string(b)
}

// openDir is a directory that every account can enter, unlike t.TempDir.
func openDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "agent-*")
	must(t, err)
	t.Cleanup(func() { must(t, os.RemoveAll(dir)) })
	must(t, os.Chmod(dir, 0o755))
	return dir
}

// transport returns a client of its own over HTTP/1.1 or h2c.
func transport(t testing.TB, h2 bool) *http.Client {
	t.Helper()
	tr := &http.Transport{Protocols: new(http.Protocols)}
	tr.Protocols.SetHTTP1(!h2)
	tr.Protocols.SetUnencryptedHTTP2(h2)
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

// client returns a client of the processes with one of the codecs.
func (w *world) client(opts ...connect.ClientOption) processconnect.ProcessClient {
	return processconnect.NewProcessClient(transport(w.t, false), w.url, opts...)
}

// context ends with the test, and when patience does.
func (w *world) context() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	w.t.Cleanup(cancel)
	return ctx
}

// undead is a context without a deadline: connect would announce one, and
// with it the life of a process.
func (w *world) undead() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	timer := time.AfterFunc(patience, cancel)
	w.t.Cleanup(func() { timer.Stop(); cancel() })
	return ctx
}

// sh is a request to run a script.
func sh(script string) *pb.StartRequest {
	return &pb.StartRequest{Process: &pb.ProcessConfig{Cmd: "/bin/sh", Args: []string{"-c", script}}}
}

// running is a process and its stream.
type running struct {
	t      testing.TB
	pid    uint32
	stream interface {
		Receive() bool
		Err() error
		Close() error
	}
	msg func() *pb.ProcessEvent

	stdout, stderr, pty bytes.Buffer
	keepalives          int
	biggest             int
	end                 *pb.ProcessEvent_EndEvent
}

func (w *world) start(c processconnect.ProcessClient, req *pb.StartRequest, headers ...string) *running {
	w.t.Helper()
	r, err := w.tryStart(c, req, headers...)
	must(w.t, err)
	return r
}

func (w *world) tryStart(c processconnect.ProcessClient, req *pb.StartRequest, headers ...string) (*running, error) {
	w.t.Helper()
	call := connect.NewRequest(req)
	for i := 0; i+1 < len(headers); i += 2 {
		call.Header().Set(headers[i], headers[i+1])
	}
	s, err := c.Start(w.undead(), call)
	if err != nil {
		return nil, err
	}
	r := &running{t: w.t, stream: s, msg: func() *pb.ProcessEvent { return s.Msg().GetEvent() }}
	w.t.Cleanup(func() { s.Close() })
	return r, r.first()
}

func (w *world) connect(c processconnect.ProcessClient, sel *pb.ProcessSelector) (*running, error) {
	w.t.Helper()
	s, err := c.Connect(w.undead(), connect.NewRequest(&pb.ConnectRequest{Process: sel}))
	if err != nil {
		return nil, err
	}
	r := &running{t: w.t, stream: s, msg: func() *pb.ProcessEvent { return s.Msg().GetEvent() }}
	w.t.Cleanup(func() { s.Close() })
	return r, r.first()
}

// first takes the start event.
func (r *running) first() error {
	if !r.stream.Receive() {
		return r.stream.Err()
	}
	if r.pid = r.msg().GetStart().GetPid(); r.pid == 0 {
		return fmt.Errorf("first event is %v", r.msg())
	}
	return nil
}

// next takes one event.
func (r *running) next() bool {
	if !r.stream.Receive() {
		return false
	}
	switch e := r.msg().GetEvent().(type) {
	case *pb.ProcessEvent_Data:
		if r.end != nil {
			r.t.Errorf("data after the end: %v", e)
		}
		r.stdout.Write(e.Data.GetStdout())
		r.stderr.Write(e.Data.GetStderr())
		r.pty.Write(e.Data.GetPty())
		r.biggest = max(r.biggest, len(e.Data.GetStdout()), len(e.Data.GetStderr()), len(e.Data.GetPty()))
	case *pb.ProcessEvent_Keepalive:
		r.keepalives++
	case *pb.ProcessEvent_End:
		r.end = e.End
	default:
		r.t.Errorf("unexpected event %v", e)
	}
	return true
}

// until takes events until ok.
func (r *running) until(ok func() bool) {
	r.t.Helper()
	for !ok() {
		if !r.next() {
			r.t.Fatalf("stream over: %v; stdout %q, stderr %q, pty %q", r.stream.Err(), r.stdout.String(), r.stderr.String(), r.pty.String())
		}
	}
}

// wait takes everything.
func (r *running) wait() *running {
	r.t.Helper()
	for r.next() {
	}
	must(r.t, r.stream.Err())
	if r.end == nil {
		r.t.Fatal("no end event")
	}
	return r
}

func byPid(pid uint32) *pb.ProcessSelector {
	return &pb.ProcessSelector{Selector: &pb.ProcessSelector_Pid{Pid: pid}}
}

func byTag(tag string) *pb.ProcessSelector {
	return &pb.ProcessSelector{Selector: &pb.ProcessSelector_Tag{Tag: tag}}
}

func stdin(text string) *pb.ProcessInput {
	return &pb.ProcessInput{Input: &pb.ProcessInput_Stdin{Stdin: []byte(text)}}
}

func ptyInput(text string) *pb.ProcessInput {
	return &pb.ProcessInput{Input: &pb.ProcessInput_Pty{Pty: []byte(text)}}
}

func (w *world) send(c processconnect.ProcessClient, pid uint32, in *pb.ProcessInput) error {
	_, err := c.SendInput(w.context(), connect.NewRequest(&pb.SendInputRequest{Process: byPid(pid), Input: in}))
	return err
}

func (w *world) signal(c processconnect.ProcessClient, pid uint32, sig pb.Signal) error {
	_, err := c.SendSignal(w.context(), connect.NewRequest(&pb.SendSignalRequest{Process: byPid(pid), Signal: sig}))
	return err
}

// call is a plain HTTP request; it returns the status, the headers and the
// body.
func (w *world) call(method, path, body string, headers ...string) (int, http.Header, string) {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.context(), method, w.url+path, strings.NewReader(body))
	must(w.t, err)
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := transport(w.t, false).Do(req)
	must(w.t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	must(w.t, err)
	return resp.StatusCode, resp.Header, string(text)
}

func (w *world) init(token string, in guest.Init) (int, string) {
	w.t.Helper()
	body, err := json.Marshal(in)
	must(w.t, err)
	code, _, text := w.call(http.MethodPost, "/init", string(body), "X-Access-Token", token)
	return code, text
}

func basic(name string) string {
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(name+":"))
}

// eventually polls until ok.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not in time: %s", what)
		}
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
