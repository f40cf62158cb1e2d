package lifecycle

import (
	"context"
	"errors"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control/ledger"
	"github.com/cay-run/cay/internal/store"
	"github.com/cay-run/cay/internal/trail"
)

// Rollback brings a sandbox back to a checkpoint: memory, processes and files.
// It keeps its id, its tokens and its time. One that runs goes on from there;
// one that is paused stays paused and is resumed as it was then.
func (c *Controller) Rollback(ctx context.Context, who cay.Caller, id cay.SandboxID, to cay.SnapshotID) (out cay.Sandbox, n cay.Checkpoint, err error) {
	if err := who.May(cay.WriteSandboxes); err != nil {
		return out, n, err
	}
	err = c.change(ctx, who.Team, id, func(e *entry, s cay.Sandbox) error {
		defer c.ledger.Pin(to)()
		if n, err = c.reachable(ctx, s, to); err != nil {
			return err
		}
		out, err = c.moveTo(ctx, who, e, s, n, c.goesOn(ctx, s, n),
			func(notice string) cay.Event {
				return ledger.NewEvent(who, s, cay.SandboxRolledBack, cay.ReasonAsked, "checkpoint", string(n.ID), "label", n.Label, "notice", notice)
			})
		return err
	})
	return out, n, err
}

// Undo brings a sandbox back to its newest checkpoint, or, when it has not been
// used since it was brought there, to the one before that.
func (c *Controller) Undo(ctx context.Context, who cay.Caller, id cay.SandboxID) (out cay.Sandbox, n cay.Checkpoint, err error) {
	if err := who.May(cay.WriteSandboxes); err != nil {
		return out, n, err
	}
	err = c.change(ctx, who.Team, id, func(e *entry, s cay.Sandbox) error {
		at, err := c.store.Branch(ctx, who.Team, id)
		if err != nil {
			return err
		}
		if at.Checkpoint == "" {
			return cay.Errorf(cay.Conflict, "sandbox %s has no checkpoint to go back to", id).
				WithHint("take one first, or have them taken before each command")
		}
		if n, err = c.store.Checkpoint(ctx, who.Team, at.Checkpoint); err != nil {
			return err
		}
		if e.tree.rewound.Load() {
			if n.Parent == "" {
				return cay.Errorf(cay.Conflict, "sandbox %s is at its oldest checkpoint already", id)
			}
			if n, err = c.store.Checkpoint(ctx, who.Team, n.Parent); err != nil {
				return err
			}
		}
		defer c.ledger.Pin(n.ID)()
		out, err = c.moveTo(ctx, who, e, s, n, c.goesOn(ctx, s, n),
			func(notice string) cay.Event {
				return ledger.NewEvent(who, s, cay.SandboxRolledBack, cay.ReasonUndo, "checkpoint", string(n.ID), "label", n.Label, "notice", notice)
			})
		return err
	})
	return out, n, err
}

// reachable finds a checkpoint that a sandbox can go back to: one of its own,
// or one that it comes from.
func (c *Controller) reachable(ctx context.Context, s cay.Sandbox, to cay.SnapshotID) (cay.Checkpoint, error) {
	n, err := c.store.Checkpoint(ctx, s.Team, to)
	if err != nil || n.Sandbox == s.ID {
		return n, err
	}
	at, err := c.store.Branch(ctx, s.Team, s.ID)
	if err != nil {
		return n, err
	}
	if n.Tree != at.Tree {
		return n, cay.Errorf(cay.Conflict, "checkpoint %s is of sandbox %s, and not in the tree of %s", to, n.Sandbox, s.ID)
	}
	nodes, err := c.store.Checkpoints(ctx, store.CheckpointQuery{Team: s.Team, Tree: at.Tree})
	if err != nil {
		return n, err
	}
	parent := make(map[cay.SnapshotID]cay.SnapshotID, len(nodes))
	for _, n := range nodes {
		parent[n.ID] = n.Parent
	}
	for id := at.Checkpoint; id != ""; id = parent[id] {
		if id == to {
			return n, nil
		}
	}
	return n, cay.Errorf(cay.Conflict, "checkpoint %s is of branch %s, and not one that %s comes from", to, n.Sandbox, s.ID).
		WithHint("make a fork of it and promote that")
}

