package fleet

import (
	"context"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control/ledger"
	"github.com/cay-run/cay/internal/store"
)

// EventQuery says which of a team's events to list.
type EventQuery = store.EventQuery

// Events lists a team's events, oldest first, of a sandbox that is over too.
// NotFound when the team never had that sandbox, or long ago.
func (c *Catalogue) Events(ctx context.Context, who cay.Caller, q EventQuery) ([]cay.Event, error) {
	if err := who.May(cay.ReadSandboxes); err != nil {
		return nil, err
	}
	q.Team = who.Team
	if q.Sandbox != "" {
		if _, err := c.store.Sandbox(ctx, q.Team, q.Sandbox); err != nil {
			return nil, ledger.Known(err, q.Sandbox)
		}
	}
	return c.store.Events(ctx, q)
}

// LastEvent is the number of a team's newest event.
func (c *Catalogue) LastEvent(ctx context.Context, who cay.Caller) (int64, error) {
	if err := who.May(cay.ReadSandboxes); err != nil {
		return 0, err
	}
	return c.store.LastEvent(ctx, who.Team)
}

// NewEvents returns a channel that is closed once a team has events that were
// recorded after this call, or streams must end: a reader asks for it first and
// lists then.
func (c *Catalogue) NewEvents(team cay.TeamID) <-chan struct{} { return c.ledger.NewEvents(team) }

// EndStreams ends all waiting for events, for good: Streaming is false from
// now on. The server calls it when it stops.
func (c *Catalogue) EndStreams() { c.ledger.EndStreams() }

// Streaming reports whether it makes sense to wait for events.
func (c *Catalogue) Streaming() bool { return c.ledger.Streaming() }
