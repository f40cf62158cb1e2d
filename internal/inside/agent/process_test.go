package agent_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
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

	pb "github.com/cay-run/cay/api/proto/process"
	"github.com/cay-run/cay/api/proto/process/processconnect"
	"github.com/cay-run/cay/internal/guest"
	"github.com/cay-run/cay/internal/inside/agent/proc"
)

func TestStartOverEveryWire(t *testing.T) {
	w := newWorld(t)
	for name, c := range map[string]processconnect.ProcessClient{
		"proto over HTTP/1.1": processconnect.NewProcessClient(transport(t, false), w.url),
		"json over HTTP/1.1":  processconnect.NewProcessClient(transport(t, false), w.url, connect.WithProtoJSON()),
		"proto over h2c":      processconnect.NewProcessClient(transport(t, true), w.url),
		"json over h2c":       processconnect.NewProcessClient(transport(t, true), w.url, connect.WithProtoJSON()),
		"gRPC over h2c":       processconnect.NewProcessClient(transport(t, true), w.url, connect.WithGRPC()),
	} {
		t.Run(name, func(t *testing.T) {
			r := w.start(c, sh(`printf out; printf '\377err' >&2; exit 3`)).wait()
			if r.stdout.String() != "out" || r.stderr.String() != "\xfferr" || r.end.GetExitCode() != 3 {
				t.Errorf("stdout %q, stderr %q, end %v", r.stdout.String(), r.stderr.String(), r.end)
			}
		})
	}
}

func TestEndEvent(t *testing.T) {
	w := newWorld(t)
	for script, want := range map[string]struct {
		code   int32
		exited bool
		status string
		err    string
	}{
		"true":          {0, true, "exit status 0", ""},
		"exit 3":        {3, true, "exit status 3", "exit status 3"},
		"kill -KILL $$": {-1, false, "signal: killed", "signal: killed"},
		"kill -TERM $$": {-1, false, "signal: terminated", "signal: terminated"},
	} {
		e := w.start(w.client(), sh(script)).wait().end
		if e.GetExitCode() != want.code || e.GetExited() != want.exited || e.GetStatus() != want.status || e.GetError() != want.err || (e.Error == nil) != (want.err == "") {
			t.Errorf("%s: %v", script, e)
		}
	}
}

func TestStartRefuses(t *testing.T) {
	w := newWorld(t)
	for name, c := range map[string]struct {
		req  *pb.StartRequest
		user string
		code connect.Code
		text string
	}{
		"unknown user":      {sh("true"), "root123", connect.CodeUnauthenticated, "invalid username: 'root123'"},
		"missing directory": {&pb.StartRequest{Process: &pb.ProcessConfig{Cmd: "/bin/sh", Cwd: new("/not/here")}}, "", connect.CodeInvalidArgument, "cwd '/not/here' does not exist"},
		"file as directory": {&pb.StartRequest{Process: &pb.ProcessConfig{Cmd: "/bin/sh", Cwd: new("/etc/passwd")}}, "", connect.CodeInvalidArgument, "cwd '/etc/passwd' does not exist"},
		"missing command":   {&pb.StartRequest{Process: &pb.ProcessConfig{Cmd: "/not/here"}}, "", connect.CodeInvalidArgument, "no such file or directory"},
		"command not found": {&pb.StartRequest{Process: &pb.ProcessConfig{Cmd: "no-such-command"}}, "", connect.CodeInvalidArgument, "executable file not found in $PATH"},
		"directory":         {&pb.StartRequest{Process: &pb.ProcessConfig{Cmd: "/etc"}}, "", connect.CodeInvalidArgument, "permission denied"},
		"with a terminal":   {&pb.StartRequest{Process: &pb.ProcessConfig{Cmd: "/not/here"}, Pty: &pb.PTY{}}, "", connect.CodeInvalidArgument, "no such file or directory"},
		"NUL":               {&pb.StartRequest{Process: &pb.ProcessConfig{Cmd: "/bin/sh", Args: []string{"a\x00b"}}}, "", connect.CodeInvalidArgument, "invalid argument"},
		"nothing":           {&pb.StartRequest{}, "", connect.CodeInvalidArgument, "no command given"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := w.tryStart(w.client(connect.WithProtoJSON()), c.req, "Authorization", basic(c.user))
			if connect.CodeOf(err) != c.code || !strings.Contains(err.Error(), c.text) {
				t.Errorf("%v", err)
			}
		})
	}
}