// moveTo has a sandbox go on from a checkpoint that is pinned. The caller
// holds its lock. The new instance is made beside the old one, and the record
// decides: before it is written the sandbox is the old instance, after it the
// new one, whenever the server dies. resume keeps the random seeds.
func (c *Controller) moveTo(ctx context.Context, who cay.Caller, e *entry, s cay.Sandbox, n cay.Checkpoint, resume bool, event func(notice string) cay.Event) (out cay.Sandbox, err error) {
	ctx, done := trail.Begin(ctx, trail.Rollback)
	defer func() { done(err) }()
	before, notice := s, ""
	s.Snapshot, s.Saved, s.Unresponsive, s.ReplicatedAt = n.ID, n.Kind, false, n.ReplicatedAt
	if s.Volumes, err = c.savedVolumes(ctx, n.ID); err != nil {
		return before, err
	}
	switch s.State {
	case cay.Paused:
		if err := c.starts(ctx, n.ID); err != nil {
			return before, saveError(err, "the sandbox could not be brought back to the checkpoint; it is paused as it was")
		}
	case cay.Running:
		letGo, err := c.ledger.HoldVolumes(ctx, s.Team, s.Volumes)
		if err != nil {
			return before, err
		}
		defer letGo()
		s.Instance = cay.NewInstanceID()
		e.tree.standby.Store(&s.Instance)
		defer e.tree.standby.Store(nil)
		spec := c.instanceSpec(s)
		spec.Resume = resume
		within, cancel := context.WithTimeout(ctx, createWithin)
		defer cancel()
		instance, err := c.node.Prepare(within, spec)
		if cay.CodeOf(err) == cay.CodeCapacity && e.tree.awaitReplaced(within) { // there is more room now
			instance, err = c.node.Prepare(within, spec)
		}
		if err != nil {
			return before, backError(err)
		}
		s.Notice, notice = instance.Notice, instance.Notice
	default:
		return before, mustRun(s)
	}
	if err := c.move(ctx, who, e, before, s, n.ID, event(notice)); err != nil {
		return before, err
	}
	e.tree.member.Store(true)
	e.tree.rewound.Store(true)
	c.leave(ctx, e, before)
	c.log.InfoContext(ctx, "sandbox brought back", "sandbox", s.ID, "checkpoint", n.ID)
	return s, nil
}

// starts says why a snapshot cannot be started here: a paused sandbox that was brought back to it
// would have lost what it can be resumed from.
func (c *Controller) starts(ctx context.Context, id cay.SnapshotID) error {
	record, err := c.node.Record(ctx, id)
	if err != nil {
		return err
	}
	return c.node.Starts(ctx, record)
}

// leave ends the instance that a sandbox had before, whose place another one has
// taken: nothing reaches it any more, so the caller does not wait until all that
// it had is given back. Should the server die meanwhile, the next one finds an
// instance that no record wants.
func (c *Controller) leave(ctx context.Context, e *entry, before cay.Sandbox) {
	if before.Instance == "" { // it was paused
		c.ledger.Tidy(ctx, before.Snapshot)
		return
	}
	over := make(chan struct{})
	e.tree.replaced = over
	c.leaving.Go(func() {
		defer close(over)
		c.stop(ctx, before.Instance, cay.CauseAsked)
		c.ledger.Tidy(ctx, before.Snapshot)
	})
}

// awaitReplaced waits until the instance is over that the last one has replaced,
// and reports whether there was one to wait for. The caller holds the entry's lock.
func (t *treeState) awaitReplaced(ctx context.Context) bool {
	if t.replaced == nil {
		return false
	}
	select {
	case <-t.replaced:
		t.replaced = nil
		return true
	case <-ctx.Done():
		return false
	}
}

// backError says why a sandbox was not brought back. A lack of room is known
// before anything is touched.
func backError(err error) error {
	var known *cay.Error
	if errors.As(err, &known) && known.Code == cay.CodeCapacity {
		return cay.Wrap(known.Kind, err, "a running sandbox is brought back by a second instance beside it, and %s; it runs on as it was", known.Msg).
			WithCode(known.Code).
			WithHint("pause it, roll it back and resume it: that needs room for one; or end or pause others first")
	}
	return saveError(err, "the sandbox could not be brought back to the checkpoint; it runs on as it was")
}

