package control

import (
	"context"
	"strconv"
	"sync"
	"time"

	"github.com/cay-run/cay"
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
func (c *Control) Fork(ctx context.Context, team cay.TeamID, id cay.SandboxID, count int, timeout time.Duration) ([]Forked, error) {
	if err := checkTimeout(timeout); err != nil {
		return nil, err
	}
	if count < 1 || count > MaxForks {
		return nil, cay.Errorf(cay.Invalid, "count: must be 1 to %d", MaxForks)
	}
	source, saved, unpin, err := c.checkpoint(ctx, team, id, cay.MemorySnapshot)
	if err != nil {
		return nil, err
	}
	// In this order: once unpinned, the snapshot is the forks' that there are.
	defer c.discard(ctx, saved)
	defer unpin()
	c.tell(ctx, event(ctx, source, cay.SandboxForked, cay.ReasonAsked, "count", strconv.Itoa(count), "snapshot", string(saved)))
	at, err := c.store.Branch(ctx, team, source.ID)
	if err != nil {
		return nil, err
	}
	return c.spawn(ctx, source, saved, at, count, timeout), nil
}

// spawn makes sandboxes of a snapshot that the caller has pinned. They are
// where at is in its tree.
func (c *Control) spawn(ctx context.Context, source cay.Sandbox, saved cay.SnapshotID, at cay.Branch, count int, timeout time.Duration) []Forked {
	out := make([]Forked, count)
	var wg sync.WaitGroup
	for i := range out {
		wg.Go(func() {
			s := forkOf(source, saved, timeout)
			out[i].Sandbox, out[i].Err = c.launch(ctx, s, at, timeout,
				event(ctx, s, cay.SandboxCreated, cay.ReasonFork, "source", string(source.ID), "checkpoint", string(at.Checkpoint)))
		})
	}
	wg.Wait()
	return out
}

func forkOf(source cay.Sandbox, saved cay.SnapshotID, timeout time.Duration) cay.Sandbox {
	s := source
	s.ID, s.Instance, s.Snapshot, s.State = cay.NewSandboxID(), cay.NewInstanceID(), saved, cay.Creating
	s.StartedAt, s.EndedAt, s.Timeout = now(), time.Time{}, timeout
	s.EndAt, s.Once = s.StartedAt.Add(timeout), cay.Once{}
	return s
}

func (c *Control) launch(ctx context.Context, s cay.Sandbox, at cay.Branch, timeout time.Duration, created cay.Event) (cay.Sandbox, error) {
	e, err := c.add(ctx, s, created)
	if err != nil {
		return cay.Sandbox{}, err
	}
	defer e.release()
	if err := c.enterTree(ctx, e, cay.Branch{Sandbox: s.ID, Team: s.Team, Tree: at.Tree, Checkpoint: at.Checkpoint}); err != nil {
		c.fail(ctx, e, err)
		return cay.Sandbox{}, err
	}
	return c.start(ctx, e, timeout)
}

// checkpoint saves a running sandbox, which runs on: memory and all, or its
// files alone. The snapshot is kept until it is unpinned, and as long as a
// record names it.
func (c *Control) checkpoint(ctx context.Context, team cay.TeamID, id cay.SandboxID, kind cay.SnapshotKind) (source cay.Sandbox, saved cay.SnapshotID, unpin func(), err error) {
	saved = cay.NewSnapshotID()
	unpin = c.pin(saved)
	err = c.change(ctx, team, id, func(_ *entry, s cay.Sandbox) error {
		if err := mustRun(s); err != nil {
			return err
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
