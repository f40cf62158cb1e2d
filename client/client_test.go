package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/api/proto/filesystem/filesystemconnect"
	"github.com/cay-run/cay/api/proto/process"
	"github.com/cay-run/cay/api/proto/process/processconnect"
)

// stand is a small server that speaks the wire.
type stand struct {
	processconnect.UnimplementedProcessHandler
	t     *testing.T
	mu    sync.Mutex
	files map[string]string
	input chan *process.ProcessInput
	sizes chan *process.PTY_Size
}

func serve(t *testing.T) *Client {
	t.Helper()
	s := &stand{
		t: t, files: map[string]string{},
		input: make(chan *process.ProcessInput, 8), sizes: make(chan *process.PTY_Size, 8),
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v2/sandboxes", s.create)
	mux.HandleFunc("POST /v2/sandboxes/{id}/connect", s.connect)
	mux.HandleFunc("GET /v2/sandboxes", s.list)
	mux.HandleFunc("DELETE /sandboxes/{id}", s.kill)
	mux.HandleFunc("/files", s.file)
	mux.HandleFunc("POST /execute", s.execute)
	mux.HandleFunc("POST "+filesystemconnect.FilesystemListDirProcedure, endless)
	path, handler := processconnect.NewProcessHandler(s)
	mux.Handle(path, s.guarded(handler))
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	c, err := New(Config{APIKey: "key", APIURL: server.URL + "/"})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func reply(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(body)
}

func refuse(w http.ResponseWriter, status int, message string) {
	reply(w, status, map[string]any{"code": status, "message": message})
}

func (s *stand) create(w http.ResponseWriter, r *http.Request) {
	var in map[string]any
	json.NewDecoder(r.Body).Decode(&in)
	if r.Header.Get("X-API-Key") != "key" {
		refuse(w, 401, "wrong key")
		return
	}
	if in["templateID"] != "base" || in["timeout"] != 2.0 || in["allow_internet_access"] != true {
		refuse(w, 400, fmt.Sprint("wrong request: ", in))
		return
	}
	reply(w, 201, map[string]any{"sandboxID": "ibox", "templateID": "t", "envdAccessToken": "secret", "domain": nil})
}

func (s *stand) connect(w http.ResponseWriter, r *http.Request) {
	if r.PathValue("id") != "ibox" {
		refuse(w, 404, "sandbox "+r.PathValue("id")+" not found")
		return
	}
	reply(w, 200, map[string]any{"sandboxID": "ibox", "envdAccessToken": "secret"})
}

func (s *stand) list(w http.ResponseWriter, r *http.Request) {
	if r.URL.Query().Get("nextToken") == "" {
		w.Header().Set("X-Next-Token", "more")
		reply(w, 200, []map[string]any{{"sandboxID": "i1"}, {"sandboxID": "i2"}})
		return
	}
	reply(w, 200, []map[string]any{{"sandboxID": "i3"}})
}

func (s *stand) kill(w http.ResponseWriter, r *http.Request) {
	if r.PathValue("id") != "ibox" {
		refuse(w, 404, "sandbox "+r.PathValue("id")+" not found")
		return
	}
	w.WriteHeader(204)
}

// guarded answers only requests with the right path and token.
func (s *stand) guarded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("E2b-Sandbox-Id") != "ibox" || r.Header.Get("E2b-Sandbox-Port") != "49983" {
			refuse(w, 502, "no such sandbox")
			return
		}
		if r.Header.Get("X-Access-Token") != "secret" {
			refuse(w, 401, "wrong token")
			return
		}
		next.ServeHTTP(w, r)
	})
}

func (s *stand) file(w http.ResponseWriter, r *http.Request) {
	s.guarded(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		name := r.URL.Query().Get("username") + ":" + r.URL.Query().Get("path")
		if r.Method == http.MethodPost {
			b, _ := io.ReadAll(r.Body)
			s.files[name] = string(b)
			reply(w, 200, []any{})
			return
		}
		content, ok := s.files[name]
		if !ok {
			refuse(w, 404, "path '"+name+"' does not exist")
			return
		}
		io.WriteString(w, content)
	})).ServeHTTP(w, r)
}

