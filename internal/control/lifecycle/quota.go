package lifecycle

import (
	"context"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/store"
)

// quota is what a team may have running at once; 0 is no bound.
//
// It is looked at twice. Before a node is asked for anything, this server's own
// sandboxes are counted, with those that are being started: a refused create
// costs nothing. And in the transaction that records a sandbox as running, all
// records are counted, whichever server wrote them.
type quota struct{ sandboxes, memoryMB int }

// starting is a place that is taken for a sandbox that is to run: a new one,
// whose id is the node's to choose, or one that was paused.
type starting struct {
	team     cay.TeamID
	paused   cay.SandboxID // empty for a new one
	memoryMB int
}

// check refuses more than the quota.
func (q quota) check(sandboxes, memoryMB int) error {
	const hint = "end or pause some, or have CAY_TEAM_SANDBOXES and CAY_TEAM_MEMORY raised"
	switch {
	case q.sandboxes > 0 && sandboxes > q.sandboxes:
		return cay.Errorf(cay.Exhausted, "your team has the %d sandboxes running that it may have at once", q.sandboxes).
			WithCode(cay.CodeTeamLimit).WithHint(hint)
	case q.memoryMB > 0 && memoryMB > q.memoryMB:
		return cay.Errorf(cay.Exhausted, "your team's running sandboxes would have %d MB of memory, and may have %d MB at once", memoryMB, q.memoryMB).
			WithCode(cay.CodeTeamLimit).WithHint(hint)
	}
	return nil
}

// reserve takes a place for a sandbox, if its team may have another that runs.
// The place is given up by release, or goes to the entry of a new sandbox.
func (c *Controller) reserve(s cay.Sandbox) (place *starting, release func(), err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.within(s); err != nil {
		return nil, nil, err
	}
	place = &starting{team: s.Team, memoryMB: s.Limits.MemoryMB}
	if c.live[s.ID] != nil {
		place.paused = s.ID
	}
	c.starting[place] = struct{}{}
	return place, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.starting, place)
	}, nil
}

// enter makes a sandbox known in the place that was taken for it.
func (c *Controller) enter(place *starting, e *entry) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	id := e.sandbox().ID
	if c.live[id] != nil {
		return cay.Errorf(cay.Conflict, "sandbox %s exists", id)
	}
	delete(c.starting, place)
	c.live[id] = e
	return nil
}

// within says whether a team may have one more running. The caller holds c.mu.
func (c *Controller) within(one cay.Sandbox) error {
	if c.most == (quota{}) {
		return nil
	}
	n, memory := 1, one.Limits.MemoryMB
	runs := func(s cay.Sandbox) bool { return s.State != cay.Paused && s.State != cay.Killed }
	for _, e := range c.live {
		if s := e.sandbox(); s.Team == one.Team && s.ID != one.ID && runs(s) {
			n++
			memory += s.Limits.MemoryMB
		}
	}
	for place := range c.starting {
		e := c.live[place.paused]
		if place.team == one.Team && (e == nil || !runs(e.sandbox())) { // else it is counted already
			n++
			memory += place.memoryMB
		}
	}
	return c.most.check(n, memory)
}

// recordRunning has f record, in tx, a sandbox that runs or is about to, if the
// records say that its team may have another.
func (c *Controller) recordRunning(ctx context.Context, s cay.Sandbox, f func(tx store.Store) error) error {
	return c.store.Tx(ctx, func(tx store.Store) error {
		if c.most != (quota{}) {
			n, memory, err := tx.RunningOf(ctx, s.Team, s.ID)
			if err == nil {
				err = c.most.check(n+1, memory+s.Limits.MemoryMB)
			}
			if err != nil {
				return err
			}
		}
		return f(tx)
	})
}
