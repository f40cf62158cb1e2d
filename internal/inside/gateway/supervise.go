package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	// A dead server is started again after a time that doubles, from firstWait
	// to longestWait, and is firstWait again once one has lived for calm.
	firstWait   = 500 * time.Millisecond
	longestWait = time.Minute
	calm        = time.Minute
	// probeTime bounds the wait for the answer to a ping, which a server is sent
	// that has let a call wait for too long.
	probeTime = 10 * time.Second
	// endTime bounds the wait for a program to end by itself.
	endTime = 2 * time.Second
	// maxJunk bounds the lines of one life of a server that are logged.
	maxJunk = 200
	// tailSize is how much of its last words an error has.
	tailSize = 1000
)

// Server is a program that speaks the protocol on its standard streams.
type Server struct {
	Name string
	Argv []string
	Env  []string
	Dir  string
	// Credential is the user that it runs as; nil is the gateway's own.
	Credential *syscall.Credential
	// Tools are those that clients may use; nil are all.
	Tools []string
	// Ask are those whose calls a person is asked about; anyTool is all.
	Ask []string
	// Secrets are values that are not logged.
	Secrets []string
}

// supervised is a server that is started again when it ends.
type supervised struct {
	Server
	log   *slog.Logger
	cfg   Config
	first chan error    // what became of the first start; one value
	gone  chan struct{} // closed when it is over for good

	mu      sync.Mutex
	peer    *peer // nil while it is down
	offer   offer // of its last life
	down    error // why it is down
	next    time.Time
	changed func() // told when the offer is another; may be nil
}

// supervise starts a server and keeps it running until ctx ends.
func supervise(ctx context.Context, s Server, cfg Config) *supervised {
	v := &supervised{
		Server: s, log: cfg.Log.With("server", s.Name), cfg: cfg,
		first: make(chan error, 1), gone: make(chan struct{}),
	}
	go v.keep(ctx)
	return v
}

func (v *supervised) keep(ctx context.Context) {
	defer close(v.gone)
	wait := firstWait
	for started := false; ; {
		begun := time.Now()
		ready, err := v.live(ctx, func() {
			if !started {
				v.first <- nil
				started = true
			}
		})
		if !started {
			v.first <- fmt.Errorf("server %s does not start: %w", v.Name, err)
			return
		}
		if ready && time.Since(begun) > calm {
			wait = firstWait
		}
		v.fall(err, wait)
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
			wait = min(2*wait, longestWait)
		}
	}
}

// fall notes that the server is down.
func (v *supervised) fall(err error, wait time.Duration) {
	v.log.Warn("server is down", "err", err, "again", wait)
	v.mu.Lock()
	defer v.mu.Unlock()
	v.peer, v.down, v.next = nil, err, time.Now().Add(wait)
}

// live is one life of a server, from its start to its end. ready is called once
// it has said what it has.
func (v *supervised) live(ctx context.Context, ready func()) (was bool, err error) {
	words := &saying{log: v.log, hide: hiding(v.Secrets), left: maxJunk}
	process, err := v.start(words)
	if err != nil {
		return false, err
	}
	refresh := make(chan struct{}, 1)
	p := newPeer(process.out, process.in, maxLine, func(method string, params json.RawMessage) {
		switch {
		case strings.HasSuffix(method, "/list_changed"):
			select {
			case refresh <- struct{}{}:
			default: // one is due already
			}
		case method == "notifications/message":
			words.line(params)
		}
	}, words.line)
	defer func() {
		if ended := process.end(p.done); err == nil || errors.Is(err, errGone) {
			err = ended
		}
		if tail := words.tail(); tail != "" {
			err = fmt.Errorf("%w; its last words: %s", err, tail)
		}
	}()
	bounded, stop := context.WithTimeout(ctx, v.cfg.StartTime)
	o, h, err := v.meet(bounded, p, words.line)
	stop()
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("it does not answer within %s", v.cfg.StartTime)
	}
	if err != nil {
		return false, err
	}
	v.rise(p, o)
	ready()
	for {
		select {
		case <-ctx.Done():
			return true, ctx.Err()
		case <-p.done:
			return true, nil
		case <-p.broken:
			return true, errors.New("it hangs")
		case <-refresh:
			bounded, stop := context.WithTimeout(ctx, v.cfg.StartTime)
			o, err := offered(bounded, p, h, words.line)
			stop()
			if err != nil {
				v.log.Warn("what the server has now is not known", "err", err)
				continue
			}
			v.rise(p, o)
		}
	}
}

func (v *supervised) meet(ctx context.Context, p *peer, junk func([]byte)) (offer, hello, error) {
	h, err := p.greet(ctx, v.cfg.Version)
	if err != nil {
		return offer{}, h, err
	}
	o, err := offered(ctx, p, h, junk)
	return o, h, err
}