func TestIdentity(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can become another user")
	}
	w := newWorld(t)
	r := w.start(w.client(), sh(`id -u; id -G; pwd; echo $HOME $USER $LOGNAME`)).wait()
	want := "1000\n1000 4321\n" + w.home + "\n" + w.home + " user user\n"
	if r.stdout.String() != want {
		t.Errorf("as user: %q, want %q", r.stdout.String(), want)
	}
	r = w.start(w.client(), sh(`id -u; pwd`), "Authorization", basic("root")).wait()
	if r.stdout.String() != "0\n/\n" {
		t.Errorf("as root: %q", r.stdout.String())
	}
}

func TestEnvironment(t *testing.T) {
	w := newWorld(t)
	w.mustInit("", guest.Init{Mode: guest.ModeBuild, TemplateEnv: map[string]string{"A": "template", "B": "template", "C": "template"}})
	w.mustInit("", guest.Init{Mode: guest.ModeCreate, SandboxID: "sid", EnvVars: map[string]string{"B": "sandbox", "C": "sandbox"}})
	req := sh(`echo $A $B $C $E2B_SANDBOX $E2B_SANDBOX_ID; echo $PATH`)
	req.Process.Envs = map[string]string{"C": "call"}
	got := strings.Split(w.start(w.client(), req).wait().stdout.String(), "\n")
	if got[0] != "template sandbox call true sid" || got[1] == "" {
		t.Errorf("environment: %q", got)
	}
}

func TestWorkingDirectory(t *testing.T) {
	w := newWorld(t)
	must(t, os.Mkdir(w.home+"/sub", 0o755))
	pwd := func(cwd *string) string {
		req := sh("pwd")
		req.Process.Cwd = cwd
		return strings.TrimSpace(w.start(w.client(), req).wait().stdout.String())
	}
	if got := pwd(new("sub")); got != w.home+"/sub" {
		t.Errorf("relative: %s", got)
	}
	w.mustInit("", guest.Init{Mode: guest.ModeBuild, DefaultDir: "/tmp"})
	if got := pwd(nil); got != "/tmp" {
		t.Errorf("the template's: %s", got)
	}
}

func TestStdin(t *testing.T) {
	w := newWorld(t)
	c := w.client(connect.WithProtoJSON())
	r := w.start(c, sh("cat"))
	must(t, w.send(c, r.pid, stdin("one\n")))
	r.until(func() bool { return r.stdout.String() == "one\n" })

	s := c.StreamInput(w.context())
	must(t, s.Send(&pb.StreamInputRequest{Event: &pb.StreamInputRequest_Start{Start: &pb.StreamInputRequest_StartEvent{Process: byPid(r.pid)}}}))
	must(t, s.Send(&pb.StreamInputRequest{Event: &pb.StreamInputRequest_Keepalive{Keepalive: &pb.StreamInputRequest_KeepAlive{}}}))
	must(t, s.Send(&pb.StreamInputRequest{Event: &pb.StreamInputRequest_Data{Data: &pb.StreamInputRequest_DataEvent{Input: stdin("two\n")}}}))
	_, err := s.CloseAndReceive()
	must(t, err)

	for range 2 { // idempotent
		_, err := c.CloseStdin(w.context(), connect.NewRequest(&pb.CloseStdinRequest{Process: byPid(r.pid)}))
		if err != nil && connect.CodeOf(err) != connect.CodeNotFound { // it may have ended meanwhile
			t.Fatal(err)
		}
	}
	if got := r.wait().stdout.String(); got != "one\ntwo\n" || r.end.GetExitCode() != 0 {
		t.Errorf("stdout %q, end %v", got, r.end)
	}
}

