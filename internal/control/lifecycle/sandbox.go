package lifecycle

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control/ledger"
	"github.com/cay-run/cay/internal/trail"
)

// Create starts a sandbox and returns it when it runs.
func (c *Controller) Create(ctx context.Context, who cay.Caller, spec cay.CreateSpec) (cay.Sandbox, error) {
	if err := who.May(cay.WriteSandboxes); err != nil {
		return cay.Sandbox{}, err
	}
	if err := checkTimeout(spec.Timeout); err != nil {
		return cay.Sandbox{}, err
	}
	marked, err := who.Marked(spec.Metadata)
	if err != nil {
		return cay.Sandbox{}, err
	}
	spec.Metadata = marked
	if err := cay.CheckMetadata(spec.Metadata); err != nil {
		return cay.Sandbox{}, err
	}
	auto, err := checkAuto(spec.Auto)
	if err != nil {
		return cay.Sandbox{}, err
	}
	spec.Auto = auto
	if who.May(cay.ExecSandboxes) != nil { // else the caller would reach what is inside without a token
		spec.Secure = true
	}
	if spec.IdempotencyKey != "" {
		return c.createOnce(ctx, who, spec)
	}
	return c.create(ctx, who, spec, cay.Once{})
}

func (c *Controller) create(ctx context.Context, who cay.Caller, spec cay.CreateSpec, once cay.Once) (out cay.Sandbox, err error) {
	ctx, done := trail.Begin(ctx, trail.Create)
	defer func() { done(err) }()
	if err := spec.Network.HasIdentities(); err != nil {
		return cay.Sandbox{}, err
	}
	if err := c.hasSecrets(ctx, who.Team, spec.Network); err != nil {
		return cay.Sandbox{}, err
	}
	if err := c.isHere(who.Team, spec.Near); err != nil {
		return cay.Sandbox{}, err
	}
	t, release, err := c.ledger.Hold(ctx, who.Team, spec.Template, true)
	if err != nil {
		return cay.Sandbox{}, err
	}
	defer release()
	if err := c.ledger.MayStart(ctx, who, t.ID); err != nil {
		return cay.Sandbox{}, err
	}
	if t.Build == "" || t.Snapshot == "" {
		return cay.Sandbox{}, c.ledger.NoTag(ctx, t, spec.Template, cay.DefaultTag)
	}
	mounts, err := c.mountsOf(ctx, who, spec.Volumes, t)
	if err != nil {
		return cay.Sandbox{}, err
	}
	l := launch{
		sandbox: newSandbox(who.Team, spec, t), warm: true, placed: cay.MayGoElsewhere(ctx), timeout: spec.Timeout,
		created: func(s cay.Sandbox) cay.Event {
			return ledger.NewEvent(who, s, cay.SandboxCreated, cay.ReasonAsked, "template", string(t.ID), "alias", s.Alias)
		},
	}
	l.sandbox.Once, l.branch.Auto, l.sandbox.Volumes = once, spec.Auto, mounts
	return c.launch(ctx, who, l)
}

// isHere refuses a create beside a sandbox that this node does not have; a front brings others
// to their nodes.
func (c *Controller) isHere(team cay.TeamID, near cay.SandboxID) error {
	if near == "" {
		return nil
	}
	if _, err := c.get(team, near); err != nil {
		return cay.Wrap(cay.KindOf(err), err, "near: sandbox %q not found", string(near))
	}
	return nil
}

