package lifecycle

import (
	"context"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control/ledger"
	"github.com/cay-run/cay/internal/store"
)

// reconcileTries is how often a record is read that other servers change meanwhile.
const reconcileTries = 5

// machineState is what a node has when its server begins.
type machineState struct {
	unclaimed map[cay.InstanceID]cay.Instance // no record has claimed them
	saved     map[cay.SnapshotID]bool
	member    bool // of a cluster: snapshots may lie elsewhere
}

// reconcile brings records and machine together.
func (c *Controller) reconcile(ctx context.Context, member bool) (err error) {
	var rows []cay.Sandbox
	if member {
		rows, err = c.store.SandboxesOf(ctx, c.nodeID)
	} else {
		rows, err = c.store.LiveSandboxes(ctx)
	}
	if err != nil {
		return err
	}
	instances, err := c.node.Instances(ctx)
	if err != nil {
		return err
	}
	snapshots, err := c.node.Snapshots(ctx)
	if err != nil {
		return err
	}
	machine := machineState{make(map[cay.InstanceID]cay.Instance), make(map[cay.SnapshotID]bool), member}
	for _, i := range instances {
		machine.unclaimed[i.Spec.Instance] = i
	}
	for _, s := range snapshots {
		machine.saved[s.ID] = true
	}
	for _, s := range rows {
		if err := c.reconcileSandbox(ctx, s, machine); err != nil {
			return err
		}
	}
	if err := c.reconcileTrees(ctx); err != nil {
		return err
	}
	for id, i := range machine.unclaimed {
		c.log.WarnContext(ctx, "instance has no record", "instance", id, "sandbox", i.Spec.Sandbox)
		c.stop(ctx, id, cay.CauseHostLost)
	}
	for _, s := range snapshots {
		c.ledger.Tidy(ctx, s.ID)
	}
	return nil
}

// reconcileSandbox records what a sandbox is found to be. In a cluster other nodes may
// take it meanwhile, because this one was gone: then it is theirs, and its instance here
// stays unclaimed.
func (c *Controller) reconcileSandbox(ctx context.Context, s cay.Sandbox, machine machineState) error {
	for try := 1; ; try++ {
		err := c.found(ctx, s, machine)
		if !machine.member || cay.KindOf(err) != cay.Conflict || try == reconcileTries {
			return err
		}
		home, err := c.store.SandboxHome(ctx, s.ID)
		switch {
		case cay.KindOf(err) == cay.NotFound || err == nil && home.Node != c.nodeID:
			c.log.WarnContext(ctx, "a sandbox is another node's now", "sandbox", s.ID, "node", home.Node)
			return nil
		case err != nil:
			return err
		}
		s, err = c.store.Sandbox(ctx, s.Team, s.ID)
		if err != nil || s.State == cay.Killed {
			return err
		}
	}
}

// found records what a sandbox is on this machine, and keeps it if it lives.
func (c *Controller) found(ctx context.Context, s cay.Sandbox, machine machineState) error {
	var instance *cay.Instance
	if i, ok := machine.unclaimed[s.Instance]; ok {
		instance = &i
	}
	found := reconciled(s, instance, machine.saved[s.Snapshot] || machine.member && s.State == cay.Resuming) // a resume may be of a copy elsewhere
	found, changed := inForce(found, instance)
	if found.State == cay.Killed && found.Cause == cay.CauseHostLost {
		back, err := c.comebackOf(ctx, s, c.hereOrInBucket(ctx))
		if err != nil {
			return err
		}
		if back != nil {
			return c.recordComeback(ctx, *back)
		}
	}
	var events []cay.Event
	if found.State != s.State {
		c.log.WarnContext(ctx, "sandbox was left half way", "sandbox", s.ID, "was", s.State, "is", found.State, "cause", found.Cause)
		changed = true
		events = append(events, foundEvent(found))
	}
	if changed {
		if err := c.recordFound(ctx, found, instance != nil, events); err != nil {
			return err
		}
		found.Version++
	}
	if found.State == cay.Running {
		delete(machine.unclaimed, s.Instance)
	}
	if found.State != cay.Killed {
		c.put(newEntry(found))
	}
	return nil
}

// recordComeback records that a sandbox whose instance was lost with the machine goes on.
func (c *Controller) recordComeback(ctx context.Context, back comeback) error {
	if err := c.store.Tx(ctx, func(tx store.Store) error { return back.record(ctx, tx) }); err != nil {
		return err
	}
	c.log.WarnContext(ctx, "sandbox lost its machine, and goes on from what is kept", "sandbox", back.sandbox.ID, "snapshot", back.sandbox.Snapshot)
	back.sandbox.Version++
	e := newEntry(back.sandbox)
	e.lost.Store(true)
	c.put(e)
	return nil
}

// recordFound records what a sandbox was found to be. The end of one that has
// no instance any more is not known: it is counted until its last checkpoint.
func (c *Controller) recordFound(ctx context.Context, found cay.Sandbox, alive bool, events []cay.Event) error {
	return c.store.Tx(ctx, func(tx store.Store) error {
		if !alive {
			if err := tx.SkipUsage(ctx, found.ID); err != nil {
				return err
			}
		}
		return tx.UpdateNetwork(ctx, found, events...)
	})
}

// reconciled returns a sandbox's state after a time without a server. Unfinished
// changes are undone where that can be: a pause whose guest lives did not happen,
// nor did a resume, because no caller was told of it.
func reconciled(s cay.Sandbox, instance *cay.Instance, saved bool) cay.Sandbox {
	switch {
	case s.State == cay.Paused:
	case s.State == cay.Running && instance != nil:
	case s.State == cay.Pausing && instance != nil:
		s.State, s.Snapshot = cay.Running, instance.Spec.Snapshot
	case (s.State == cay.Pausing || s.State == cay.Resuming) && saved:
		s = paused(s)
	case s.State == cay.Creating: // no caller was told of it
		s = killed(s, cay.CauseFailedStart, ledger.Now())
	default:
		s = killed(s, cay.CauseHostLost, ledger.Now())
	}
	return s
}
