package lifecycle

import (
	"context"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control/ledger"
)

// atHand is how long a sandbox lives on at least when a client is in it.
const atHand = 5 * time.Minute

// Owner returns the team of a sandbox that is not over.
func (c *Controller) Owner(id cay.SandboxID) (cay.TeamID, error) {
	c.mu.RLock()
	e := c.live[id]
	c.mu.RUnlock()
	if e == nil {
		return "", ledger.NoSandbox(id)
	}
	s := e.sandbox()
	if s.State == cay.Killed || s.State == cay.Creating {
		return "", ledger.NoSandbox(id)
	}
	return s.Team, nil
}

// Enter has a team's sandbox run for some minutes at least, for a caller who goes
// inside. One that is paused is resumed, as traffic resumes it.
func (c *Controller) Enter(ctx context.Context, who cay.Caller, id cay.SandboxID) error {
	if err := who.May(cay.ExecSandboxes); err != nil {
		return err
	}
	who.Scopes |= cay.WriteSandboxes
	_, _, err := c.Connect(ctx, who, id, atHand, true)
	return err
}

// Keep puts the end of a team's running sandbox off while a client is in it.
func (c *Controller) Keep(ctx context.Context, who cay.Caller, id cay.SandboxID) error {
	if err := who.May(cay.ExecSandboxes); err != nil {
		return err
	}
	who.Scopes |= cay.WriteSandboxes
	_, err := c.Extend(ctx, who, id, atHand)
	return err
}
