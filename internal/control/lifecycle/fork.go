package lifecycle

import (
	"context"
	"strconv"
	"sync"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control/ledger"
	"github.com/cay-run/cay/internal/trail"
)

// MaxForks is how many forks can be asked for at once.
const MaxForks = 100

// Forked is one fork: a sandbox that runs, or why it does not.
type Forked struct {
	Sandbox cay.Sandbox
	Err     error
}

// Fork makes copies of a running sandbox: memory, processes and files as they
// are at one moment, each with an identity of its own. The source runs on. An
// error means that there is no fork at all.
func (c *Controller) Fork(ctx context.Context, who cay.Caller, id cay.SandboxID, count int, timeout time.Duration) (out []Forked, err error) {
	if err := who.May(cay.WriteSandboxes); err != nil {
		return nil, err
	}
	if err := checkTimeout(timeout); err != nil {
		return nil, err
	}
	if count < 1 || count > MaxForks {
		return nil, cay.Errorf(cay.Invalid, "count: must be 1 to %d", MaxForks)
	}
	ctx, done := trail.Begin(ctx, trail.Fork)
	defer func() { done(err) }()
	if err := c.mayFork(ctx, who, id); err != nil {
		return nil, err
	}
	if before, err := c.get(who.Team, id); err != nil {
		return nil, err
	} else if err := c.copyable(ctx, who, before); err != nil {
		return nil, err
	}
	source, saved, unpin, err := c.checkpoint(ctx, who.Team, id, cay.MemorySnapshot)
	if err != nil {
		return nil, err
	}
	// In this order: once unpinned, the snapshot is the forks' that there are.
	defer c.ledger.Tidy(ctx, saved)
	defer unpin()
	c.ledger.Tell(ctx, ledger.NewEvent(who, source, cay.SandboxForked, cay.ReasonAsked, "count", strconv.Itoa(count), "snapshot", string(saved)))
	at, err := c.store.Branch(ctx, who.Team, source.ID)
	if err != nil {
		return nil, err
	}
	return c.spawn(ctx, who, source, saved, at, count, timeout), nil
}

// copyable refuses copies that the caller's key could not have made anew.
func (c *Controller) copyable(ctx context.Context, who cay.Caller, source cay.Sandbox) error {
	if err := c.ledger.MayStart(ctx, who, source.Template); err != nil {
		return err
	}
	_, err := who.Marked(source.Metadata)
	return err
}

// spawn makes sandboxes of a snapshot that the caller has pinned. They are
// where at is in its tree.
func (c *Controller) spawn(ctx context.Context, who cay.Caller, source cay.Sandbox, saved cay.SnapshotID, at cay.Branch, count int, timeout time.Duration) []Forked {
	out := make([]Forked, count)
	var wg sync.WaitGroup
	for i := range out {
		wg.Go(func() {
			out[i].Sandbox, out[i].Err = c.launch(ctx, who, launch{
				sandbox: forkOf(who, source, saved, timeout), timeout: timeout,
				branch: cay.Branch{Tree: at.Tree, Checkpoint: at.Checkpoint},
				created: func(s cay.Sandbox) cay.Event {
					return ledger.NewEvent(who, s, cay.SandboxCreated, cay.ReasonFork, "source", string(source.ID), "checkpoint", string(at.Checkpoint))
				},
			})
		})
	}
	wg.Wait()
	return out
}

func forkOf(who cay.Caller, source cay.Sandbox, saved cay.SnapshotID, timeout time.Duration) cay.Sandbox {
	s := source
	s.ID, s.Instance, s.Snapshot, s.State = cay.NewSandboxID(), cay.NewInstanceID(), saved, cay.Creating
	s.ReplicatedAt, s.Moving = time.Time{}, false
	s.StartedAt, s.EndedAt, s.Timeout, s.Version = ledger.Now(), time.Time{}, timeout, 0
	s.EndAt, s.Once = s.StartedAt.Add(timeout), cay.Once{}
	if marked, err := who.Marked(s.Metadata); err == nil { // else copyable has refused it
		s.Metadata = marked
	}
	return s
}

// checkpoint saves a running sandbox, which runs on: memory and all, or its
// files alone. The snapshot is kept until it is unpinned, and as long as a
// record names it.
func (c *Controller) checkpoint(ctx context.Context, team cay.TeamID, id cay.SandboxID, kind cay.SnapshotKind) (source cay.Sandbox, saved cay.SnapshotID, unpin func(), err error) {
	saved = cay.NewSnapshotID()
	unpin = c.ledger.Pin(saved)
	err = c.change(ctx, team, id, func(_ *entry, s cay.Sandbox) error {
		if err := mustRun(s); err != nil {
			return err
		}
		leave, err := c.roomToSave(ctx, s, saved, kind, false)
		if err != nil {
			return err
		}
		defer leave()
		if kind != cay.FilesSnapshot {
			if err := c.responds(ctx, s); err != nil {
				return err
			}
		}
		source = s
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), saveWithin)
		defer cancel()
		return saveError(c.node.Checkpoint(ctx, s.Instance, c.snapshotOf(s, saved, kind)), "the sandbox could not be saved")
	})
	if err != nil {
		unpin()
	}
	return source, saved, unpin, err
}