func TestStdinDisabled(t *testing.T) {
	w := newWorld(t)
	c := w.client()
	req := sh("cat; sleep 1000")
	req.Stdin = new(false)
	r := w.start(c, req) // cat sees the end at once
	if err := w.send(c, r.pid, stdin("x")); connect.CodeOf(err) != connect.CodeInternal {
		t.Errorf("input: %v", err)
	}
	if err := w.send(c, r.pid, ptyInput("x")); connect.CodeOf(err) != connect.CodeInternal {
		t.Errorf("terminal input: %v", err)
	}
	if err := w.send(c, r.pid, &pb.ProcessInput{}); connect.CodeOf(err) != connect.CodeUnimplemented {
		t.Errorf("empty input: %v", err)
	}
	_, err := c.Update(w.context(), connect.NewRequest(&pb.UpdateRequest{Process: byPid(r.pid), Pty: &pb.PTY{}}))
	if connect.CodeOf(err) != connect.CodeInternal {
		t.Errorf("resize: %v", err)
	}
	must(t, w.signal(c, r.pid, pb.Signal_SIGNAL_SIGKILL))
	r.wait()
}

// A write that the process does not take ends with its call.
func TestStdinBackPressure(t *testing.T) {
	w := newWorld(t)
	c := w.client()
	r := w.start(c, sh("sleep 1000"))
	ctx, cancel := context.WithTimeout(w.context(), 100*time.Millisecond)
	defer cancel()
	_, err := c.SendInput(ctx, connect.NewRequest(&pb.SendInputRequest{Process: byPid(r.pid), Input: stdin(strings.Repeat("x", 1<<20))}))
	if connect.CodeOf(err) != connect.CodeDeadlineExceeded {
		t.Errorf("input: %v", err)
	}
	must(t, w.signal(c, r.pid, pb.Signal_SIGNAL_SIGKILL))
	r.wait()
}

func TestSelectors(t *testing.T) {
	w := newWorld(t)
	c := w.client()
	req := sh("cat")
	req.Tag = new("mine")
	r := w.start(c, req)

	list, err := c.List(w.context(), connect.NewRequest(&pb.ListRequest{}))
	must(t, err)
	if p := list.Msg.GetProcesses(); len(p) != 1 || p[0].GetPid() != r.pid || p[0].GetTag() != "mine" || p[0].GetConfig().GetCmd() != "/bin/sh" {
		t.Errorf("list: %v", p)
	}
	for name, sel := range map[string]*pb.ProcessSelector{"pid": byPid(1 << 30), "tag": byTag("other")} {
		_, err := c.SendSignal(w.context(), connect.NewRequest(&pb.SendSignalRequest{Process: sel, Signal: pb.Signal_SIGNAL_SIGTERM}))
		if connect.CodeOf(err) != connect.CodeNotFound || !strings.Contains(err.Error(), "not found") {
			t.Errorf("unknown %s: %v", name, err)
		}
		if _, err := w.connect(c, sel); connect.CodeOf(err) != connect.CodeNotFound {
			t.Errorf("connect to unknown %s: %v", name, err)
		}
	}
	_, err = c.CloseStdin(w.context(), connect.NewRequest(&pb.CloseStdinRequest{}))
	if connect.CodeOf(err) != connect.CodeInvalidArgument {
		t.Errorf("no selector: %v", err)
	}
	_, err = c.CloseStdin(w.context(), connect.NewRequest(&pb.CloseStdinRequest{Process: byTag("mine")}))
	must(t, err)
	r.wait()
}

func TestSignals(t *testing.T) {
	w := newWorld(t)
	c := w.client()
	r := w.start(c, sh(`trap 'exit 7' TERM; echo ready; while :; do sleep 0.05; done`))
	r.until(func() bool { return r.stdout.Len() > 0 })
	if err := w.signal(c, r.pid, pb.Signal(1)); connect.CodeOf(err) != connect.CodeUnimplemented {
		t.Errorf("hang up: %v", err)
	}
	must(t, w.signal(c, r.pid, pb.Signal_SIGNAL_SIGTERM))
	if r.wait().end.GetExitCode() != 7 {
		t.Errorf("after SIGTERM: %v", r.end)
	}

	r = w.start(c, sh(`sleep 1000`))
	must(t, w.signal(c, r.pid, pb.Signal_SIGNAL_SIGKILL))
	if err := syscall.Kill(int(r.pid), 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("still there when the call returned: %v", err)
	}
	if err := w.signal(c, r.pid, pb.Signal_SIGNAL_SIGKILL); connect.CodeOf(err) != connect.CodeNotFound {
		t.Errorf("killed twice: %v", err)
	}
	if r.wait().end.GetError() != "signal: killed" {
		t.Errorf("after SIGKILL: %v", r.end)
	}
}

