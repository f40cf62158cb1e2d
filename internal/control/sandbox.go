package control

import (
	"context"
	"errors"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/store"
)

// Create starts a sandbox and returns it when it runs.
func (c *Control) Create(ctx context.Context, spec cay.CreateSpec) (cay.Sandbox, error) {
	if err := checkTimeout(spec.Timeout); err != nil {
		return cay.Sandbox{}, err
	}
	auto, err := checkAuto(spec.Auto)
	if err != nil {
		return cay.Sandbox{}, err
	}
	spec.Auto = auto
	if spec.IdempotencyKey != "" {
		return c.createOnce(ctx, spec)
	}
	return c.create(ctx, spec, cay.Once{})
}

func (c *Control) create(ctx context.Context, spec cay.CreateSpec, once cay.Once) (cay.Sandbox, error) {
	c.collecting.RLock()
	e, err := c.choose(ctx, spec, once)
	c.collecting.RUnlock()
	if err != nil {
		return cay.Sandbox{}, err
	}
	defer e.release()
	if spec.Auto.On() {
		if err := c.putAuto(ctx, e, e.sandbox(), spec.Auto); err != nil {
			c.fail(ctx, e, err)
			return cay.Sandbox{}, err
		}
	}
	return c.start(ctx, e, spec.Timeout)
}

// choose makes a sandbox known that is to start from the template's present
// snapshot, and returns it locked.
func (c *Control) choose(ctx context.Context, spec cay.CreateSpec, once cay.Once) (e *entry, err error) {
	t, err := c.Template(ctx, spec.Team, spec.Template)
	if err != nil {
		return nil, err
	}
	if t.Build == "" || t.Snapshot == "" {
		return nil, cay.Errorf(cay.NotFound, "template %q not found ready: it has no finished build", spec.Template).
			WithHint("wait for its build, or build it again")
	}
	s := newSandbox(spec, t)
	s.Once = once
	id, instance, warm := c.node.Claim(c.instanceSpec(s))
	if warm {
		s.ID, s.Instance = id, instance
	}
	created := event(ctx, s, cay.SandboxCreated, cay.ReasonAsked, "template", string(t.ID), "alias", s.Alias)
	if warm && once.Key == "" && !spec.Auto.On() {
		e, err = c.addLater(s, created)
	} else {
		e, err = c.add(ctx, s, created)
	}
	if err != nil && warm {
		c.stop(ctx, instance, cay.CauseFailedStart)
	}
	return e, err
}

// add records a new sandbox as creating, with its first event, and returns it
// locked.
func (c *Control) add(ctx context.Context, s cay.Sandbox, created cay.Event) (*entry, error) {
	s.Node = c.nodeID
	e := newEntry(s)
	e.lock <- struct{}{}
	if err := c.enter(e); err != nil {
		return nil, err
	}
	if err := c.store.AddSandbox(ctx, s, created); err != nil {
		c.drop(s.ID)
		return nil, err
	}
	c.told.wake(s.Team)
	return e, nil
}

// addLater is add for one that runs in a moment, or is ended if the server is
// killed within that, as what no record wants: nobody was told of it. Its first
// event is recorded with what comes of it.
func (c *Control) addLater(s cay.Sandbox, created cay.Event) (*entry, error) {
	s.Node = c.nodeID
	e := newEntry(s)
	e.lock <- struct{}{}
	if err := c.enter(e); err != nil {
		return nil, err
	}
	e.later = &unrecorded{[]cay.Event{created}, c.pin(s.Snapshot)}
	return e, nil
}

// unrecorded is what a sandbox has that has no record yet.
type unrecorded struct {
	events []cay.Event // its first
	unpin  func()      // of its snapshot
}

func (e *entry) forgetLater() {
	if e.later != nil {
		e.later.unpin()
		e.later = nil
	}
}

func newSandbox(spec cay.CreateSpec, t cay.Template) cay.Sandbox {
	s := cay.Sandbox{
		ID: cay.NewSandboxID(), Team: spec.Team, Template: t.ID, Build: t.Build, Snapshot: t.Snapshot,
		Instance: cay.NewInstanceID(), State: cay.Creating, Limits: t.Limits,
		Metadata: spec.Metadata, Env: spec.Env, Network: spec.Network, Secure: spec.Secure,
		StartedAt: now(), Timeout: spec.Timeout, OnTimeout: spec.OnTimeout, AutoResume: spec.AutoResume,
	}
	if s.OnTimeout == "" {
		s.OnTimeout = cay.KillOnTimeout
	}
	s.EndAt = s.StartedAt.Add(spec.Timeout)
	if len(t.Names) > 0 {
		s.Alias = t.Names[0]
	}
	return s
}

