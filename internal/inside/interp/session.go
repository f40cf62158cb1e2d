package interp

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// kernel is a process that runs code of one language and keeps its state. It
// is asked for one thing at a time.
type kernel interface {
	// run runs code and reports what it does to t, to the end. When ctx ends
	// the code is interrupted.
	run(ctx context.Context, code source, t *translator) error
	// prepare does what p says, before code runs.
	prepare(p preparation) error
	// restore takes back the environment of the last prepare's call.
	restore() error
	// warm has the kernel load a part of what most code needs, and reports
	// whether there is more.
	warm(part int) (more bool, err error)
	proc() *process
}

// source is code as it came.
type source struct {
	text, language string
	silent         bool // it is no client's: it does not count. Python only
}

// session is what the API calls a context: a kernel that is replaced when it
// ends, used by one execution at a time.
type session struct {
	ID       string `json:"id"`
	Language string `json:"language"`
	Cwd      string `json:"cwd"`

	start func(context.Context) (kernel, map[string]string, error) // with the environment it has
	env   func() map[string]string
	close context.CancelFunc
	ended <-chan struct{} // the session is closed

	turn chan struct{} // holds one token while no code executes

	warms  atomic.Bool   // a kernel that replaces another is warmed, as that was
	wanted chan struct{} // closed when the kernel is first asked for
	want   sync.Once

	mu      sync.Mutex
	k       kernel        // nil while there is none
	err     error         // why there is no kernel
	changed chan struct{} // closed and replaced when k or err change
	applied map[string]string
	entropy []byte // to be mixed in before the next execution
	stir    []byte // likewise, where no code can have set a seed
}

// errClosed says that the context was deleted.
var errClosed = errors.New("the context is closed")

