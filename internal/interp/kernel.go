package interp

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cay-run/cay/internal/interp/zmtp"
)

const (
	// startLimit is how long a kernel may take to answer first. Importing
	// IPython from a cold root file system takes most of a minute.
	startLimit = 3 * time.Minute
	// drainLimit is how long we read on after a kernel's end, where a process
	// that it left behind holds its sockets open.
	drainLimit = 5 * time.Second
)

// errKernelGone says that the kernel ended while something waited for it.
var errKernelGone = errors.New("the kernel ended")

// The channels of a kernel as "ports": with the ipc transport they are
// suffixes of socket paths.
const (
	portShell = 1 + iota
	portIOPub
	portStdin
	portControl
	portHeartbeat
)

// kernel is one running kernel process and its channels.
type kernel struct {
	log     *slog.Logger
	dir     string // its sockets, connection file and log
	pid     int
	key     []byte
	session string
	next    atomic.Uint64 // message ids

	shell, iopub *zmtp.Conn

	restarting atomic.Bool   // it was ended in order to be replaced
	exited     chan struct{} // closed when the process is gone
	done       chan struct{} // closed when also everything it said was read

	mu  sync.Mutex
	sub *subscription
}

// subscription receives what the kernel publishes about one request.
type subscription struct {
	id   string        // empty for all
	msgs chan *message // closed when the kernel is gone
	gone chan struct{} // closed when nobody receives any more
}

// spec is what starts a kernel.
type spec struct {
	argv  []string // the path of the connection file is appended
	cwd   string
	env   []string
	cred  *syscall.Credential
	start func(*exec.Cmd) (wait func() error, err error)
	dir   string // of all kernels
	log   *slog.Logger
}

// startKernel starts a kernel and waits until it answers. Its process ends
// when ctx does.
func startKernel(ctx context.Context, s spec) (*kernel, error) {
	k := &kernel{
		log: s.log, key: []byte(rand.Text()), session: rand.Text(),
		exited: make(chan struct{}), done: make(chan struct{}),
	}
	if err := k.spawn(s); err != nil {
		k.cleanup()
		return nil, err
	}
	limited, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	err := k.open(limited)
	if err == nil {
		go k.readShell()
		go k.readIOPub()
		err = k.greet(limited)
	}
	if err != nil {
		err = fmt.Errorf("the kernel did not start: %w%s", err, k.logTail())
		k.kill()
		<-k.exited
		k.cleanup()
		return nil, err
	}
	stop := context.AfterFunc(ctx, k.kill)
	go func() {
		<-k.done
		stop()
		k.cleanup()
	}()
	return k, nil
}

// cleanup frees what a kernel had that is gone.
func (k *kernel) cleanup() {
	for _, c := range []*zmtp.Conn{k.shell, k.iopub} {
		if c != nil {
			_ = c.Close()
		}
	}
	if k.dir != "" {
		_ = os.RemoveAll(k.dir)
	}
}

