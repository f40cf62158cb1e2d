package control

import (
	"context"

	"github.com/cay-run/cay"
)

// pin keeps a snapshot that no record names yet, until the returned function
// is called.
func (c *Control) pin(id cay.SnapshotID) (unpin func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pins[id]++
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.pins[id]--; c.pins[id] == 0 {
			delete(c.pins, id)
		}
	}
}

// Needs reports whether a snapshot must be kept: a sandbox, a template or
// work in progress needs it, or nobody can tell.
func (c *Control) Needs(ctx context.Context, id cay.SnapshotID) bool {
	c.mu.RLock()
	pinned := c.pins[id] > 0
	c.mu.RUnlock()
	if pinned {
		return true
	}
	used, err := c.store.SnapshotUsed(ctx, id)
	return used || err != nil
}

// discard removes a snapshot that was taken of a sandbox, if nothing needs it
// any more. One that is left by a failure is found again at the next start.
func (c *Control) discard(ctx context.Context, id cay.SnapshotID) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endWithin)
	defer cancel()
	if id == "" || c.Needs(ctx, id) {
		return
	}
	c.collecting.Lock()
	defer c.collecting.Unlock()
	if c.Needs(ctx, id) {
		return
	}
	if err := c.node.RemoveSnapshot(ctx, id); err != nil {
		c.log.Warn("cannot remove a snapshot that nothing needs", "snapshot", id, "error", err)
	}
}
