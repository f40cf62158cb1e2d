package lifecycle

import (
	"context"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control/ledger"
)

// Budgets say whether a team may spend more.
type Budgets interface {
	// Reserve sets the first minute of a sandbox aside that is to run; one that
	// runs for the first time is a create as well. settle must be called once:
	// with the id that it runs under, or with none when it does not run.
	Reserve(ctx context.Context, s cay.Sandbox, first bool) (settle func(cay.SandboxID), err error)
	// Allows refuses to have a sandbox run for longer when a budget that it
	// counts to is used up.
	Allows(ctx context.Context, s cay.Sandbox) error
}

// unbound are the budgets of a server that has none.
type unbound struct{}

func (unbound) Reserve(context.Context, cay.Sandbox, bool) (func(cay.SandboxID), error) {
	return func(cay.SandboxID) {}, nil
}

func (unbound) Allows(context.Context, cay.Sandbox) error { return nil }

// affords says whether a sandbox may run until end. To have it run for less
// long is free.
func (c *Controller) affords(ctx context.Context, s cay.Sandbox, end time.Time) error {
	if !end.After(s.EndAt) {
		return nil
	}
	return c.budgets.Allows(ctx, s)
}

// mayFork refuses forks that no budget allows before anything is saved for
// them.
func (c *Controller) mayFork(ctx context.Context, who cay.Caller, id cay.SandboxID) error {
	e, err := c.find(who.Team, id)
	if err != nil {
		return err
	}
	s := e.sandbox()
	s.Key = who.Key
	if err := c.hasPlace(s); err != nil {
		return err
	}
	return c.budgets.Allows(ctx, s)
}

// lookWithin bounds a look at what an instance took: a node that does not
// answer must not hold an end up.
const lookWithin = time.Second

// look reads what a sandbox's instance took, so that a change of its record
// counts all of it. Without an answer the last reading stands.
func (c *Controller) look(ctx context.Context, e *entry) {
	id := e.sandbox().Instance
	if id == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookWithin)
	defer cancel()
	u, err := c.node.Usage(ctx, id)
	if err != nil {
		return
	}
	e.metrics.mu.Lock()
	defer e.metrics.mu.Unlock()
	e.metrics.note(id, u)
}

// Metered lists the sandboxes that run here, with what their instances took.
func (c *Controller) Metered() []cay.Sandbox {
	var out []cay.Sandbox
	for _, e := range c.entries() {
		s := e.sandbox()
		if s.State == cay.Running || s.State == cay.Pausing {
			s.Reading = e.metrics.reading(s.Instance)
			out = append(out, s)
		}
	}
	return out
}

// Halt pauses a running sandbox with its memory, or ends it, because a budget
// is used up. One that does not run any more is no error.
func (c *Controller) Halt(ctx context.Context, id cay.SandboxID, kill bool, why string) error {
	e := c.entry(id)
	if e == nil {
		return nil
	}
	if err := e.acquire(ctx); err != nil {
		return err
	}
	defer e.release()
	s := e.sandbox()
	if s.State != cay.Running {
		return nil
	}
	who := cay.ForTeam(s.Team)
	if kill {
		return c.end(ctx, who, e, cay.CauseBudget, ledger.Now(), why)
	}
	s.Unresponsive = c.responds(ctx, s) != nil
	return c.pause(ctx, who, e, s, cay.MemorySnapshot, cay.ReasonBudget)
}
