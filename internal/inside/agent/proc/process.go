package proc

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"connectrpc.com/connect"

	pb "github.com/cay-run/cay/api/proto/process"
	"github.com/cay-run/cay/internal/inside/agent/life"
	"github.com/cay-run/cay/internal/inside/agent/reap"
)

// backlog is how many events may wait for one subscriber. When that many do,
// the output is read no further and the process itself has to wait.
const backlog = 8

// process is one process and its subscribers.
type process struct {
	pid     uint32
	tag     *string
	config  *pb.ProcessConfig
	child   *reap.Child
	started time.Time // set by the table

	outputs []*output
	stdin   *input     // nil where there is none
	tty     *input     // nil without a terminal
	screen  *screen    // what the terminal showed; nil without one, guarded by mu
	life    *life.Life // nil without an end

	mu   sync.Mutex // serialises changes of subs, and those of screen with them
	subs atomic.Pointer[[]*subscriber]

	expired chan struct{} // closed when its life is over
	ended   chan struct{} // closed when end is set and every output was emitted
	end     *pb.ProcessEvent_EndEvent
	killer  atomic.Pointer[string] // why the guard ended it or one of its children
}

// subscriber follows a process from when it subscribed.
type subscriber struct {
	events chan message
	gone   chan struct{}
}

// message is an event and the slab that it points into, if any.
type message struct {
	event *pb.ProcessEvent
	in    *slab
}

// subscribe follows the process from now on. With replay it also returns what its
// terminal showed before, to the byte.
func (p *process) subscribe(replay bool) (s *subscriber, shown []byte) {
	s = &subscriber{events: make(chan message, backlog), gone: make(chan struct{})}
	p.mu.Lock()
	defer p.mu.Unlock()
	subs := append(slices.Clone(p.subscribers()), s)
	p.subs.Store(&subs)
	if replay && p.screen != nil {
		shown = p.screen.replay()
	}
	return s, shown
}

func (p *process) unsubscribe(s *subscriber) {
	p.mu.Lock()
	defer p.mu.Unlock()
	subs := slices.DeleteFunc(slices.Clone(p.subscribers()), func(o *subscriber) bool { return o == s })
	p.subs.Store(&subs)
	close(s.gone)
}

func (p *process) subscribers() []*subscriber {
	if subs := p.subs.Load(); subs != nil {
		return *subs
	}
	return nil
}

// show publishes output of the terminal, and keeps it. A subscriber that comes
// meanwhile has it from one of the two.
func (p *process) show(m message, b []byte) {
	p.mu.Lock()
	p.screen.write(b)
	subs := p.subscribers()
	p.mu.Unlock()
	publish(subs, m)
}

// forget gives up what the terminal showed.
func (p *process) forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.screen != nil {
		p.screen.free()
	}
}

// publish hands an event to subscribers, and waits for those that are behind.
func publish(subs []*subscriber, m message) {
	for _, s := range subs {
		m.in.hold()
		select {
		case s.events <- m:
		case <-s.gone:
			m.in.release()
		}
	}
}

// run follows the process to its end, then calls buried. It returns when the
// end is known to every subscriber that listens.
func (p *process) run(buried func()) {
	var wg sync.WaitGroup
	for _, o := range p.outputs {
		wg.Add(1)
		go func() {
			eof := o.forward()
			wg.Done()
			if eof {
				o.file.Close()
			} else {
				o.discard()
			}
		}()
	}
	status := p.child.Status()
	p.life.Stop()
	buried()
	if p.stdin != nil {
		_ = p.stdin.close() // no client is left to tell
	}
	deadline := time.Now().Add(grace)
	for _, o := range p.outputs {
		_ = o.file.SetReadDeadline(deadline) // fails where it is over already
	}
	wg.Wait()
	p.end = endEvent(status, p.killer.Load())
	p.explain()
	close(p.ended)
}

// explain writes why the guard ended the process where people look: E2B's clients
// show them what was written to stderr, and not the end's own error.
func (p *process) explain() {
	killer := p.killer.Load()
	if killer == nil || p.end.GetExitCode() == 0 {
		return
	}
	if p.tty != nil {
		text := []byte("\r\n" + *killer + "\r\n")
		p.show(outputOf(ptyEvent(text), nil), text)
		return
	}
	publish(p.subscribers(), outputOf(stderrEvent([]byte(*killer+"\n")), nil))
}

// gone reports whether the process is dead and reaped.
func (p *process) gone() bool {
	select {
	case <-p.child.Done():
		return true
	default:
		return false
	}
}

// expire ends the process because its time is up.
func (p *process) expire() {
	close(p.expired)
	_ = p.child.Signal(syscall.SIGKILL) // it may have ended meanwhile
}

// follow sends what the terminal showed before, and the process's events until its
// end. With owner it fails when the process's time is up.
func (p *process) follow(ctx context.Context, s *subscriber, shown []byte, owner bool, keepalive time.Duration, send func(*pb.ProcessEvent) error) error {
	start := &pb.ProcessEvent_Start{Start: &pb.ProcessEvent_StartEvent{Pid: p.pid}}
	if err := send(&pb.ProcessEvent{Event: start}); err != nil {
		return err
	}
	for part := range slices.Chunk(shown, ttyChunk) {
		if err := send(&pb.ProcessEvent{Event: &pb.ProcessEvent_Data{Data: ptyEvent(part)}}); err != nil {
			return err
		}
	}
	expired := p.expired
	if !owner {
		expired = nil
	}
	ticker := time.NewTicker(keepalive)
	defer ticker.Stop()
	for {
		var m message
		select {
		case <-expired:
			return errExpired()
		case m = <-s.events:
		case <-p.ended:
			return p.finish(ctx, s, expired, send)
		case <-ticker.C:
			m.event = &pb.ProcessEvent{Event: &pb.ProcessEvent_Keepalive{Keepalive: &pb.ProcessEvent_KeepAlive{}}}
		case <-ctx.Done():
			return ctx.Err()
		}
		expect(ctx, len(s.events) > 0)
		if err := send(m.event); err != nil {
			return err
		}
		m.in.release()
	}
}

// finish sends what is left of an ended process. Everything that it wrote
// waits in s by now.
func (p *process) finish(ctx context.Context, s *subscriber, expired <-chan struct{}, send func(*pb.ProcessEvent) error) error {
	for {
		select {
		case <-expired:
			return errExpired()
		case m := <-s.events:
			expect(ctx, true)
			if err := send(m.event); err != nil {
				return err
			}
			m.in.release()
		default:
			// The end of the stream follows at once, and with it what is held.
			expect(ctx, true)
			return send(&pb.ProcessEvent{Event: &pb.ProcessEvent_End{End: p.end}})
		}
	}
}

func errExpired() error {
	return connect.NewError(connect.CodeDeadlineExceeded, context.DeadlineExceeded)
}

// endEvent describes how a process ended, in the words that clients compare.
func endEvent(status syscall.WaitStatus, killer *string) *pb.ProcessEvent_EndEvent {
	e := &pb.ProcessEvent_EndEvent{ExitCode: -1}
	switch {
	case status.Exited():
		e.ExitCode, e.Exited = int32(status.ExitStatus()), true
		e.Status = fmt.Sprintf("exit status %d", status.ExitStatus())
	case status.Signaled():
		e.Status = "signal: " + status.Signal().String()
		if status.CoreDump() {
			e.Status += " (core dumped)"
		}
	}
	if e.GetExitCode() == 0 {
		return e
	}
	reason := e.GetStatus()
	if killer != nil {
		reason += ": " + *killer
	}
	e.Error = &reason
	return e
}
