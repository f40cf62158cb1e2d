package lifecycle

import (
	"context"
	"errors"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control/ledger"
	"github.com/cay-run/cay/internal/store"
)

// comeback is how a sandbox goes on that asked for it (cay.ResumeOnHostLoss) and whose
// instance was lost: it is paused in the newest state that is kept, and moving.
type comeback struct {
	sandbox cay.Sandbox
	branch  *cay.Branch // its place in its tree, where that changes
	event   cay.Event
}

// record records it, where the sandbox is still as it was read.
func (b comeback) record(ctx context.Context, tx store.Store) error {
	err := errors.Join(tx.SkipUsage(ctx, b.sandbox.ID), tx.UpdateSandbox(ctx, b.sandbox, b.event))
	if b.branch != nil {
		err = errors.Join(err, tx.PutBranch(ctx, *b.branch))
	}
	return err
}

// keeps reports whether a snapshot is kept that the bucket has since a time, if it has.
type keeps func(id cay.SnapshotID, replicated time.Time) bool

func inBucket(_ cay.SnapshotID, replicated time.Time) bool { return !replicated.IsZero() }

// hereOrInBucket are the snapshots that this node can start.
func (c *Controller) hereOrInBucket(ctx context.Context) keeps {
	return func(id cay.SnapshotID, replicated time.Time) bool {
		if !replicated.IsZero() {
			return true
		}
		_, err := c.node.Snapshot(ctx, id)
		return err == nil
	}
}

// comebackOf finds how a sandbox goes on whose instance is lost: from the newest of the
// checkpoints that it comes from and of what it was resumed from last. Nil where it is not
// to, or nothing is kept.
func (c *Controller) comebackOf(ctx context.Context, s cay.Sandbox, kept keeps) (*comeback, error) {
	if s.OnHostLoss != cay.ResumeOnHostLoss {
		return nil, nil
	}
	at, err := c.store.Branch(ctx, s.Team, s.ID)
	if err != nil {
		return nil, err
	}
	var from cay.Checkpoint
	for id := at.Checkpoint; id != "" && from.ID == ""; {
		n, err := c.store.Checkpoint(ctx, s.Team, id)
		if err != nil {
			return nil, err
		}
		if id = n.Parent; kept(n.ID, n.ReplicatedAt) {
			from = n
		}
	}
	out := comeback{sandbox: paused(s)}
	b := &out.sandbox
	savedAt := c.savedAt(ctx, s)
	switch {
	case s.Saved != "" && kept(s.Snapshot, s.ReplicatedAt) && savedAt.After(from.CreatedAt):
	case from.ID != "":
		at.Checkpoint, at.Rewound = from.ID, true
		out.branch, savedAt = &at, from.CreatedAt
		b.Snapshot, b.Saved, b.ReplicatedAt = from.ID, from.Kind, from.ReplicatedAt
		if len(b.Volumes) > 0 {
			if b.Volumes, err = c.savedVolumes(ctx, from.ID); err != nil {
				return nil, err
			}
		}
	default:
		return nil, nil
	}
	b.Moving, b.Unresponsive = true, false
	out.event = ledger.NewEvent(cay.ForTeam(s.Team), *b, cay.SandboxPaused, cay.ReasonHostLost,
		"snapshot", string(b.Snapshot), "kind", string(b.Saved), "savedAt", ledger.Stamp(savedAt))
	return &out, nil
}

// savedAt is when the snapshot was made that a sandbox was started from; on another machine
// than this one, when the bucket had it.
func (c *Controller) savedAt(ctx context.Context, s cay.Sandbox) time.Time {
	if record, err := c.node.Snapshot(ctx, s.Snapshot); err == nil {
		return record.CreatedAt
	}
	return s.ReplicatedAt
}

// comeBack has a sandbox of this node whose instance was lost go on, and reports whether it
// does. The caller holds its lock.
func (c *Controller) comeBack(ctx context.Context, e *entry, s cay.Sandbox) (bool, error) {
	back, err := c.comebackOf(ctx, s, c.hereOrInBucket(ctx))
	if back == nil || err != nil {
		return false, err
	}
	e.lost.Store(true)
	return true, c.record(ctx, e, back.sandbox, func(ctx context.Context, s cay.Sandbox) error {
		back.sandbox = s
		return c.store.Tx(ctx, func(tx store.Store) error { return back.record(ctx, tx) })
	})
}