func TestSubscribers(t *testing.T) {
	w := newWorld(t)
	c := w.client()
	first := w.start(c, sh("cat"))
	second, err := w.connect(c, byPid(first.pid))
	must(t, err)
	must(t, w.send(c, first.pid, stdin("both")))
	second.until(func() bool { return second.stdout.String() == "both" })

	// The starter leaves; the process stays, and the other goes on.
	first.until(func() bool { return first.stdout.String() == "both" })
	must(t, first.stream.Close())
	must(t, w.send(c, first.pid, stdin(" more")))
	second.until(func() bool { return second.stdout.String() == "both more" })
	_, err = c.CloseStdin(w.context(), connect.NewRequest(&pb.CloseStdinRequest{Process: byPid(first.pid)}))
	must(t, err)
	second.wait()

	late, err := w.connect(c, byPid(first.pid))
	must(t, err)
	if late.wait().end.GetStatus() != "exit status 0" || late.stdout.Len() != 0 {
		t.Errorf("late: %v, stdout %q", late.end, late.stdout.String())
	}
	if err := w.send(c, first.pid, stdin("x")); connect.CodeOf(err) != connect.CodeNotFound {
		t.Errorf("input after the end: %v", err)
	}
}

func TestOutputIsWhole(t *testing.T) {
	w := newWorld(t)
	const size = 20_000_000
	r := w.start(w.client(), sh("head -c "+strconv.Itoa(size)+" /dev/zero")).wait()
	if r.stdout.Len() != size || r.biggest > 32<<10 {
		t.Errorf("%d bytes, biggest chunk %d", r.stdout.Len(), r.biggest)
	}
}

// A daemon that keeps the output open holds back neither the end nor itself:
// its later writes go nowhere, and do not kill it.
func TestDaemonKeepsOutput(t *testing.T) {
	w := newWorld(t)
	r := w.start(w.client(), sh(`(while [ ! -e done ]; do echo noise; sleep 0.05; done; touch survived) & echo $!`)).wait()
	if r.end.GetExitCode() != 0 {
		t.Errorf("end: %v", r.end)
	}
	must(t, os.WriteFile(w.home+"/done", nil, 0o644))
	eventually(t, "the daemon ended well", func() bool {
		_, err := os.Stat(w.home + "/survived")
		return err == nil
	})
}

func TestLife(t *testing.T) {
	w := newWorld(t)
	c := w.client()
	r := w.start(c, sh("sleep 1000"), "Connect-Timeout-Ms", "200")
	other, err := w.connect(c, byPid(r.pid))
	for r.next() {
	}
	if got := connect.CodeOf(r.stream.Err()); got != connect.CodeDeadlineExceeded {
		t.Errorf("owner: %v", r.stream.Err())
	}
	if err == nil { // it was there before the time was up
		if other.wait().end.GetStatus() != "signal: killed" {
			t.Errorf("other: %v", other.end)
		}
	}
	eventually(t, "the process is gone", func() bool { return syscall.Kill(int(r.pid), 0) != nil })
}

func TestLifeOutlivesClient(t *testing.T) {
	w := newWorld(t)
	c := w.client()
	r := w.start(c, sh("sleep 1000"), "Connect-Timeout-Ms", "1000")
	must(t, r.stream.Close())
	eventually(t, "the process is gone", func() bool { return syscall.Kill(int(r.pid), 0) != nil })
	free := w.start(c, sh("cat"), "Connect-Timeout-Ms", "0") // no limit
	must(t, w.signal(c, free.pid, pb.Signal_SIGNAL_SIGKILL))
	free.wait()
}

func TestKeepalive(t *testing.T) {
	w := newWorld(t)
	c := w.client()
	r := w.start(c, sh("sleep 1000"), "Keepalive-Ping-Interval", "1")
	r.until(func() bool { return r.keepalives > 0 })
	must(t, w.signal(c, r.pid, pb.Signal_SIGNAL_SIGKILL))
	r.wait()
}

