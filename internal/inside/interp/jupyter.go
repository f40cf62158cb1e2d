package interp

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cay-run/cay/internal/inside/interp/zmtp"
)

const (
	// startLimit is how long a kernel may take to answer first. Importing
	// IPython from a cold root file system takes most of a minute.
	startLimit = 3 * time.Minute
	// drainLimit is how long we read on after a kernel's end, where a process
	// that it left behind holds its sockets open.
	drainLimit = 5 * time.Second
)

// jupyter is a kernel that speaks Jupyter's protocol over one line of its own:
// kernel/_cay_line.py says why.
type jupyter struct {
	*process
	key     []byte
	session string
	next    atomic.Uint64 // message ids

	line *zmtp.Conn

	mu  sync.Mutex
	sub *subscription
}

// subscription receives what the kernel publishes about one request.
type subscription struct {
	id   string
	msgs chan *message // closed when the kernel is gone
	gone chan struct{} // closed when the receiver is gone
}

// startJupyter starts a kernel and waits until it answers. Its process ends
// when ctx does.
func startJupyter(ctx context.Context, s spec) (kernel, error) {
	p, err := newProcess(s)
	if err != nil {
		return nil, err
	}
	k := &jupyter{process: p, key: []byte(rand.Text()), session: rand.Text()}
	if err := k.launch(s); err != nil {
		k.cleanup()
		return nil, err
	}
	limited, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	err = k.open(limited)
	if err == nil {
		go k.listenToAll()
		err = k.greet(limited)
	}
	if err != nil {
		err = k.notStarted(err)
		k.end()
		<-k.exited
		k.cleanup()
		return nil, err
	}
	stop := context.AfterFunc(ctx, k.end)
	go func() {
		<-k.done
		stop()
		k.cleanup()
	}()
	return k, nil
}

// launch starts the process with a connection file of its own.
func (k *jupyter) launch(s spec) error {
	conn := filepath.Join(k.dir, "connection.json")
	if err := k.writeConnection(conn); err != nil {
		return err
	}
	if err := s.own(conn); err != nil {
		return err
	}
	return k.spawn(s, nil, nil, conn)
}

// cleanup frees what a kernel had that is gone.
func (k *jupyter) cleanup() {
	if k.line != nil {
		_ = k.line.Close()
	}
	_ = os.RemoveAll(k.dir)
}

func (k *jupyter) writeConnection(path string) error {
	// Jupyter's own channels are there too, and no client dials them. With the ipc
	// transport their ports are suffixes of socket paths.
	b, err := json.Marshal(map[string]any{
		"transport": "ipc", "ip": filepath.Join(k.dir, "s"),
		"shell_port": 1, "iopub_port": 2, "stdin_port": 3, "control_port": 4, "hb_port": 5,
		"key": string(k.key), "signature_scheme": "hmac-sha256",
		"line": k.linePath(),
	})
	if err != nil {
		return err
	}
	return os.WriteFile(path, b, 0o600)
}

func (k *jupyter) linePath() string { return filepath.Join(k.dir, "line") }

// open dials the kernel's line when it appears.
func (k *jupyter) open(ctx context.Context) error {
	for {
		c, err := zmtp.Dial(ctx, "unix", k.linePath(), zmtp.Dealer)
		if err == nil {
			k.line = c
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-k.exited:
			return errKernelGone
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// greet waits until the kernel answers.
func (k *jupyter) greet(ctx context.Context) error {
	id := k.newID()
	sub := k.listen(id)
	defer k.unlisten(sub)
	if err := k.send(id, "kernel_info_request", struct{}{}); err != nil {
		return err
	}
	select {
	case _, ok := <-sub.msgs:
		if !ok {
			return errKernelGone
		}
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (k *jupyter) newID() string {
	return k.session + "_" + strconv.FormatUint(k.next.Add(1), 10)
}

// send puts a request on the line.
func (k *jupyter) send(id, typ string, content any) error {
	frames, err := encode(k.key, header{ID: id, Type: typ, Session: k.session, Username: "cay"}, content)
	if err != nil {
		return err
	}
	return k.line.Send(frames...)
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

// execute runs code and calls handle with each message that the kernel
// publishes about it, until the kernel is idle again. When ctx ends the code
// is interrupted, and execute goes on to the end. Silent runs do not count.
func (k *jupyter) execute(ctx context.Context, code string, silent bool, handle func(*message)) error {
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

func (k *jupyter) listen(id string) *subscription {
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

func (k *jupyter) unlisten(s *subscription) {
	close(s.gone)
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.sub == s {
		k.sub = nil
	}
}

// listenToAll hands on what the kernel publishes. A receiver that is slow holds
// the kernel back, which keeps what is in memory small.
func (k *jupyter) listenToAll() {
	go func() {
		<-k.exited
		_ = k.line.SetReadDeadline(time.Now().Add(drainLimit))
	}()
	var err error
	for {
		var frames [][]byte
		if frames, err = k.line.Recv(); err != nil {
			break
		}
		m, err := decode(k.key, frames)
		if err != nil {
			k.log.Warn("kernel's publications", "pid", k.pid, "err", err)
			continue
		}
		k.mu.Lock()
		s := k.sub
		k.mu.Unlock()
		if s == nil || s.id != m.parent {
			continue
		}
		select {
		case s.msgs <- m:
		case <-s.gone:
		}
	}
	k.awaitEnd(err)
	_ = k.line.Close()
	k.mu.Lock()
	defer k.mu.Unlock()
	close(k.done)
	if k.sub != nil {
		close(k.sub.msgs)
	}
}

// awaitEnd waits for the end of a kernel whose line broke, and kills one that
// has not ended by itself: a kernel that cannot be heard is of no use.
func (k *jupyter) awaitEnd(err error) {
	select {
	case <-k.exited:
		return
	case <-time.After(reapWithin):
	}
	k.blame("its line broke: " + err.Error())
	k.kill()
	<-k.exited
}

func (k *jupyter) interrupt() { k.signal(syscall.SIGINT) }

// The rest is what the session asks of a kernel.

func (k *jupyter) run(ctx context.Context, code source, t *translator) error {
	return k.execute(ctx, code.text, code.silent, t.message)
}

func (k *jupyter) prepare(p preparation) error { return k.helper("prepare", p) }

func (k *jupyter) restore() error { return k.helper("restore_env", nil) }

// warm has the kernel import one part of what most code imports.
func (k *jupyter) warm(part int) (more bool, err error) {
	const last = 2
	return part < last, k.helper("warm", part)
}

// helper calls a function of our extension inside the kernel, unseen by the
// user: it does not count, shows nothing and binds no name.
func (k *jupyter) helper(function string, arg any) error {
	code := call(function, "")
	if arg != nil {
		data, err := json.Marshal(arg)
		if err != nil {
			return err
		}
		// A JSON string as Go writes it is also a Python literal.
		literal, err := json.Marshal(string(data))
		if err != nil {
			return err
		}
		code = call(function, string(literal))
	}
	return k.execute(context.Background(), code, true, func(*message) {})
}

// call is code that calls a function of our extension.
func call(function, literal string) string {
	return `__import__("_cay").` + function + "(" + literal + ")"
}
