package control

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/store"
)

// Create starts a sandbox and returns it when it runs.
func (c *Control) Create(ctx context.Context, who cay.Caller, spec cay.CreateSpec) (cay.Sandbox, error) {
	if err := who.May(cay.WriteSandboxes); err != nil {
		return cay.Sandbox{}, err
	}
	if err := checkTimeout(spec.Timeout); err != nil {
		return cay.Sandbox{}, err
	}
	if err := cay.CheckMetadata(spec.Metadata); err != nil {
		return cay.Sandbox{}, err
	}
	auto, err := checkAuto(spec.Auto)
	if err != nil {
		return cay.Sandbox{}, err
	}
	spec.Auto = auto
	if spec.IdempotencyKey != "" {
		return c.createOnce(ctx, who, spec)
	}
	return c.create(ctx, who, spec, cay.Once{})
}

func (c *Control) create(ctx context.Context, who cay.Caller, spec cay.CreateSpec, once cay.Once) (cay.Sandbox, error) {
	if err := c.hasSecrets(ctx, who.Team, spec.Network); err != nil {
		return cay.Sandbox{}, err
	}
	t, release, err := c.held(ctx, who.Team, spec.Template, true)
	if err != nil {
		return cay.Sandbox{}, err
	}
	defer release()
	if t.Build == "" || t.Snapshot == "" {
		return cay.Sandbox{}, cay.Errorf(cay.NotFound, "template %q not found ready: it has no finished build", spec.Template).
			WithHint("wait for its build, or build it again")
	}
	l := launch{
		sandbox: newSandbox(who.Team, spec, t), warm: true, timeout: spec.Timeout,
		created: func(s cay.Sandbox) cay.Event {
			return event(who, s, cay.SandboxCreated, cay.ReasonAsked, "template", string(t.ID), "alias", s.Alias)
		},
	}
	l.sandbox.Once, l.branch.Auto = once, spec.Auto
	return c.launch(ctx, who, l)
}

func newSandbox(team cay.TeamID, spec cay.CreateSpec, t cay.Template) cay.Sandbox {
	s := cay.Sandbox{
		ID: cay.NewSandboxID(), Team: team, Template: t.ID, Build: t.Build, Snapshot: t.Snapshot,
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

// startError says that it was the start that broke, and keeps what the node
// says to callers.
func startError(err error) error {
	if cay.KindOf(err) != cay.Internal {
		return err
	}
	out := cay.Wrap(cay.Internal, err, "the sandbox could not be started").WithCode(cay.CodeCreateFailed)
	var ours *cay.Error
	if errors.As(err, &ours) && ours.Msg != "" {
		out.Msg, out.Hint, out.Code = out.Msg+": "+ours.Msg, ours.Hint, cmp.Or(ours.Code, out.Code)
	}
	return out
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
func (c *Control) Get(_ context.Context, who cay.Caller, id cay.SandboxID) (cay.Sandbox, error) {
	if err := who.May(cay.ReadSandboxes); err != nil {
		return cay.Sandbox{}, err
	}
	return c.get(who.Team, id)
}

func (c *Control) get(team cay.TeamID, id cay.SandboxID) (cay.Sandbox, error) {
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
func (c *Control) Kill(ctx context.Context, who cay.Caller, id cay.SandboxID) error {
	if err := who.May(cay.WriteSandboxes); err != nil {
		return err
	}
	return c.change(ctx, who.Team, id, func(e *entry, _ cay.Sandbox) error {
		return c.end(ctx, who, e, cay.CauseAsked, now(), "")
	})
}

// SetTimeout makes a sandbox end that long from now, sooner or later than it
// would have. Zero ends or pauses it at once.
func (c *Control) SetTimeout(ctx context.Context, who cay.Caller, id cay.SandboxID, timeout time.Duration) error {
	if err := who.May(cay.WriteSandboxes); err != nil {
		return err
	}
	if timeout != 0 {
		if err := checkTimeout(timeout); err != nil {
			return err
		}
	}
	return c.change(ctx, who.Team, id, func(e *entry, s cay.Sandbox) error {
		if err := mustRun(s); err != nil {
			return err
		}
		if timeout == 0 {
			return c.timeOut(ctx, who, e, s)
		}
		s.EndAt = now().Add(timeout)
		return c.save(ctx, e, s, e.timeoutEvents(who, s)...)
	})
}

// Extend makes sure that a sandbox has at least that long from now. It never
// shortens its time: then EndAt stays as it is, to the bit.
func (c *Control) Extend(ctx context.Context, who cay.Caller, id cay.SandboxID, timeout time.Duration) (cay.Sandbox, error) {
	if err := who.May(cay.WriteSandboxes); err != nil {
		return cay.Sandbox{}, err
	}
	var out cay.Sandbox
	if err := checkTimeout(timeout); err != nil {
		return out, err
	}
	err := c.change(ctx, who.Team, id, func(e *entry, s cay.Sandbox) (err error) {
		if err := mustRun(s); err != nil {
			return err
		}
		out, err = c.extend(ctx, who, e, s, timeout)
		return err
	})
	return out, err
}

// extend is Extend for one who holds the lock.
func (c *Control) extend(ctx context.Context, who cay.Caller, e *entry, s cay.Sandbox, timeout time.Duration) (cay.Sandbox, error) {
	end := now().Add(timeout)
	if !end.After(s.EndAt) {
		return s, nil
	}
	s.EndAt = end
	return s, c.save(ctx, e, s, e.timeoutEvents(who, s)...)
}

// Refresh is Extend by E2B's older call.
func (c *Control) Refresh(ctx context.Context, who cay.Caller, id cay.SandboxID, timeout time.Duration) error {
	if err := who.May(cay.WriteSandboxes); err != nil {
		return err
	}
	_, err := c.Extend(ctx, who, id, timeout)
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
func (c *Control) List(ctx context.Context, who cay.Caller, q Query) (Page, error) {
	if err := who.May(cay.ReadSandboxes); err != nil {
		return Page{}, err
	}
	page := Page{Total: make(map[cay.State]int)}
	sq := store.SandboxQuery{
		Team: who.Team, States: q.States, Metadata: q.Metadata, StartedAfter: q.StartedAfter,
		Ascending: q.Ascending, After: q.After,
	}
	if q.Template != "" {
		t, err := c.findTemplate(ctx, who.Team, q.Template)
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