func TestTerminal(t *testing.T) {
	w := newWorld(t)
	c := w.client(connect.WithProtoJSON())
	req := sh(`stty size; read line; echo "got $line"; stty size; exec sleep 1000`)
	req.Pty = &pb.PTY{Size: &pb.PTY_Size{Cols: 101, Rows: 33}}
	r := w.start(c, req)
	r.until(func() bool { return strings.Contains(r.pty.String(), "33 101") })
	_, err := c.Update(w.context(), connect.NewRequest(&pb.UpdateRequest{
		Process: byPid(r.pid), Pty: &pb.PTY{Size: &pb.PTY_Size{Cols: 90, Rows: 20}},
	}))
	must(t, err)
	must(t, w.send(c, r.pid, ptyInput("hello\r")))
	r.until(func() bool {
		return strings.Contains(r.pty.String(), "got hello") && strings.Contains(r.pty.String(), "20 90")
	})
	if err := w.send(c, r.pid, stdin("x")); connect.CodeOf(err) != connect.CodeInternal {
		t.Errorf("stdin of a terminal: %v", err)
	}
	_, err = c.CloseStdin(w.context(), connect.NewRequest(&pb.CloseStdinRequest{Process: byPid(r.pid)}))
	if connect.CodeOf(err) != connect.CodeUnknown {
		t.Errorf("close stdin of a terminal: %v", err)
	}
	must(t, w.signal(c, r.pid, pb.Signal_SIGNAL_SIGKILL))
	if r.wait(); r.end.GetExitCode() != -1 || r.end.GetError() != "signal: killed" {
		t.Errorf("end: %v", r.end)
	}
}

// viewer follows a terminal with what it showed before, and returns its size.
func (w *world) viewer(c processconnect.ProcessClient, pid uint32) (r *running, size string) {
	w.t.Helper()
	req := connect.NewRequest(&pb.ConnectRequest{Process: byPid(pid)})
	req.Header().Set(proc.ReplayHeader, "1")
	s, err := c.Connect(w.undead(), req)
	must(w.t, err)
	r = &running{t: w.t, stream: s, msg: func() *pb.ProcessEvent { return s.Msg().GetEvent() }}
	w.t.Cleanup(func() { s.Close() })
	must(w.t, r.first())
	return r, s.ResponseHeader().Get(proc.SizeHeader)
}

// A viewer that comes later sees what the terminal showed, also while no viewer was
// there and after its end; a client that does not ask sees what comes from now on.
func TestReplay(t *testing.T) {
	w := newWorld(t)
	for name, c := range map[string]processconnect.ProcessClient{"json": w.client(connect.WithProtoJSON()), "proto": w.client()} {
		t.Run(name, func(t *testing.T) {
			done := filepath.Join(w.home, "done-"+name)
			req := sh(`stty -echo; printf 'before\033[c\033[6n\005\n'; read x; echo "got $x"; touch ` + done + `; read y; echo "bye $y"`)
			req.Pty = &pb.PTY{Size: &pb.PTY_Size{Cols: 101, Rows: 33}}
			r := w.start(c, req)
			r.until(func() bool { return strings.Contains(r.pty.String(), "before") })
			if !strings.Contains(r.pty.String(), "\x1b[6n") {
				t.Errorf("the first viewer sees %q", r.pty.String())
			}
			r.stream.Close()
			must(t, w.send(c, r.pid, ptyInput("it\r")))
			eventually(t, "output without a viewer", func() bool { _, err := os.Stat(done); return err == nil })
			plain, err := w.connect(c, byPid(r.pid))
			must(t, err)
			one, size := w.viewer(c, r.pid)
			one.until(func() bool { return strings.Contains(one.pty.String(), "got it") })
			if size != "101x33" || !strings.HasPrefix(one.pty.String(), "before\r\n") {
				t.Errorf("size %q, shown %q", size, one.pty.String())
			}
			must(t, w.send(c, r.pid, ptyInput("all\r")))
			const whole = "before\r\ngot it\r\nbye all\r\n"
			if one.wait(); one.pty.String() != whole {
				t.Errorf("the viewer saw %q", one.pty.String())
			}
			if plain.wait(); strings.Contains(plain.pty.String(), "before") || !strings.HasSuffix(plain.pty.String(), "bye all\r\n") {
				t.Errorf("a client that does not ask saw %q", plain.pty.String())
			}
			late, _ := w.viewer(c, r.pid)
			if late.wait(); late.pty.String() != whole {
				t.Errorf("after its end: %q", late.pty.String())
			}
		})
	}
}

