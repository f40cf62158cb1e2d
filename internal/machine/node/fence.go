package node

import (
	"context"
	"errors"
	"time"

	"github.com/cay-run/cay"
)

// Another machine may go on with a fenced instance once the lease of this one is over. So
// it sends nothing then, which the kernel sees to, and stands still, which the server does
// that notices.

// KeepLease lets fenced instances send for a time from now on, and has those go on that
// StandStill stopped, by this server or the one before.
func (n *Node) KeepLease(ctx context.Context, lasts time.Duration) error {
	if err := n.cfg.Net.KeepLease(ctx, lasts); err != nil {
		return err
	}
	if !n.stands.CompareAndSwap(true, false) {
		return nil
	}
	err := n.eachFenced(ctx, func(*instance) bool { return true }, n.cfg.Engine.Thaw)
	if err != nil {
		n.stands.Store(true) // the next renewal tries again
	}
	return err
}

// StandStill stops fenced instances until KeepLease. One that is being paused has stopped, or is
// about to: an engine that is stopped as well would save it, and keep its files, never.
func (n *Node) StandStill(ctx context.Context) error {
	n.stands.Store(true)
	return n.eachFenced(ctx, func(inst *instance) bool { return !inst.pausing }, n.cfg.Engine.Freeze)
}

// pausing notes whether an instance is being paused. One that is not any more stands still if
// others do.
func (n *Node) pausing(inst *instance, is bool) {
	n.mu.Lock()
	inst.pausing = is
	n.mu.Unlock()
	if is || !inst.spec.Fenced || !n.stands.Load() {
		return
	}
	if err := n.cfg.Engine.Freeze(context.Background(), inst.spec.Instance); err != nil && cay.KindOf(err) != cay.NotFound {
		n.cfg.Log.Error("a sandbox that goes on elsewhere does not stand still: it sends nothing", "sandbox", inst.spec.Sandbox, "err", err)
	}
}

// eachFenced does something with the fenced instances that fit.
func (n *Node) eachFenced(ctx context.Context, fits func(*instance) bool, do func(context.Context, cay.InstanceID) error) error {
	n.mu.Lock()
	var ids []cay.InstanceID
	for id, inst := range n.instances {
		if !inst.pooled.Load() && inst.spec.Fenced && fits(inst) {
			ids = append(ids, id)
		}
	}
	n.mu.Unlock()
	var errs []error
	for _, id := range ids {
		if err := do(ctx, id); cay.KindOf(err) != cay.NotFound { // one that is over
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