func (k *kernel) spawn(s spec) error {
	dir, err := os.MkdirTemp(s.dir, "k")
	if err != nil {
		return err
	}
	k.dir = dir
	conn := filepath.Join(dir, "connection.json")
	if err := k.writeConnection(conn); err != nil {
		return err
	}
	out, err := os.OpenFile(filepath.Join(dir, "log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer out.Close()
	if s.cred != nil {
		for _, p := range []string{dir, conn} {
			if err := os.Chown(p, int(s.cred.Uid), int(s.cred.Gid)); err != nil {
				return err
			}
		}
	}
	cmd := exec.Command(s.argv[0], append(s.argv[1:len(s.argv):len(s.argv)], conn)...)
	cmd.Dir, cmd.Env = s.cwd, s.env
	cmd.Stdout, cmd.Stderr = out, out
	// A group of its own: an interrupt reaches what the kernel started.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: s.cred}
	wait, err := s.start(cmd)
	if err != nil {
		return err
	}
	k.pid = cmd.Process.Pid
	go func() {
		err := wait()
		k.kill() // what is left of its group, which may hold the sockets
		k.log.Info("kernel ended", "pid", k.pid, "status", fmt.Sprint(err))
		close(k.exited)
	}()
	return nil
}

func (k *kernel) writeConnection(path string) error {
	b, err := json.Marshal(map[string]any{
		"transport": "ipc", "ip": filepath.Join(k.dir, "s"),
		"shell_port": portShell, "iopub_port": portIOPub, "stdin_port": portStdin,
		"control_port": portControl, "hb_port": portHeartbeat,
		"key": string(k.key), "signature_scheme": "hmac-sha256",
	})
	if err != nil {
		return err
	}
	return os.WriteFile(path, b, 0o600)
}

// open dials the kernel's channels as they appear.
func (k *kernel) open(ctx context.Context) (err error) {
	if k.shell, err = k.dial(ctx, portShell, zmtp.Dealer); err != nil {
		return err
	}
	if k.iopub, err = k.dial(ctx, portIOPub, zmtp.Sub); err != nil {
		return err
	}
	return k.iopub.Subscribe("")
}

// greet waits until the kernel both answers and is heard publishing.
func (k *kernel) greet(ctx context.Context) error {
	sub := k.listen("")
	defer k.unlisten(sub)
	// The publisher learns of a subscription some time after it was sent and
	// drops what it says until then, so the question is repeated.
	retry := time.NewTicker(100 * time.Millisecond)
	defer retry.Stop()
	for {
		if err := k.send(k.newID(), "kernel_info_request", struct{}{}); err != nil {
			return err
		}
		select {
		case m, ok := <-sub.msgs:
			if !ok {
				return errKernelGone
			}
			if m.parent != "" { // not the publisher's welcome
				return nil
			}
		case <-ctx.Done():
			return ctx.Err()
		case <-retry.C:
		}
	}
}

func (k *kernel) dial(ctx context.Context, port int, typ zmtp.Type) (*zmtp.Conn, error) {
	path := filepath.Join(k.dir, "s-"+strconv.Itoa(port))
	for {
		c, err := zmtp.Dial(ctx, "unix", path, typ)
		if err == nil {
			return c, nil
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), err)
		case <-k.exited:
			return nil, errKernelGone
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func (k *kernel) newID() string {
	return k.session + "_" + strconv.FormatUint(k.next.Add(1), 10)
}

// send puts a request on the shell channel.
func (k *kernel) send(id, typ string, content any) error {
	frames, err := encode(k.key, header{ID: id, Type: typ, Session: k.session, Username: "cay"}, content)
	if err != nil {
		return err
	}
	return k.shell.Send(frames...)
}

// executeRequest is the content of an execute_request.
type executeRequest struct {
	Code            string            `json:"code"`
	Silent          bool              `json:"silent"`
	StoreHistory    bool              `json:"store_history"`
	UserExpressions map[string]string `json:"user_expressions"`
	AllowStdin      bool              `json:"allow_stdin"`
	// StopOnError would make the kernel drop requests for a while after an
	// error. We send one at a time, so there is nothing to drop.
	StopOnError bool `json:"stop_on_error"`
}

// run executes code and calls handle with each message that the kernel
// publishes about it, until the kernel is idle again. When ctx ends the code
// is interrupted, and run goes on to the end. Silent runs do not count.
func (k *kernel) run(ctx context.Context, code string, silent bool, handle func(*message)) error {
	id := k.newID()
	sub := k.listen(id)
	defer k.unlisten(sub)
	err := k.send(id, "execute_request", executeRequest{
		Code: code, Silent: silent, StoreHistory: !silent, UserExpressions: map[string]string{},
	})
	if err != nil {
		return errors.Join(errKernelGone, err)
	}
	stop := ctx.Done()
	var again <-chan time.Time
	pause := 2100 * time.Millisecond
	for {
		select {
		case m, ok := <-sub.msgs:
			if !ok {
				return errKernelGone
			}
			if idle(m) {
				return nil
			}
			handle(m)
		case <-stop:
			stop = nil
			k.interrupt()
			again = time.After(pause)
		case <-again:
			// The first may have come before the code began to run.
			k.interrupt()
			pause = min(2*pause, 2*time.Second)
			again = time.After(pause)
		}
	}
}

func idle(m *message) bool {
	if m.header.Type != "status" {
		return false
	}
	var c struct {
		State string `json:"execution_state"`
	}
	return json.Unmarshal(m.content, &c) == nil && c.State == "idle"
}

func (k *kernel) listen(id string) *subscription {
	s := &subscription{id: id, msgs: make(chan *message), gone: make(chan struct{})}
	k.mu.Lock()
	defer k.mu.Unlock()
	select {
	case <-k.done:
		close(s.msgs)
	default:
		k.sub = s
	}
	return s
}

func (k *kernel) unlisten(s *subscription) {
	close(s.gone)
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.sub == s {
		k.sub = nil
	}
}

// readIOPub hands on what the kernel publishes. A receiver that is slow holds
// the kernel back, which keeps what is in memory small.
func (k *kernel) readIOPub() {
	go func() {
		<-k.exited
		_ = k.iopub.SetReadDeadline(time.Now().Add(drainLimit))
	}()
	for {
		frames, err := k.iopub.Recv()
		if err != nil {
			if !errors.Is(err, io.EOF) {
				k.log.Warn("kernel's publications", "pid", k.pid, "error", err)
			}
			break
		}
		m, err := decode(k.key, frames)
		if err != nil {
			k.log.Warn("kernel's publications", "pid", k.pid, "error", err)
			continue
		}
		k.mu.Lock()
		s := k.sub
		k.mu.Unlock()
		if s == nil || (s.id != "" && s.id != m.parent) {
			continue
		}
		select {
		case s.msgs <- m:
		case <-s.gone:
		}
	}
	// A kernel that cannot be heard is of no use.
	k.kill()
	<-k.exited
	_ = k.iopub.Close()
	k.mu.Lock()
	defer k.mu.Unlock()
	close(k.done)
	if k.sub != nil {
		close(k.sub.msgs)
	}
}

// readShell reads replies, which say nothing that was not published.
func (k *kernel) readShell() {
	for {
		if _, err := k.shell.Recv(); err != nil {
			return
		}
	}
}

func (k *kernel) interrupt() { k.signal(syscall.SIGINT) }

func (k *kernel) kill() { k.signal(syscall.SIGKILL) }

// signal reaches the kernel and what it started. The group outlives its
// leader while it has members, so a late call cannot hit another's processes
// unless ids have wrapped round in between.
func (k *kernel) signal(sig syscall.Signal) {
	if k.pid > 1 {
		_ = syscall.Kill(-k.pid, sig)
	}
}

// logTail is the end of what the kernel wrote to its standard error, for an
// error message.
func (k *kernel) logTail() string {
	b, err := os.ReadFile(filepath.Join(k.dir, "log"))
	if err != nil || len(b) == 0 {
		return ""
	}
	return "\n" + string(b[max(0, len(b)-2000):])
}
