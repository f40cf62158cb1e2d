package lifecycle

import (
	"context"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control/ledger"
)

// Emit records an event of a sandbox that is not over, for parts whose work
// changes none of its record: an event of a change is given to save. Data are keys
// and values by turns.
func (c *Controller) Emit(ctx context.Context, id cay.SandboxID, what cay.EventType, reason string, data ...string) error {
	e := c.entry(id)
	if e == nil {
		return ledger.NoSandbox(id)
	}
	s := e.sandbox()
	return c.ledger.Add(ctx, ledger.NewEvent(cay.ForTeam(s.Team), s, what, reason, data...))
}

// Report is Emit for events that a guest can cause as often as it likes. Those
// beyond the allowance are dropped; the next event says how many were.
func (c *Controller) Report(ctx context.Context, id cay.SandboxID, what cay.EventType, reason string, data ...string) error {
	e := c.entry(id)
	if e == nil {
		return ledger.NoSandbox(id)
	}
	dropped, ok := e.reports.take(time.Now())
	if !ok {
		return nil
	}
	if dropped != "" {
		data = append([]string{"dropped", dropped}, data...)
	}
	s := e.sandbox()
	return c.ledger.Add(ctx, ledger.NewEvent(cay.ForTeam(s.Team), s, what, reason, data...))
}

// Over reports whether a sandbox has ended. All its events but those of its
// past are then recorded.
func (c *Controller) Over(id cay.SandboxID) bool {
	e := c.entry(id)
	return e == nil || e.sandbox().State == cay.Killed
}

// foundEvent tells of a state that a starting server found a sandbox in.
func foundEvent(s cay.Sandbox) cay.Event {
	who := cay.ForTeam(s.Team)
	switch s.State {
	case cay.Killed:
		return ledger.NewEvent(who, s, cay.SandboxKilled, string(s.Cause), "evidence", "found when the server started")
	case cay.Paused:
		return ledger.NewEvent(who, s, cay.SandboxPaused, cay.ReasonRestart, "snapshot", string(s.Snapshot))
	}
	return ledger.NewEvent(who, s, cay.SandboxRunning, cay.ReasonRestart)
}

// timeoutStep is by how much a sandbox's end moves on before it is told again:
// clients that keep one alive move it every few seconds.
const timeoutStep = time.Minute

// timeoutEvents tells of a new end, if that is news. The caller holds the
// sandbox's lock.
func (e *entry) timeoutEvents(who cay.Caller, s cay.Sandbox) []cay.Event {
	later := s.EndAt.Sub(e.toldEnd)
	if later > 0 && later < timeoutStep {
		return nil
	}
	e.toldEnd = s.EndAt
	return []cay.Event{ledger.NewEvent(who, s, cay.SandboxTimeoutChanged, cay.ReasonAsked, "endAt", ledger.Stamp(s.EndAt))}
}
