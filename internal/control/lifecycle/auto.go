package lifecycle

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/store"
)

// The bounds of automatic checkpoints.
const (
	minEvery    = time.Second
	maxEvery    = 24 * time.Hour
	defaultKeep = 10
	maxKeep     = 100
)

// SetAuto says when checkpoints of a sandbox are taken by themselves.
func (c *Controller) SetAuto(ctx context.Context, who cay.Caller, id cay.SandboxID, auto cay.AutoCheckpoint) (cay.AutoCheckpoint, error) {
	if err := who.May(cay.WriteSandboxes); err != nil {
		return cay.AutoCheckpoint{}, err
	}
	auto, err := checkAuto(auto)
	if err != nil {
		return auto, err
	}
	err = c.change(ctx, who.Team, id, func(e *entry, _ cay.Sandbox) error { return c.putAuto(ctx, e, auto) })
	return auto, err
}

// putAuto records what checkAuto has let pass. The caller holds the lock.
func (c *Controller) putAuto(ctx context.Context, e *entry, auto cay.AutoCheckpoint) error {
	err := c.changeBranch(ctx, e, func(b *cay.Branch) { b.Auto = auto })
	if err != nil {
		return err
	}
	e.tree.member.Store(true)
	e.setAuto(auto)
	c.lookAtCheckpoints()
	return nil
}

// changeBranch changes where a sandbox is in its tree.
func (c *Controller) changeBranch(ctx context.Context, e *entry, change func(*cay.Branch)) error {
	s := e.sandbox()
	return c.recordTree(ctx, e, func(ctx context.Context) error {
		return c.store.Tx(ctx, func(tx store.Store) error {
			b, err := tx.Branch(ctx, s.Team, s.ID)
			if err != nil {
				return err
			}
			change(&b)
			return tx.PutBranch(ctx, b)
		})
	})
}

// enterTree notes where a sandbox is in its tree.
func (e *entry) enterTree(at cay.Branch) {
	e.tree.member.Store(at.Checkpoint != "" || at.Tree != at.Sandbox || at.Auto.On())
	e.tree.rewound.Store(at.Rewound)
	if auto := e.tree.auto.Load(); auto == nil && at.Auto.On() || auto != nil && *auto != at.Auto {
		e.setAuto(at.Auto)
	}
}

// lookAtCheckpoints says that an automatic one may be due.
func (c *Controller) lookAtCheckpoints() {
	select {
	case c.wakeAuto <- struct{}{}:
	default:
	}
}

// Auto returns what SetAuto said.
func (c *Controller) Auto(_ context.Context, who cay.Caller, id cay.SandboxID) (cay.AutoCheckpoint, error) {
	if err := who.May(cay.ReadSandboxes); err != nil {
		return cay.AutoCheckpoint{}, err
	}
	e, err := c.find(who.Team, id)
	if err != nil {
		return cay.AutoCheckpoint{}, err
	}
	if auto := e.tree.auto.Load(); auto != nil {
		return *auto, nil
	}
	return cay.AutoCheckpoint{}, nil
}

func checkAuto(a cay.AutoCheckpoint) (cay.AutoCheckpoint, error) {
	if a.Every != 0 && (a.Every < minEvery || a.Every > maxEvery) {
		return a, cay.Errorf(cay.Invalid, "everySeconds: must be 0, or %d to %d", int(minEvery.Seconds()), int(maxEvery.Seconds()))
	}
	if a.Keep < 0 || a.Keep > maxKeep {
		return a, cay.Errorf(cay.Invalid, "keep: must be 1 to %d", maxKeep)
	}
	if a.Keep == 0 {
		a.Keep = defaultKeep
	}
	if !a.On() {
		return cay.AutoCheckpoint{}, nil
	}
	return a, checkKind(a.Kind)
}

func (e *entry) setAuto(auto cay.AutoCheckpoint) {
	e.tree.saved.Store(time.Now().UnixMilli())
	if !auto.On() {
		e.tree.auto.Store(nil)
		return
	}
	e.tree.auto.Store(&auto)
}