// rise notes that the server is there, with what it has.
func (v *supervised) rise(p *peer, o offer) {
	v.mu.Lock()
	v.peer, v.offer, v.down = p, o, nil
	changed := v.changed
	v.mu.Unlock()
	if changed != nil {
		changed()
	}
}

// call asks the server, or says why it cannot be asked. No request is repeated:
// what became of it when a server died is not known.
func (v *supervised) call(ctx context.Context, method string, params map[string]any, progress func(json.RawMessage)) (json.RawMessage, error) {
	v.mu.Lock()
	p, down, next := v.peer, v.down, v.next
	v.mu.Unlock()
	if p == nil {
		again := max(0, time.Until(next)).Round(100 * time.Millisecond)
		return nil, fmt.Errorf("server %s is down and is started again in %s: %w", v.Name, again, down)
	}
	bounded, stop := context.WithTimeout(ctx, v.cfg.CallTime)
	defer stop()
	raw, err := p.call(bounded, method, params, progress)
	var refused *refusal
	switch {
	case err == nil, errors.As(err, &refused), ctx.Err() != nil:
		return raw, err
	case errors.Is(err, context.DeadlineExceeded):
		go p.probe(context.WithoutCancel(ctx), min(v.cfg.CallTime, probeTime))
		return nil, fmt.Errorf("server %s does not answer within %s: the call is cancelled", v.Name, v.cfg.CallTime)
	case errors.Is(err, errGone):
		return nil, fmt.Errorf("server %s: %w, and is started again; the call is not repeated", v.Name, err)
	}
	return nil, fmt.Errorf("server %s: %w", v.Name, err)
}

// process is a program with its standard streams.
type process struct {
	cmd     *exec.Cmd
	in, out *os.File // its input, and its output
	waited  chan error
}

func (v *supervised) start(words *saying) (*process, error) {
	in, inOurs, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer in.Close()
	outOurs, out, err := os.Pipe()
	if err != nil {
		_ = inOurs.Close()
		return nil, err
	}
	defer out.Close()
	cmd := exec.Command(v.Argv[0], v.Argv[1:]...)
	cmd.Dir, cmd.Env = v.Dir, v.Env
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, out, words
	cmd.WaitDelay = endTime // for a child of it that holds standard error
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Credential: v.Credential}
	if err := cmd.Start(); err != nil {
		_, _ = inOurs.Close(), outOurs.Close()
		return nil, err
	}
	p := &process{cmd: cmd, in: inOurs, out: outOurs, waited: make(chan error, 1)}
	go func() { p.waited <- cmd.Wait() }()
	return p, nil
}

// end ends the program with all that it started, and says how it ended. read is
// closed when its output is read to the end.
func (p *process) end(read <-chan struct{}) error {
	_ = p.in.Close() // it may be closed already
	var err error
	select {
	case err = <-p.waited:
	case <-time.After(endTime):
		_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
		err = <-p.waited
	}
	_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL) // what it left behind, if anything
	_ = p.out.Close()
	<-read
	if err == nil {
		return errors.New("it ended (exit status 0)")
	}
	return fmt.Errorf("it ended (%w)", err)
}

// saying is what a server writes that is no message: its lines go to the log,
// up to a number, and the last are kept.
type saying struct {
	log  *slog.Logger
	hide *strings.Replacer

	mu   sync.Mutex
	part []byte
	last []byte
	left int
}

// Write takes standard error.
func (s *saying) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.part = append(s.part, b...)
	for {
		line, rest, found := bytes.Cut(s.part, []byte("\n"))
		if !found {
			break
		}
		s.say(line)
		s.part = append(s.part[:0], rest...)
	}
	if len(s.part) > 4*tailSize {
		s.say(s.part)
		s.part = s.part[:0]
	}
	return len(b), nil
}

// line takes one line of standard output.
func (s *saying) line(b []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.say(b)
}

func (s *saying) say(line []byte) {
	text := strings.TrimSpace(s.hide.Replace(strings.ToValidUTF8(string(line[:min(len(line), 4*tailSize)]), "�")))
	if text == "" {
		return
	}
	s.last = append(append(s.last, text...), '\n')
	if over := len(s.last) - tailSize; over > 0 {
		s.last = s.last[over:]
	}
	switch s.left--; {
	case s.left > 0:
		s.log.Info("server says", "line", text)
	case s.left == 0:
		s.log.Info("server says more than is logged")
	}
}

func (s *saying) tail() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.TrimSpace(strings.ToValidUTF8(string(s.last), "") + s.hide.Replace(strings.ToValidUTF8(string(s.part), "")))
}

// hiding replaces secrets by stars.
func hiding(secrets []string) *strings.Replacer {
	var pairs []string
	for _, s := range secrets {
		if len(s) >= 4 {
			pairs = append(pairs, s, "***")
		}
	}
	return strings.NewReplacer(pairs...)
}