func (s *stand) Start(ctx context.Context, r *connect.Request[process.StartRequest], out *connect.ServerStream[process.StartResponse]) error {
	if r.Msg.GetProcess().GetCmd() == "missing" {
		return connect.NewError(connect.CodeInvalidArgument, errors.New("no such program"))
	}
	send := func(e *process.ProcessEvent) { out.Send(&process.StartResponse{Event: e}) }
	data := func(d *process.ProcessEvent_DataEvent) {
		send(&process.ProcessEvent{Event: &process.ProcessEvent_Data{Data: d}})
	}
	send(&process.ProcessEvent{Event: &process.ProcessEvent_Start{Start: &process.ProcessEvent_StartEvent{Pid: 7}}})
	if r.Msg.GetProcess().GetCmd() == "vanish" {
		return nil
	}
	if pty := r.Msg.GetPty(); pty != nil {
		in := <-s.input
		size := <-s.sizes
		data(&process.ProcessEvent_DataEvent{Output: &process.ProcessEvent_DataEvent_Pty{
			Pty: fmt.Appendf(nil, "%s %dx%d", in.GetPty(), size.GetCols(), size.GetRows()),
		}})
	} else {
		data(&process.ProcessEvent_DataEvent{Output: &process.ProcessEvent_DataEvent_Stdout{Stdout: []byte("out")}})
		send(&process.ProcessEvent{Event: &process.ProcessEvent_Keepalive{}})
		data(&process.ProcessEvent_DataEvent{Output: &process.ProcessEvent_DataEvent_Stderr{Stderr: []byte(r.Header().Get("Authorization"))}})
	}
	send(&process.ProcessEvent{Event: &process.ProcessEvent_End{End: &process.ProcessEvent_EndEvent{ExitCode: 3, Status: "exit status 3"}}})
	return nil
}

func (s *stand) SendInput(_ context.Context, r *connect.Request[process.SendInputRequest]) (*connect.Response[process.SendInputResponse], error) {
	if r.Msg.GetProcess().GetPid() != 7 {
		return nil, connect.NewError(connect.CodeNotFound, errors.New("no such process"))
	}
	s.input <- r.Msg.GetInput()
	return connect.NewResponse(&process.SendInputResponse{}), nil
}

func (s *stand) Update(_ context.Context, r *connect.Request[process.UpdateRequest]) (*connect.Response[process.UpdateResponse], error) {
	s.sizes <- r.Msg.GetPty().GetSize()
	return connect.NewResponse(&process.UpdateResponse{}), nil
}