// move records that a sandbox is at a checkpoint, and has requests reach its
// new instance. On an error it is what it was before.
func (c *Controller) move(ctx context.Context, who cay.Caller, e *entry, before, s cay.Sandbox, to cay.SnapshotID, event cay.Event) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), ledger.EndWithin)
	defer cancel()
	at, err := c.store.Branch(ctx, s.Team, s.ID)
	if err == nil {
		there := at
		there.Checkpoint, there.Rewound = to, true
		err = c.recordAt(ctx, e, s, there, event)
	}
	if err == nil && s.Instance != "" {
		if err = c.node.Route(ctx, s.Instance); err != nil { // it died just now
			failed := ledger.NewEvent(who, before, cay.SandboxRunning, cay.ReasonFailed, "error", ledger.Visible(err))
			if undone := c.recordAt(ctx, e, before, at, failed); undone != nil {
				c.isNonetheless(ctx, e, before, undone)
			}
		}
	}
	if err != nil {
		if e.unsure.Load() {
			e.place = &at
		}
		c.giveUp(ctx, e, s.Instance)
	}
	return err
}

// recordAt records a sandbox and its place in its tree.
func (c *Controller) recordAt(ctx context.Context, e *entry, s cay.Sandbox, at cay.Branch, event cay.Event) error {
	return c.record(ctx, e, s, func(ctx context.Context, s cay.Sandbox) error {
		return c.store.Tx(ctx, func(tx store.Store) error {
			now, err := tx.Branch(ctx, s.Team, s.ID)
			if err != nil {
				return err
			}
			now.Checkpoint, now.Rewound = at.Checkpoint, at.Rewound
			if err := tx.UpdateSandbox(ctx, s, event); err != nil {
				return err
			}
			return tx.PutBranch(ctx, now)
		})
	})
}

// goesOn reports whether a sandbox that is brought back to a checkpoint goes
// on as what was saved. Where another one lives that does, it is a clone.
func (c *Controller) goesOn(ctx context.Context, s cay.Sandbox, n cay.Checkpoint) bool {
	if n.Sandbox == s.ID {
		return true
	}
	_, err := c.living(ctx, n.Team, n.Sandbox)
	return cay.KindOf(err) == cay.NotFound
}

// Promote has a sandbox go on as another one of its tree is now: its latest
// state, under the sandbox's own id, tokens and URLs. The branch is over then.
// On an error both are what they were.
func (c *Controller) Promote(ctx context.Context, who cay.Caller, id, branch cay.SandboxID) (out cay.Sandbox, n cay.Checkpoint, err error) {
	if err := who.May(cay.WriteSandboxes); err != nil {
		return out, n, err
	}
	if id == branch {
		return out, n, cay.Errorf(cay.Invalid, "branch: %s cannot be promoted to itself", id)
	}
	f, err := c.beside(ctx, who.Team, id, branch)
	if err != nil {
		return out, n, err
	}
	// Two at once, each the other's branch, must not wait for each other:
	// the smaller id is locked first.
	lockBranch := func() error { return f.acquire(ctx) }
	if branch < id {
		if err := lockBranch(); err != nil {
			return out, n, err
		}
		defer f.release()
		lockBranch = func() error { return nil }
	}
	err = c.change(ctx, who.Team, id, func(e *entry, s cay.Sandbox) error {
		if id < branch {
			if err := lockBranch(); err != nil {
				return err
			}
			defer f.release()
		}
		out, n, err = c.promote(ctx, who, e, s, f)
		return err
	})
	return out, n, err
}

// beside finds the branch of a sandbox, and has another node hand it over that has it.
func (c *Controller) beside(ctx context.Context, team cay.TeamID, id, branch cay.SandboxID) (*entry, error) {
	f, missing := c.find(team, branch)
	if missing == nil || c.bring == nil {
		return f, missing
	}
	s, err := c.get(team, id)
	if err != nil {
		return nil, err
	}
	b, err := c.living(ctx, team, branch)
	if err == nil {
		err = c.related(ctx, s, b)
	}
	if err != nil {
		return nil, err
	}
	how := c.drained()
	if how != cay.DrainNone { // which is why this node takes none
		return nil, cay.Errorf(cay.Unavailable, "sandbox %s is on a node that is drained, and its branch %s on another one", id, branch).
			WithCode(cay.CodeNodeAway).WithHint("try again when it has gone to another node")
	}
	if err := c.bring(ctx, branch); err != nil {
		return nil, err
	}
	f, err = c.find(team, branch)
	if _, here := c.find(team, id); err == nil {
		err = here
	}
	if cay.KindOf(err) == cay.NotFound { // another request has them go on elsewhere, or ends them
		err = cay.Errorf(cay.Unavailable, "sandbox %s and its branch %s are on two nodes", id, branch).WithCode(cay.CodeNodeAway).WithHint("try again")
	}
	return f, err
}

