package lifecycle

import (
	"context"
	"errors"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control/ledger"
)

// copyWithin is how long a pause waits for its copy in the bucket.
const copyWithin = 5 * time.Minute

// lookAtCopies is how often it looks whether copies get on meanwhile.
const lookAtCopies = time.Second

// Copies reports whether snapshots are copied to a bucket.
func (c *Controller) Copies() bool { return c.copies }

// Copied records which paused sandboxes, checkpoints and builds the bucket has: those whose
// snapshots it has. One that is busy, or cannot be recorded now, is left for the next call.
func (c *Controller) Copied(ctx context.Context, has func(cay.SnapshotID) bool, ask bool) {
	c.left.copied(has)
	c.checkpointsCopied(ctx, has)
	if ask {
		c.buildsCopied(ctx, has)
	}
	for _, e := range c.entries() {
		if s := e.sandbox(); !s.ReplicatedAt.IsZero() || !has(s.Snapshot) {
			continue
		}
		select {
		case e.lock <- struct{}{}:
			c.copied(ctx, e, has)
			e.release()
		default:
		}
	}
}

// toCopy notes checkpoints that the bucket is to get, where there is one.
func (c *Controller) toCopy(nodes ...cay.Checkpoint) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range nodes {
		if c.copies && n.ReplicatedAt.IsZero() {
			c.uncopied[n.ID] = n.Team
		}
	}
}

// copyOver forgets a checkpoint that the bucket has, or that is removed.
func (c *Controller) copyOver(id cay.SnapshotID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.uncopied, id)
}

func (c *Controller) checkpointsCopied(ctx context.Context, has func(cay.SnapshotID) bool) {
	there := map[cay.SnapshotID]cay.TeamID{}
	c.mu.RLock()
	for id, team := range c.uncopied {
		if has(id) {
			there[id] = team
		}
	}
	c.mu.RUnlock()
	for id, team := range there {
		if err := c.store.CheckpointReplicated(ctx, team, id, ledger.Now()); err != nil {
			c.log.WarnContext(ctx, "cannot record that the bucket has a checkpoint", "checkpoint", id, "err", err)
			continue
		}
		c.copyOver(id)
	}
}

// buildsCopied asks the records: named snapshots and templates are made in
// several places, and each node knows of its own copies alone.
func (c *Controller) buildsCopied(ctx context.Context, has func(cay.SnapshotID) bool) {
	uncopied, err := c.store.UncopiedBuilds(ctx)
	for _, id := range uncopied {
		if has(id) {
			err = errors.Join(err, c.store.BuildsReplicated(ctx, id, ledger.Now()))
		}
	}
	if err != nil && ctx.Err() == nil {
		c.log.WarnContext(ctx, "cannot record which snapshots the bucket has", "err", err)
	}
}

// copied records it of one sandbox: one that is paused, or that goes on from it where its machine is
// lost. The caller holds its lock.
func (c *Controller) copied(ctx context.Context, e *entry, has func(cay.SnapshotID) bool) {
	s := e.sandbox()
	goesOn := s.State == cay.Running && s.Saved != "" && s.OnHostLoss == cay.ResumeOnHostLoss
	if c.still(e, s) != nil || s.State != cay.Paused && !goesOn || !s.ReplicatedAt.IsZero() || !has(s.Snapshot) {
		return
	}
	s.ReplicatedAt = ledger.Now()
	var told []cay.Event
	if !goesOn {
		told = append(told, ledger.NewEvent(cay.ForTeam(s.Team), s, cay.SandboxReplicated, "", "snapshot", string(s.Snapshot)))
	}
	err := c.save(ctx, e, s, told...)
	if err != nil {
		c.log.WarnContext(ctx, "cannot record that the bucket has a sandbox", "sandbox", s.ID, "snapshot", s.Snapshot, "err", err)
	}
}

// PauseDurably is Pause that returns when the bucket has what was saved.
func (c *Controller) PauseDurably(ctx context.Context, who cay.Caller, id cay.SandboxID, kind cay.SnapshotKind, strict bool) error {
	if err := who.May(cay.WriteSandboxes); err != nil {
		return err
	}
	if !c.copies {
		return cay.Errorf(cay.Invalid, "durable: this server copies snapshots to no bucket").
			WithHint("its operator sets CAY_BUCKET; without one, leave durable out")
	}
	if err := c.pauseAsked(cay.WithDurable(ctx), who, id, kind, strict); err != nil {
		return err
	}
	e, err := c.find(who.Team, id)
	if err != nil {
		return err
	}
	return c.awaitCopy(ctx, e)
}

// awaitCopy waits until the bucket has what a sandbox was saved in.
func (c *Controller) awaitCopy(ctx context.Context, e *entry) error {
	saved, begun := e.sandbox(), time.Now()
	ctx, cancel := context.WithTimeout(ctx, copyWithin)
	defer cancel()
	look := time.NewTicker(lookAtCopies)
	defer look.Stop()
	if c.hurry != nil {
		c.hurry()
	}
	for {
		changed := c.ledger.NewEvents(saved.Team)
		switch s := e.sandbox(); {
		case s.State == cay.Killed:
			return ledger.NoSandbox(s.ID)
		case !s.ReplicatedAt.IsZero() && s.Snapshot == saved.Snapshot:
			return nil
		case s.State != cay.Paused:
			return errNotReplicated(s.ID, "it was resumed meanwhile")
		}
		select {
		case <-changed:
		case <-look.C:
			if cay.KindOf(c.failure(begun)) == cay.NoSpace { // else it may get on in time
				return errNotReplicated(saved.ID, "the bucket is full")
			}
		case <-c.ledger.Ended():
			return errNotReplicated(saved.ID, "the server ends")
		case <-ctx.Done():
			why := "the bucket has not got it in time"
			if c.failure(begun) != nil {
				why += ": copies fail"
			}
			return errNotReplicated(saved.ID, why)
		}
	}
}

// failure is why copies did not get on since a time.
func (c *Controller) failure(since time.Time) error {
	if c.copiesFail == nil {
		return nil
	}
	return c.copiesFail(since)
}

func errNotReplicated(id cay.SandboxID, why string) error {
	return cay.Errorf(cay.Unavailable, "sandbox %s was paused, and no copy of it in the bucket is confirmed: %s", id, why).
		WithCode(cay.CodeNotReplicated).WithHint("it resumes on its machine; its record and the event sandbox.replicated say when the bucket has it")
}