func box(t *testing.T, c *Client) *Sandbox {
	t.Helper()
	s, err := c.Create(t.Context(), CreateOptions{Timeout: 1500 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestSandboxes(t *testing.T) {
	c := serve(t)
	s := box(t, c)
	if s.ID != "ibox" || s.AccessToken != "secret" {
		t.Errorf("Create = %+v", s)
	}
	host := strings.TrimPrefix(c.URL(), "http://")
	if got, want := s.Host(3000), "3000-ibox."+host; got != want {
		t.Errorf("Host = %s, want %s", got, want)
	}
	list, err := c.List(t.Context())
	if err != nil || len(list) != 3 || list[2].ID != "i3" {
		t.Errorf("List = %+v, %v", list, err)
	}
	if again, err := c.Connect(t.Context(), "ibox", 0); err != nil || again.AccessToken != "secret" {
		t.Errorf("Connect = %+v, %v", again, err)
	}
	if err := s.Kill(t.Context()); err != nil {
		t.Error(err)
	}
	err = c.Kill(t.Context(), "inone")
	if cay.KindOf(err) != cay.NotFound || !strings.Contains(err.Error(), "inone") {
		t.Errorf("Kill of none = %v", err)
	}
}

func TestErrorsSayWhatToDo(t *testing.T) {
	if _, err := New(Config{}); cay.KindOf(err) != cay.Unauthenticated {
		t.Errorf("New without a key = %v", err)
	}
	if _, err := New(Config{APIKey: "k", APIURL: "localhost:7070"}); cay.KindOf(err) != cay.Invalid {
		t.Errorf("New with half a URL = %v", err)
	}
	c := serve(t)
	c.cfg.APIKey = "other"
	if _, err := c.Create(t.Context(), CreateOptions{}); cay.KindOf(err) != cay.Unauthenticated {
		t.Errorf("Create with a wrong key = %v", err)
	}
	away, err := New(Config{APIKey: "k", APIURL: "http://127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	var e *cay.Error
	if _, err := away.List(t.Context()); !errors.As(err, &e) || e.Kind != cay.Unavailable || e.Hint == "" {
		t.Errorf("List without a server = %v, want unavailable with a hint", err)
	}
}

func TestRun(t *testing.T) {
	s := box(t, serve(t))
	var seen bytes.Buffer
	got, err := s.Run(t.Context(), Command{Path: "x", User: "root", Stdout: &seen})
	if err != nil {
		t.Fatal(err)
	}
	if got.Code != 3 || string(got.Stdout) != "out" || string(got.Stderr) != "Basic cm9vdDo=" || seen.String() != "out" {
		t.Errorf("Run = %+v, %q, %q", got.Exit, got.Stdout, got.Stderr)
	}
	if _, err := s.Run(t.Context(), Command{Path: "missing"}); cay.KindOf(err) != cay.Invalid {
		t.Errorf("Run of a missing program = %v", err)
	}
	if _, err := s.Run(t.Context(), Command{Path: "vanish"}); cay.KindOf(err) != cay.Unavailable {
		t.Errorf("Run that breaks off = %v", err)
	}
	other := *s
	other.ID = "igone"
	if _, err := other.Run(t.Context(), Command{Path: "x"}); cay.KindOf(err) != cay.Unavailable || !strings.Contains(err.Error(), "igone") {
		t.Errorf("Run in a sandbox that is over = %v", err)
	}
}

func TestTerminal(t *testing.T) {
	s := box(t, serve(t))
	var screen bytes.Buffer
	p, err := s.Start(t.Context(), Command{Path: "sh", TTY: &Size{80, 24}, Stdout: &screen})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Input(t.Context(), []byte("hi")); err != nil {
		t.Fatal(err)
	}
	if err := p.Resize(t.Context(), Size{100, 30}); err != nil {
		t.Fatal(err)
	}
	if exit, err := p.Wait(); err != nil || exit.Code != 3 {
		t.Errorf("Wait = %v, %v", exit, err)
	}
	if screen.String() != "hi 100x30" {
		t.Errorf("screen = %q", screen.String())
	}
	if err := p.CloseStdin(t.Context()); cay.KindOf(err) != cay.Unsupported {
		t.Errorf("CloseStdin = %v", err)
	}
}

func TestFiles(t *testing.T) {
	s := box(t, serve(t))
	if err := s.WriteFile(t.Context(), "a b", "root", strings.NewReader("text")); err != nil {
		t.Fatal(err)
	}
	r, err := s.ReadFile(t.Context(), "a b", "root")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if got, err := io.ReadAll(r); err != nil || string(got) != "text" {
		t.Errorf("ReadFile = %q, %v", got, err)
	}
	if _, err := s.ReadFile(t.Context(), "none", ""); cay.KindOf(err) != cay.NotFound {
		t.Errorf("ReadFile of none = %v", err)
	}
}

const pieces = 32 // of 64 KiB in a large result

// execute shows a small result, a large one, and a small one after it.
func (s *stand) execute(w http.ResponseWriter, _ *http.Request) {
	io.WriteString(w, `{"type":"result","text":"first"}`+"\n")
	io.WriteString(w, `{"type":"result","text":"`)
	piece := bytes.Repeat([]byte("x"), 64<<10)
	for range pieces {
		w.Write(piece)
	}
	io.WriteString(w, `"}`+"\n")
	io.WriteString(w, `{"type":"result","text":"last"}`+"\n"+`{"type":"end_of_execution"}`+"\n")
}

// A guest shows what it likes: no more of it is held than the bound says.
func TestRunCodeIsBounded(t *testing.T) {
	box, err := serve(t).Create(t.Context(), CreateOptions{Template: "base", Timeout: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	large := pieces*64<<10 + len(`{"type":"result","text":""}`+"\n")
	for most, want := range map[int][]int{0: {5, pieces * 64 << 10, 4}, 64 << 10: {5, -large, 4}, large: {5, pieces * 64 << 10, 4}, large - 1: {5, -large, 4}} {
		var got []int
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		failed, err := box.RunCode(t.Context(), Code{
			Most: most, Omitted: func(n int64) { got = append(got, -int(n)) },
			Result: func(r CodeResult) error { got = append(got, len(r.Text)); return nil },
		})
		runtime.ReadMemStats(&after)
		if err != nil || failed != nil || !slices.Equal(got, want) {
			t.Errorf("bound %d: %v, not %v; %v, %v", most, got, want, failed, err)
		}
		if held := after.TotalAlloc - before.TotalAlloc; most == 64<<10 && held > 1<<20 {
			t.Errorf("bound %d: %d bytes were held", most, held)
		}
	}
}

// endless answers with a message that is longer than a client holds.
func endless(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/proto")
	piece := make([]byte, 1<<20)
	for range maxMessage>>20 + 1 {
		if _, err := w.Write(piece); err != nil {
			return
		}
	}
}

func TestMessagesAreBounded(t *testing.T) {
	box, err := serve(t).Create(t.Context(), CreateOptions{Template: "base", Timeout: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := box.ListDir(t.Context(), "/", "", 1); cay.KindOf(err) != cay.Exhausted {
		t.Errorf("a message beyond the bound: %v", err)
	}
}
