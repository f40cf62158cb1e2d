package lifecycle

import (
	"context"
	"slices"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control/ledger"
	"github.com/cay-run/cay/internal/store"
)

// A change of a record may count though its answer never came: the database failed over, or
// its standby did not confirm it in time. Only the owner writes the record of a sandbox, so
// it reads back which of its changes counted, and goes on from there: with the next change,
// or with the next sweep.

// unsure reports whether a change that failed may count.
func unsure(err error) bool { return cay.KindOf(err) == cay.Unavailable }

// readBack reads a record of which another version was found, and has the sandbox go on from
// that one where it may be of this server's. It is an error where the sandbox is another
// node's by now, or over. The caller holds its lock.
func (c *Controller) readBack(ctx context.Context, e *entry) (recorded cay.Sandbox, err error) {
	s := e.sandbox()
	recorded, err = c.store.Sandbox(ctx, s.Team, s.ID)
	switch {
	case err != nil:
		return recorded, err
	case c.member && recorded.Node != c.nodeID:
		c.log.WarnContext(ctx, "a sandbox is another node's now", "sandbox", s.ID, "node", recorded.Node)
		c.drop(s.ID)
		return recorded, c.still(e, s)
	case recorded.State == cay.Killed: // its end counted
		e.current.Store(&recorded)
		c.over(ctx, e, s, recorded)
		return recorded, ledger.NoSandbox(s.ID)
	}
	if e.unsure.Load() {
		s.Version = recorded.Version
		e.current.Store(&s)
	}
	return recorded, nil
}

// noted notes a change of a sandbox's records that may count.
func (e *entry) noted(err error) error {
	if unsure(err) {
		e.unsure.Store(true)
	}
	return err
}

// recordTree changes the place of a sandbox in its tree: the record of the sandbox itself
// stays as it is.
func (c *Controller) recordTree(ctx context.Context, e *entry, write func(context.Context) error) error {
	return e.noted(write(ctx))
}

// giveUp ends an instance that a sandbox was to have. Where its record may name it, it lives
// until that is known: after a crash the next start goes by the record.
func (c *Controller) giveUp(ctx context.Context, e *entry, id cay.InstanceID) {
	if id == "" {
		return
	}
	if !e.unsure.Load() {
		c.stop(ctx, id, cay.CauseFailedStart)
		return
	}
	kept := append(slices.Clone(e.spare()), id)
	e.spares.Store(&kept)
}

// spare lists the instances that the record may name.
func (e *entry) spare() []cay.InstanceID {
	if kept := e.spares.Load(); kept != nil {
		return *kept
	}
	return nil
}

// endSpares ends them, now that the record names another one. The caller holds the lock.
func (c *Controller) endSpares(ctx context.Context, e *entry) {
	for _, id := range e.spare() {
		if id != e.sandbox().Instance {
			c.stop(ctx, id, cay.CauseFailedStart)
		}
	}
	e.spares.Store(nil)
}

// settle records what sandboxes are after changes that may count or not.
func (c *Controller) settle(ctx context.Context) {
	for _, e := range c.entries() {
		if e.unsure.Load() && unsure(c.settleOne(ctx, e)) { // the database is away still
			return
		}
	}
}

func (c *Controller) settleOne(ctx context.Context, e *entry) error {
	ctx, cancel := context.WithTimeout(ctx, ledger.EndWithin)
	defer cancel()
	if err := e.acquire(ctx); err != nil {
		return err
	}
	defer e.release()
	s := e.sandbox()
	if c.still(e, s) != nil || !e.unsure.Load() {
		return nil
	}
	return c.settleHeld(ctx, e)
}

// settled has the record of a sandbox be known before another change of it. The caller
// holds its lock.
func (c *Controller) settled(ctx context.Context, e *entry) error {
	if !e.unsure.Load() {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), ledger.EndWithin)
	defer cancel()
	if err := c.settleHeld(ctx, e); err != nil {
		return err
	}
	return c.still(e, e.sandbox())
}

// settleHeld records what a sandbox is. No change from before can count after it: each
// holds the row of the team, which this one needs.
func (c *Controller) settleHeld(ctx context.Context, e *entry) error {
	s := e.sandbox()
	if e.born != nil {
		born, err := e.born(ctx)
		if err != nil {
			return err
		}
		if e.born = nil; !born {
			c.drop(s.ID)
			c.stop(ctx, s.Instance, cay.CauseFailedStart)
			return nil
		}
		if s.Once.Key == "" { // its caller was told of an error, and cannot ask for it again
			return c.end(ctx, cay.ForTeam(s.Team), e, cay.CauseFailedStart, ledger.Now(), "")
		}
	}
	recorded, err := c.readBack(ctx, e)
	if err != nil {
		return err
	}
	s = e.sandbox()
	var events []cay.Event
	if recorded.State != s.State {
		events = append(events, foundEvent(s))
	}
	err = c.record(ctx, e, s, func(ctx context.Context, s cay.Sandbox) error {
		return c.store.Tx(ctx, func(tx store.Store) error {
			err := tx.UpdateNetwork(ctx, s, events...)
			if err == nil && e.place != nil {
				err = tx.PutBranch(ctx, *e.place)
			}
			return err
		})
	})
	if err != nil {
		return err
	}
	at, err := c.store.Branch(ctx, s.Team, s.ID)
	if err != nil {
		return err
	}
	e.enterTree(at)
	e.place = nil
	e.unsure.Store(false)
	c.endSpares(ctx, e)
	c.log.InfoContext(ctx, "a sandbox is recorded as it is, after a change that was not confirmed", "sandbox", s.ID, "state", s.State)
	return nil
}

// born finds out whether a sandbox is recorded that was not confirmed, by recording that it
// could not be started: one of both counts from then on.
func (c *Controller) born(ctx context.Context, who cay.Caller, s cay.Sandbox, l launch, why error) (bool, error) {
	if err := c.addFailed(ctx, who, s, l, why); cay.KindOf(err) != cay.Conflict {
		return false, err
	}
	recorded, err := c.store.Sandbox(ctx, s.Team, s.ID)
	if cay.KindOf(err) == cay.NotFound { // another create of its key is
		return false, nil
	}
	return recorded.State == cay.Running, err
}