// start has the node run a sandbox that is known as creating. The caller holds
// its lock.
func (c *Control) start(ctx context.Context, e *entry, timeout time.Duration) (cay.Sandbox, error) {
	s := e.sandbox()
	within, cancel := context.WithTimeout(ctx, createWithin)
	defer cancel()
	instance, err := c.node.Create(within, c.instanceSpec(s))
	if err == nil && ctx.Err() != nil { // nobody is left to be told its id
		err = ctx.Err()
	}
	if err == nil {
		s.State, s.StartedAt, s.Notice = cay.Running, now(), instance.Notice
		s.EndAt = s.StartedAt.Add(timeout)
		e.toldEnd = s.EndAt
		err = c.save(ctx, e, s, event(ctx, s, cay.SandboxRunning, cay.ReasonAsked, "endAt", stamp(s.EndAt), "notice", s.Notice))
	}
	if err == nil {
		return s, nil
	}
	c.fail(ctx, e, err)
	return cay.Sandbox{}, startError(err)
}

// startError says that it was the start that broke, and keeps what the node
// says to callers.
func startError(err error) error {
	if cay.KindOf(err) != cay.Internal {
		return err
	}
	out := cay.Wrap(cay.Internal, err, "the sandbox could not be started").WithCode("sandbox_create_failed")
	var ours *cay.Error
	if errors.As(err, &ours) && ours.Msg != "" {
		out.Msg, out.Hint = out.Msg+": "+ours.Msg, ours.Hint
	}
	return out
}

// fail ends a sandbox that could not be started. It leaves memory even if it
// cannot be recorded: a record that says creating is put right at the next
// start.
func (c *Control) fail(ctx context.Context, e *entry, why error) {
	if err := c.end(ctx, e, cay.CauseFailedStart, now(), visible(why)); err != nil {
		s := killed(e.sandbox(), cay.CauseFailedStart, now())
		c.log.Error("cannot record a failed start", "sandbox", s.ID, "error", err)
		e.current.Store(&s)
		e.forgetLater()
		c.drop(s.ID)
		c.stop(ctx, s.Instance, cay.CauseFailedStart)
		c.discard(ctx, s.Snapshot)
	}
}

func (c *Control) instanceSpec(s cay.Sandbox) cay.InstanceSpec {
	access, traffic := c.TokensOf(s)
	return cay.InstanceSpec{
		Instance: s.Instance, Sandbox: s.ID, Team: s.Team, Template: s.Template, Build: s.Build,
		Snapshot: s.Snapshot, Limits: s.Limits, Env: s.Env, Network: s.Network,
		AccessToken: access, TrafficToken: traffic,
	}
}

// TokensOf returns the tokens that a sandbox's clients need. Empty means that
// none is asked for.
func (c *Control) TokensOf(s cay.Sandbox) (access, traffic string) {
	if s.Secure {
		access = c.tokens.Access(s.ID)
	}
	if !s.Network.AllowPublic {
		traffic = c.tokens.Traffic(s.ID)
	}
	return access, traffic
}

// Get returns a team's sandbox that is not killed.
func (c *Control) Get(_ context.Context, team cay.TeamID, id cay.SandboxID) (cay.Sandbox, error) {
	e, err := c.find(team, id)
	if err != nil {
		return cay.Sandbox{}, err
	}
	s := e.sandbox()
	if s.State == cay.Killed {
		return cay.Sandbox{}, errNoSandbox(id)
	}
	return s, nil
}

// Kill ends a sandbox. When it returns nil the sandbox is over, or the node
// could not end it yet and is asked again until it has.
func (c *Control) Kill(ctx context.Context, team cay.TeamID, id cay.SandboxID) error {
	return c.change(ctx, team, id, func(e *entry, _ cay.Sandbox) error {
		return c.end(ctx, e, cay.CauseAsked, now(), "")
	})
}