// promote is Promote for a caller that holds both locks. The branch is paused
// first, so that no answer of it is lost; until the sandbox has taken its state
// over, that state is the branch's.
func (c *Controller) promote(ctx context.Context, who cay.Caller, e *entry, s cay.Sandbox, f *entry) (cay.Sandbox, cay.Checkpoint, error) {
	if err := c.settled(ctx, f); err != nil {
		return s, cay.Checkpoint{}, err
	}
	b := f.sandbox()
	if b.State == cay.Killed {
		return s, cay.Checkpoint{}, ledger.NoSandbox(b.ID)
	}
	if s.State != cay.Running && s.State != cay.Paused {
		return s, cay.Checkpoint{}, mustRun(s)
	}
	if err := c.related(ctx, s, b); err != nil {
		return s, cay.Checkpoint{}, err
	}
	ran := b.State == cay.Running
	left := time.Until(b.EndAt)
	if ran {
		if err := c.pause(ctx, who, f, b, cay.MemorySnapshot, cay.ReasonAsked); err != nil {
			return s, cay.Checkpoint{}, err
		}
		b = f.sandbox()
	}
	if b.State != cay.Paused {
		return s, cay.Checkpoint{}, mustRun(b)
	}
	defer c.ledger.Pin(b.Snapshot)()
	n, err := c.checkpointOf(ctx, who, f, b)
	if err == nil {
		s, err = c.moveTo(ctx, who, e, s, n, true,
			func(notice string) cay.Event {
				return ledger.NewEvent(who, s, cay.SandboxPromoted, cay.ReasonAsked, "branch", string(b.ID), "checkpoint", string(n.ID), "notice", notice)
			})
	}
	if err != nil {
		if ran {
			if _, again := c.resume(context.WithoutCancel(ctx), who, f, b, max(left, time.Minute), true, cay.ReasonFailed); again != nil {
				c.log.ErrorContext(ctx, "a branch that was not promoted stays paused", "sandbox", b.ID, "err", again)
			}
		}
		return s, n, err
	}
	// The checkpoints that led there are the sandbox's own past from now on.
	if err := c.store.GiveCheckpoints(context.WithoutCancel(ctx), s.Team, b.ID, s.ID); err != nil {
		c.log.ErrorContext(ctx, "the checkpoints of a promoted branch stay its own", "sandbox", b.ID, "err", err)
	}
	n.Sandbox = s.ID
	if err := c.end(ctx, who, f, cay.CauseAsked, ledger.Now(), "promoted into "+string(s.ID)); err != nil {
		c.log.ErrorContext(ctx, "a branch that was promoted stays paused", "sandbox", b.ID, "err", err)
	}
	return s, n, nil
}

// related refuses what is not of one tree.
func (c *Controller) related(ctx context.Context, s, b cay.Sandbox) error {
	one, err := c.store.Branch(ctx, s.Team, s.ID)
	if err != nil {
		return err
	}
	other, err := c.store.Branch(ctx, b.Team, b.ID)
	if err == nil && one.Tree != other.Tree {
		err = cay.Errorf(cay.Conflict, "sandbox %s is no fork in the tree of %s", b.ID, s.ID)
	}
	return err
}

// checkpointOf finds or makes the node of what a sandbox is paused in.
func (c *Controller) checkpointOf(ctx context.Context, who cay.Caller, e *entry, s cay.Sandbox) (cay.Checkpoint, error) {
	n, err := c.store.Checkpoint(ctx, s.Team, s.Snapshot)
	if cay.KindOf(err) != cay.NotFound {
		return n, err
	}
	return c.recordCheckpoint(ctx, who, e, s, cay.Checkpoint{ID: s.Snapshot})
}
