package lifecycle

import (
	"context"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/store"
)

// The limits of a team's running sandboxes are looked at twice. Before a node is asked
// for anything, this server's own sandboxes are counted, with those that are
// being started: a refused create costs nothing. And in the transaction that
// records a sandbox as running, all records are counted, whichever server wrote
// them.

// starting is a place that is taken for a sandbox that is to run: a new one,
// whose id is the node's to choose, or one that was paused.
type starting struct {
	team   cay.TeamID
	paused cay.SandboxID // empty for a new one
	limits cay.Limits
}

// reserve takes a place for a sandbox, if its team may have another that runs.
// The place is given up by release, or goes to the entry of a new sandbox.
func (c *Controller) reserve(s cay.Sandbox) (place *starting, release func(), err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.takesNew(s.ID); err != nil {
		return nil, nil, err
	}
	if err := c.within(s); err != nil {
		return nil, nil, err
	}
	place = &starting{team: s.Team, limits: s.Limits}
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

// hasPlace refuses to make sandboxes of one where not even the first could run,
// before anything is saved for them.
func (c *Controller) hasPlace(source cay.Sandbox) error {
	c.mu.RLock()
	defer c.mu.RUnlock()
	source.ID = "" // it runs on beside them
	return c.within(source)
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
	c.put(e)
	return nil
}

// within says whether a team may have one more running. The caller holds c.mu.
func (c *Controller) within(one cay.Sandbox) error {
	limits := c.ledger.Limits(one.Team)
	if !limits.BoundsRunning() {
		return nil
	}
	load := cay.TeamLoad{}.Add(one.Limits)
	placed := make(map[cay.SandboxID]bool, len(c.starting)) // counted by their places, whatever becomes of them meanwhile
	for place := range c.starting {
		if place.team == one.Team {
			load = load.Add(place.limits)
			placed[place.paused] = true
		}
	}
	for id, e := range c.teams[one.Team] {
		s := e.current.Load()
		if id != one.ID && !placed[id] && s.State != cay.Paused && s.State != cay.Killed {
			load = load.Add(s.Limits)
		}
	}
	return limits.Admit(load)
}

// recordRunning has f record, in tx, a sandbox that runs or is about to, if the
// records say that its team may have another.
func (c *Controller) recordRunning(ctx context.Context, s cay.Sandbox, f func(tx store.Store) error) error {
	limits := c.ledger.Limits(s.Team)
	return c.store.Tx(ctx, func(tx store.Store) error {
		if limits.BoundsRunning() {
			load, err := tx.RunningOf(ctx, s.Team, s.ID)
			if err == nil {
				err = limits.Admit(load.Add(s.Limits))
			}
			if err != nil {
				return err
			}
		}
		return f(tx)
	})
}
