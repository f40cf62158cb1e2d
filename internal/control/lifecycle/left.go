package lifecycle

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/cay-run/cay"
)

// A sandbox that went to another node goes on there while its memory still comes from this one,
// which may have the only copy. This node is not drained before the other one has all of it, or
// the bucket.

const (
	// readsMost is how long a sandbox that has left counts as one on its way: its node reads its
	// memory over the same link.
	readsMost = time.Minute
	// copiedThere is how long the copy to the bucket is left to the node that has the sandbox.
	copiedThere = 10 * time.Minute
)

// Whole reports whether a node has all of a snapshot on its disk.
type Whole func(ctx context.Context, node cay.NodeID, id cay.SnapshotID) bool

// left are the sandboxes that have left this node. The zero value knows of none.
type left struct {
	mu    sync.Mutex
	known bool // what the records know of is in reads
	reads map[cay.SandboxID]reader
	has   map[cay.SnapshotID]time.Time // since when another node has them
}

// reader is a sandbox of another node that may read from this one.
type reader struct {
	team     cay.TeamID
	snapshot cay.SnapshotID
	since    time.Time
}

// forget causes another read of the records.
func (l *left) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.known = false
}

func (l *left) put(sandboxes ...cay.Sandbox) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.reads == nil {
		l.reads, l.has = map[cay.SandboxID]reader{}, map[cay.SnapshotID]time.Time{}
	}
	for _, s := range sandboxes {
		if s.ReplicatedAt.IsZero() {
			l.reads[s.ID] = reader{s.Team, s.Snapshot, time.Now()}
		}
	}
}

// stuck says what keeps this node from being drained; empty for nothing.
func (l *left) stuck() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch n := len(l.reads); {
	case !l.known:
		return "it is not known yet whether other nodes read from it"
	case n > 0:
		return fmt.Sprintf("the memory of %d sandboxes that have left is not on their nodes yet", n)
	}
	return ""
}

// copied forgets those that the bucket has.
func (l *left) copied(has func(cay.SnapshotID) bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	maps.DeleteFunc(l.reads, func(_ cay.SandboxID, r reader) bool { return has(r.snapshot) })
}

func (l *left) all() map[cay.SandboxID]reader {
	l.mu.Lock()
	defer l.mu.Unlock()
	maps.DeleteFunc(l.has, func(_ cay.SnapshotID, at time.Time) bool { return time.Since(at) > copiedThere })
	return maps.Clone(l.reads)
}

func (l *left) over(id cay.SandboxID, r reader) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.reads[id] == r {
		delete(l.reads, id)
		l.has[r.snapshot] = time.Now()
	}
}

// holds reports whether another node copies a snapshot to the bucket.
func (l *left) holds(id cay.SnapshotID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, ok := l.has[id]; ok {
		return true
	}
	for _, r := range l.reads {
		if r.snapshot == id {
			return time.Since(r.since) < readsMost
		}
	}
	return false
}

// awaitReaders looks which sandboxes that have left still read from this node, and counts those that
// left a moment ago.
func (c *Controller) awaitReaders(ctx context.Context, whole Whole) (fresh int) {
	c.readLeft(ctx)
	for id, r := range c.left.all() {
		if c.readNoMore(ctx, id, r, whole) {
			c.left.over(id, r)
		} else if time.Since(r.since) < readsMost {
			fresh++
		}
	}
	return fresh
}

// readLeft asks the records what left a node that is drained, before this server started too.
func (c *Controller) readLeft(ctx context.Context) {
	c.left.mu.Lock()
	known := c.left.known
	c.left.mu.Unlock()
	if known || c.drained() == cay.DrainNone {
		return
	}
	there, err := c.store.SandboxesFrom(ctx, c.nodeID)
	if err != nil {
		c.log.WarnContext(ctx, "cannot look what has left this node", "err", err)
		return
	}
	c.left.put(there...)
	c.left.mu.Lock()
	defer c.left.mu.Unlock()
	c.left.known = true
}

// readNoMore reports whether a sandbox that has left needs nothing of this node any more.
func (c *Controller) readNoMore(ctx context.Context, id cay.SandboxID, r reader, whole Whole) bool {
	ctx, cancel := context.WithTimeout(ctx, respondsWithin)
	defer cancel()
	s, err := c.store.Sandbox(ctx, r.team, id)
	switch {
	case cay.KindOf(err) == cay.NotFound:
		return true
	case err != nil:
		return false
	case s.State == cay.Killed, s.Snapshot != r.snapshot, !s.ReplicatedAt.IsZero(), s.Node == c.nodeID:
		return true
	}
	return whole != nil && whole(ctx, s.Node, r.snapshot)
}

// CopiedElsewhere reports whether another node copies a snapshot of this one to the bucket: that of
// a sandbox on its way there, whose node reads it over the link that a copy would share.
func (c *Controller) CopiedElsewhere(id cay.SnapshotID) bool {
	if c.left.holds(id) {
		return true
	}
	for _, e := range c.entries() {
		if s := e.sandbox(); s.Snapshot == id {
			return s.Moving && e.moving.Load() != nil
		}
	}
	return false
}