// Viewers that come while a terminal is busy miss nothing and see nothing twice.
func TestReplayIsExact(t *testing.T) {
	w := newWorld(t)
	c := processconnect.NewProcessClient(transport(t, true), w.url)
	req := sh(`stty -opost; read go; i=0; while [ $i -lt 6000 ]; do echo "line $i"; i=$((i+1)); done; echo over; exec sleep 1000`)
	req.Pty = &pb.PTY{}
	r := w.start(c, req)
	must(t, w.send(c, r.pid, ptyInput("\r")))
	var want strings.Builder
	for i := range 6000 {
		fmt.Fprintf(&want, "line %d\n", i)
	}
	want.WriteString("over\n")
	whole := func(text string) string { // what is typed is echoed first
		if i := strings.Index(text, "line 0\n"); i >= 0 {
			return text[i:]
		}
		return text
	}
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			v, _ := w.viewer(c, r.pid)
			v.until(func() bool { return strings.HasSuffix(v.pty.String(), "over\n") })
			if got := whole(v.pty.String()); got != want.String() {
				t.Errorf("viewer %d saw %d bytes, want %d", i, len(got), want.Len())
			}
		})
		r.until(func() bool { return strings.Contains(r.pty.String(), fmt.Sprintf("line %d\n", 600*i)) })
	}
	r.until(func() bool { return strings.HasSuffix(r.pty.String(), "over\n") })
	wg.Wait()
	must(t, w.signal(c, r.pid, pb.Signal_SIGNAL_SIGKILL))
}

func TestManyAtOnce(t *testing.T) {
	w := newWorld(t)
	c := processconnect.NewProcessClient(transport(t, true), w.url)
	var wg sync.WaitGroup
	for i := range 60 {
		wg.Go(func() {
			text := strconv.Itoa(i)
			r := w.start(c, sh("echo "+text)).wait()
			if r.stdout.String() != text+"\n" {
				t.Errorf("process %d wrote %q", i, r.stdout.String())
			}
		})
	}
	wg.Wait()
	list, err := c.List(w.context(), connect.NewRequest(&pb.ListRequest{}))
	must(t, err)
	if len(list.Msg.GetProcesses()) != 0 {
		t.Errorf("left: %v", list.Msg)
	}
}

func (w *world) mustInit(token string, in guest.Init) {
	w.t.Helper()
	if code, text := w.init(token, in); code != http.StatusOK {
		w.t.Fatalf("init: %d %s", code, text)
	}
}

func TestDiaryOfProcesses(t *testing.T) {
	w := newWorld(t)
	read := func() guest.Diary {
		t.Helper()
		_, _, text := w.call("GET", guest.DiaryPath+"?after=0", "")
		var out guest.Diary
		must(t, json.Unmarshal([]byte(text), &out))
		return out
	}
	before := read()
	w.start(w.client(), sh("exit 3 # secret")).wait()
	var got []guest.DiaryEntry
	for deadline := time.Now().Add(patience); len(got) < 2 && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		got = read().Entries
	}
	if len(got) != 2 || got[0].Message != "process started" || got[1].Message != "process ended" ||
		got[1].Fields["status"] != "exit status 3" || got[0].Fields["pid"] != got[1].Fields["pid"] {
		t.Fatalf("got %+v", got)
	}
	if strings.Contains(fmt.Sprint(got), "secret") {
		t.Error("arguments are told")
	}
	w.mustInit("", guest.Init{Mode: guest.ModeResume})
	if after := read(); len(after.Entries) != 0 || after.Epoch == before.Epoch {
		t.Errorf("after /init: %+v", after)
	}
}