// SetTimeout makes a sandbox end that long from now, sooner or later than it
// would have. Zero ends or pauses it at once.
func (c *Control) SetTimeout(ctx context.Context, team cay.TeamID, id cay.SandboxID, timeout time.Duration) error {
	if timeout != 0 {
		if err := checkTimeout(timeout); err != nil {
			return err
		}
	}
	return c.change(ctx, team, id, func(e *entry, s cay.Sandbox) error {
		if err := mustRun(s); err != nil {
			return err
		}
		if timeout == 0 {
			return c.timeOut(ctx, e, s)
		}
		s.EndAt = now().Add(timeout)
		return c.save(ctx, e, s, e.timeoutEvents(ctx, s)...)
	})
}

// Extend makes sure that a sandbox has at least that long from now. It never
// shortens its time: then EndAt stays as it is, to the bit.
func (c *Control) Extend(ctx context.Context, team cay.TeamID, id cay.SandboxID, timeout time.Duration) (cay.Sandbox, error) {
	var out cay.Sandbox
	if err := checkTimeout(timeout); err != nil {
		return out, err
	}
	err := c.change(ctx, team, id, func(e *entry, s cay.Sandbox) (err error) {
		if err := mustRun(s); err != nil {
			return err
		}
		out, err = c.extend(ctx, e, s, timeout)
		return err
	})
	return out, err
}

// extend is Extend for one who holds the lock.
func (c *Control) extend(ctx context.Context, e *entry, s cay.Sandbox, timeout time.Duration) (cay.Sandbox, error) {
	end := now().Add(timeout)
	if !end.After(s.EndAt) {
		return s, nil
	}
	s.EndAt = end
	return s, c.save(ctx, e, s, e.timeoutEvents(ctx, s)...)
}

// Refresh is Extend by E2B's older call.
func (c *Control) Refresh(ctx context.Context, team cay.TeamID, id cay.SandboxID, timeout time.Duration) error {
	_, err := c.Extend(ctx, team, id, timeout)
	return err
}

func mustRun(s cay.Sandbox) error {
	if s.State != cay.Running {
		return cay.Errorf(cay.Conflict, "sandbox %s is %s, not running", s.ID, s.State)
	}
	return nil
}

func checkTimeout(d time.Duration) error {
	switch {
	case d <= 0:
		return cay.Errorf(cay.Invalid, "timeout: must be more than 0 seconds")
	case d > MaxTimeout:
		return cay.Errorf(cay.Invalid, "timeout: must be at most %d seconds", int64(MaxTimeout/time.Second))
	}
	return nil
}

// Cursor is a place in a list of sandboxes.
type Cursor = store.Cursor

// Query says which of a team's sandboxes to list.
type Query struct {
	Team         cay.TeamID
	States       []cay.State
	Metadata     map[string]string
	Template     string // id or name; one that is not there finds nothing
	StartedAfter time.Time
	Ascending    bool
	After        *Cursor
	Limit        int // 0 means all
}

// Page is a part of a list. Next is nil on the last one. Total counts what the
// query finds on all pages.
type Page struct {
	Sandboxes []cay.Sandbox
	Next      *Cursor
	Total     map[cay.State]int
}

// List lists a team's sandboxes by their start.
func (c *Control) List(ctx context.Context, q Query) (Page, error) {
	page := Page{Total: make(map[cay.State]int)}
	sq := store.SandboxQuery{
		Team: q.Team, States: q.States, Metadata: q.Metadata, StartedAfter: q.StartedAfter,
		Ascending: q.Ascending, After: q.After,
	}
	if q.Template != "" {
		t, err := c.Template(ctx, q.Team, q.Template)
		switch {
		case cay.KindOf(err) == cay.NotFound:
			return page, nil
		case err != nil:
			return page, err
		}
		sq.Template = t.ID
	}
	for _, state := range q.States {
		one := sq
		one.States = []cay.State{state}
		n, err := c.store.CountSandboxes(ctx, one)
		if err != nil {
			return page, err
		}
		page.Total[state] = n
	}
	if q.Limit > 0 {
		sq.Limit = q.Limit + 1 // one more tells whether there is a next page
	}
	list, err := c.store.Sandboxes(ctx, sq)
	if err != nil {
		return page, err
	}
	if q.Limit > 0 && len(list) > q.Limit {
		list = list[:q.Limit]
		last := list[len(list)-1]
		page.Next = &Cursor{StartedAt: last.StartedAt, ID: last.ID}
	}
	page.Sandboxes = list
	return page, nil
}
