package control

import (
	"context"

	"github.com/cay-run/cay"
)

// Needs reports whether a snapshot must be kept: a sandbox, a template or
// work in progress needs it, or that is unknown.
func (c *Control) Needs(ctx context.Context, id cay.SnapshotID) bool {
	if c.holds.has(string(id)) {
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
	return c.holds.remove(string(id),
		func() bool { used, err := c.store.SnapshotUsed(ctx, id); return !used && err == nil },
		func() error { return c.node.RemoveSnapshot(ctx, id) })
}

// discard is Discard for when the caller may have gone. A snapshot that is left
// by a failure is found again at the next collection.
func (c *Control) discard(ctx context.Context, id cay.SnapshotID) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endWithin)
	defer cancel()
	if _, err := c.Discard(ctx, id); err != nil {
		c.log.Warn("cannot remove a snapshot that nothing needs", "snapshot", id, "err", err)
	}
}
