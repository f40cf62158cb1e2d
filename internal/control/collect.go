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

// Discard removes a snapshot that was taken of a sandbox or made of a team's
// template, if nothing needs it, and reports whether it did.
func (c *Control) Discard(ctx context.Context, id cay.SnapshotID) (bool, error) {
	if id == "" || c.Needs(ctx, id) {
		return false, nil
	}
	c.collecting.Lock()
	defer c.collecting.Unlock()
	if c.Needs(ctx, id) {
		return false, nil
	}
	return true, c.node.RemoveSnapshot(ctx, id)
}

// discard is Discard for when the caller may have gone. A snapshot that is left
// by a failure is found again at the next collection.
func (c *Control) discard(ctx context.Context, id cay.SnapshotID) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endWithin)
	defer cancel()
	if _, err := c.Discard(ctx, id); err != nil {
		c.log.Warn("cannot remove a snapshot that nothing needs", "snapshot", id, "error", err)
	}
}