// Used notes a request that may change a sandbox, before it gets there. A command
// is one that starts a program or runs code: with checkpoints before each it
// waits for one. A failed checkpoint does not stop the command.
func (c *Controller) Used(ctx context.Context, id cay.SandboxID, command bool) {
	c.mu.RLock()
	e := c.live[id]
	c.mu.RUnlock()
	if e == nil {
		return
	}
	fresh := e.tree.rewound.Load() && e.tree.rewound.Swap(false)
	if fresh {
		if err := c.changeBranch(ctx, e, func(b *cay.Branch) { b.Rewound = false }); err != nil {
			c.log.WarnContext(ctx, "cannot record that a sandbox is used again", "sandbox", id, "err", err)
		}
	}
	auto := e.tree.auto.Load()
	if !command || auto == nil || !auto.Before || fresh { // its checkpoint is as it is
		return
	}
	if err := c.autoCheckpoint(ctx, e, *auto); err != nil && ctx.Err() == nil {
		c.log.WarnContext(ctx, "no checkpoint before a command", "sandbox", id, "err", err)
	}
}

// autoCheckpoint takes a checkpoint and lets go of those that are too many.
func (c *Controller) autoCheckpoint(ctx context.Context, e *entry, auto cay.AutoCheckpoint) error {
	if err := e.acquire(ctx); err != nil {
		return err
	}
	defer e.release()
	if err := c.settled(ctx, e); err != nil {
		return err
	}
	s := e.sandbox()
	if s.State != cay.Running {
		return nil
	}
	if _, err := c.addCheckpoint(ctx, cay.ForTeam(s.Team), e, s, cay.Checkpoint{Auto: true, Kind: auto.Kind}); err != nil {
		return err
	}
	e.tree.saved.Store(time.Now().UnixMilli())
	nodes, err := c.store.Checkpoints(ctx, store.CheckpointQuery{Team: s.Team, Sandbox: s.ID})
	if err != nil {
		return err
	}
	nodes = slices.DeleteFunc(nodes, func(n cay.Checkpoint) bool { return !n.Auto || n.Label != "" })
	return c.forgetUnused(ctx, nodes[:max(0, len(nodes)-auto.Keep)]) // the oldest come first
}

// checkpointByTime takes the checkpoints that are due every so often. It
// sleeps until the nearest one.
func (c *Controller) checkpointByTime(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		due, next := c.dueCheckpoints()
		for _, e := range due {
			wg.Go(func() {
				defer func() {
					e.tree.saving.Store(false)
					c.lookAtCheckpoints() // a look meanwhile has left it out
				}()
				auto := e.tree.auto.Load()
				if auto == nil {
					return
				}
				e.tree.saved.Store(time.Now().UnixMilli()) // also when it fails: not again and again
				if err := c.autoCheckpoint(ctx, e, *auto); err != nil && ctx.Err() == nil {
					c.log.WarnContext(ctx, "no checkpoint by time", "sandbox", e.sandbox().ID, "err", err)
				}
			})
		}
		timer := time.NewTimer(time.Until(next))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-c.wakeAuto:
			timer.Stop()
		case <-timer.C:
		}
	}
}

// dueCheckpoints returns the sandboxes to save now, marked so, and when to
// look again.
func (c *Controller) dueCheckpoints() (due []*entry, next time.Time) {
	t := time.Now()
	next = t.Add(lookAgain)
	for _, e := range c.entries() {
		auto := e.tree.auto.Load()
		if auto == nil || auto.Every == 0 || e.sandbox().State != cay.Running || e.tree.saving.Load() {
			continue
		}
		at := time.UnixMilli(e.tree.saved.Load()).Add(auto.Every)
		if !t.Before(at) {
			e.tree.saving.Store(true)
			due = append(due, e)
			at = t.Add(auto.Every)
		}
		if at.Before(next) {
			next = at
		}
	}
	return due, next
}