// supervise keeps a kernel running, once one was asked for, until ctx ends.
func (s *session) supervise(ctx context.Context) {
	defer s.set(nil, nil, errClosed)
	select {
	case <-s.wanted:
	case <-ctx.Done():
		return
	}
	const shortest, longest = 100 * time.Millisecond, 5 * time.Second
	pause := shortest
	for first := true; ctx.Err() == nil; first = false {
		began := time.Now()
		k, env, err := s.start(ctx)
		s.set(k, env, err)
		if err == nil {
			p := k.proc()
			if s.warms.Load() && !first {
				s.warmUntil(ctx, p.done)
			}
			<-p.done
			s.set(nil, nil, nil)
			if p.restarting.Load() || time.Since(began) > time.Minute {
				pause = shortest
				continue
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
		pause = min(2*pause, longest)
		if err != nil {
			s.set(nil, nil, nil)
		}
	}
}

func (s *session) set(k kernel, env map[string]string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.k, s.applied, s.err = k, env, err
	close(s.changed)
	s.changed = make(chan struct{})
}

// kernel waits for a kernel other than old.
func (s *session) kernel(ctx context.Context, old kernel) (kernel, error) {
	s.want.Do(func() { close(s.wanted) })
	for {
		s.mu.Lock()
		k, err, changed := s.k, s.err, s.changed
		s.mu.Unlock()
		switch {
		case err != nil:
			return nil, err
		case k != nil && k != old:
			return k, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// restart replaces the kernel, whatever it is doing.
func (s *session) restart(ctx context.Context) error {
	select {
	case <-s.wanted:
	default:
		return nil // it has not begun
	}
	k, err := s.kernel(ctx, nil)
	if err != nil {
		return err
	}
	k.proc().restarting.Store(true)
	k.proc().kill()
	_, err = s.kernel(ctx, k)
	return err
}

// acquire takes the turn. The caller gives it back with release.
func (s *session) acquire(ctx context.Context) error {
	select {
	case <-s.turn:
		return nil
	case <-s.ended:
		return errClosed
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *session) release() { s.turn <- struct{}{} }

// execute runs code in its turn and emits its events, end_of_execution last.
// It returns when the context is ready for another execution, which can be a
// while after ctx has ended. emit must not block once ctx has.
func (s *session) execute(ctx context.Context, code source, env map[string]string, emit func(any)) {
	if err := s.acquire(ctx); err != nil {
		if errors.Is(err, errClosed) {
			s.fail(&translator{emit: emit}, nil, err)
			emit(endOfExecution)
		}
		return
	}
	defer s.release()
	if ctx.Err() != nil {
		return // no client waits for it any more
	}
	t := &translator{emit: emit}
	k, err := s.kernel(ctx, nil)
	if err == nil && k.proc().dead() {
		k, err = s.kernel(ctx, k)
	}
	if err == nil {
		err = s.prepare(k, env)
	}
	if err == nil {
		err = k.run(ctx, code, t)
	}
	if err != nil {
		s.fail(t, k, err)
	}
	emit(endOfExecution)
	if err == nil && len(env) > 0 {
		_ = k.restore()
	}
}

// fail reports an end of the execution that did not come from its code. It is
// reported even after an error of the code itself.
func (s *session) fail(t *translator, k kernel, err error) {
	t.failed = false
	select {
	case <-s.ended:
		err = errClosed
	default:
	}
	switch {
	case k != nil && k.proc().restarting.Load():
		t.error(errRestarting, "the context was restarted before the execution was finished", "")
	case errors.Is(err, errClosed):
		t.error(errUnexpectedEnd, "the context was deleted before the execution was finished", "")
	case errors.Is(err, errStuck):
		t.error(errUnexpectedEnd, "the code could not be interrupted: the kernel was ended, a new one takes its place and variables are lost", "")
	case k != nil && errors.Is(err, errKernelGone):
		status, words := k.proc().ending()
		t.error(errUnexpectedEnd, "the kernel ended ("+status+") before the execution was finished; a new one takes its place and variables are lost", words)
	default:
		t.error(errUnexpectedEnd, err.Error(), "")
	}
}

// preparation is what a kernel is told before an execution, if anything.
type preparation struct {
	Set     map[string]string `json:"set,omitempty"`     // sandbox-wide environment
	Unset   []string          `json:"unset,omitempty"`   // gone from it
	Entropy []byte            `json:"entropy,omitempty"` // base64 in JSON
	Stir    []byte            `json:"stir,omitempty"`    // for generators alone that no code can seed
	Call    map[string]string `json:"call,omitempty"`    // this execution's environment
}

// variable is a part of a preparation: "set" for the sandbox's, "call" for the
// execution's.
type variable struct{ verb, name, value string }

// variables are what a kernel sets, in this order: a call's value hides the
// sandbox's, and gives way to it afterwards.
func (p preparation) variables() (all []variable) {
	for _, part := range []struct {
		verb   string
		values map[string]string
	}{{"set", p.Set}, {"call", p.Call}} {
		for _, name := range slices.Sorted(maps.Keys(part.values)) {
			all = append(all, variable{part.verb, name, part.values[name]})
		}
	}
	return all
}

// prepare brings the kernel up to date: the sandbox's environment where it
// changed since the last time, so that what the code itself has set stays;
// new entropy; the variables of this call.
func (s *session) prepare(k kernel, call map[string]string) error {
	env := s.env()
	s.mu.Lock()
	p := preparation{Entropy: s.entropy, Stir: s.stir, Call: call}
	if s.k == k && !maps.Equal(s.applied, env) {
		p.Set = env
		for name := range s.applied {
			if _, ok := env[name]; !ok {
				p.Unset = append(p.Unset, name)
			}
		}
	}
	s.mu.Unlock()
	if p.Set == nil && p.Unset == nil && p.Entropy == nil && p.Stir == nil && len(call) == 0 {
		return nil
	}
	if err := k.prepare(p); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.k == k {
		s.applied = env
	}
	if string(s.entropy) == string(p.Entropy) {
		s.entropy = nil
	}
	if string(s.stir) == string(p.Stir) {
		s.stir = nil
	}
	return nil
}

// warm has the kernel import what most code imports, a part at a time:
// executions need not wait for all of it.
func (s *session) warm(ctx context.Context) error {
	k, err := s.kernel(ctx, nil)
	for part, more := 0, true; more && err == nil; part++ {
		if err = s.acquire(ctx); err == nil {
			more, err = k.warm(part)
			s.release()
		}
	}
	return err
}

// warmUntil warms the kernel unless over is closed first.
func (s *session) warmUntil(ctx context.Context, over <-chan struct{}) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	warmed := make(chan struct{})
	go func() {
		defer close(warmed)
		_ = s.warm(ctx)
	}()
	select {
	case <-warmed:
	case <-over:
		cancel()
		<-warmed
	}
}

// catchUp prepares the kernel now if nothing runs; otherwise the next
// execution does it.
func (s *session) catchUp() {
	select {
	case <-s.turn:
	default:
		return
	}
	defer s.release()
	s.mu.Lock()
	k := s.k
	s.mu.Unlock()
	if k != nil {
		_ = s.prepare(k, nil)
	}
}