func newSandbox(team cay.TeamID, spec cay.CreateSpec, t cay.Template) cay.Sandbox {
	s := cay.Sandbox{
		ID: cay.NewSandboxID(), Team: team, Template: t.ID, Build: t.Build, Snapshot: t.Snapshot,
		Instance: cay.NewInstanceID(), State: cay.Creating, Limits: t.Limits,
		Metadata: spec.Metadata, Env: spec.Env, Network: spec.Network, Secure: spec.Secure,
		StartedAt: ledger.Now(), Timeout: spec.Timeout, OnTimeout: spec.OnTimeout, AutoResume: spec.AutoResume,
		AskCommands: spec.AskCommands, OnHostLoss: spec.OnHostLoss,
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

func (c *Controller) instanceSpec(s cay.Sandbox) cay.InstanceSpec {
	access, traffic := c.TokensOf(s)
	return cay.InstanceSpec{
		Instance: s.Instance, Sandbox: s.ID, Team: s.Team, Template: s.Template, Build: s.Build,
		Snapshot: s.Snapshot, Limits: s.Limits, Env: s.Env, Network: s.Network, Volumes: s.Volumes,
		AccessToken: access, TrafficToken: traffic, AskCommands: s.AskCommands,
		Fenced: c.member && s.OnHostLoss == cay.ResumeOnHostLoss,
	}
}

// TokensOf returns the tokens that a sandbox's clients need. Empty means that
// none is asked for.
func (c *Controller) TokensOf(s cay.Sandbox) (access, traffic string) {
	if s.Secure {
		access = c.tokens.Access(s.ID)
	}
	if !s.Network.AllowPublic {
		traffic = c.tokens.Traffic(s.ID)
	}
	return access, traffic
}

// TokensFor is TokensOf for a caller, who gets none without the scope to reach
// what is inside. Where commands are asked about, the party is recorded, which may ask
// then; in a session it gets a token that says so itself.
func (c *Controller) TokensFor(ctx context.Context, who cay.Caller, s cay.Sandbox) (access, traffic string, err error) {
	if who.May(cay.ExecSandboxes) != nil {
		return "", "", nil
	}
	access, traffic = c.TokensOf(s)
	switch by := who.Origins(); {
	case len(s.AskCommands) == 0 || by == cay.Origins{}:
	case who.Session != "" && access != "":
		access = c.tokens.AccessAs(s.ID, by)
	default:
		err = c.store.AddTokenHolder(ctx, s.ID, by)
	}
	return access, traffic, err
}

// Get returns a team's sandbox that is not killed.
func (c *Controller) Get(_ context.Context, who cay.Caller, id cay.SandboxID) (cay.Sandbox, error) {
	if err := who.May(cay.ReadSandboxes); err != nil {
		return cay.Sandbox{}, err
	}
	return c.get(who.Team, id)
}

func (c *Controller) get(team cay.TeamID, id cay.SandboxID) (cay.Sandbox, error) {
	e, err := c.find(team, id)
	if err != nil {
		return cay.Sandbox{}, err
	}
	s := e.sandbox()
	if s.State == cay.Killed {
		return cay.Sandbox{}, ledger.NoSandbox(id)
	}
	return s, nil
}

// Kill ends a sandbox. When it returns nil the sandbox is over, or the node
// could not end it yet and is asked again until it has.
func (c *Controller) Kill(ctx context.Context, who cay.Caller, id cay.SandboxID) error {
	if err := who.May(cay.WriteSandboxes); err != nil {
		return err
	}
	return c.change(ctx, who.Team, id, func(e *entry, _ cay.Sandbox) error {
		return c.end(ctx, who, e, cay.CauseAsked, ledger.Now(), "")
	})
}

// SetTimeout makes a sandbox end that long from now, sooner or later than it
// would have. Zero ends or pauses it at once.
func (c *Controller) SetTimeout(ctx context.Context, who cay.Caller, id cay.SandboxID, timeout time.Duration) error {
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
		end := ledger.Now().Add(timeout)
		if err := c.affords(ctx, s, end); err != nil {
			return err
		}
		s.EndAt = end
		return c.save(ctx, e, s, e.timeoutEvents(who, s)...)
	})
}

// Extend makes sure that a sandbox has at least that long from now. It never
// shortens its time: then EndAt stays as it is, to the bit.
func (c *Controller) Extend(ctx context.Context, who cay.Caller, id cay.SandboxID, timeout time.Duration) (cay.Sandbox, error) {
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

// extend is Extend for a caller that holds the lock.
func (c *Controller) extend(ctx context.Context, who cay.Caller, e *entry, s cay.Sandbox, timeout time.Duration) (cay.Sandbox, error) {
	end := ledger.Now().Add(timeout)
	if !end.After(s.EndAt) {
		return s, nil
	}
	if err := c.affords(ctx, s, end); err != nil {
		return s, err
	}
	s.EndAt = end
	return s, c.save(ctx, e, s, e.timeoutEvents(who, s)...)
}

// Refresh is Extend by E2B's older call.
func (c *Controller) Refresh(ctx context.Context, who cay.Caller, id cay.SandboxID, timeout time.Duration) error {
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
