package egress

import (
	"sync"
	"time"

	"github.com/cay-run/cay"
)

// kept is how many connections of a guest are remembered.
const kept = 256

// ring remembers a guest's latest connections.
type ring struct {
	mu      sync.Mutex
	entries []*entry
	next    int
}

// entry is a connection that may still be open.
type entry struct {
	mu sync.Mutex
	c  cay.Connection
}

func (r *ring) add(c cay.Connection) *entry {
	e := &entry{c: c}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.entries) < kept {
		r.entries = append(r.entries, e)
	} else {
		r.entries[r.next] = e
		r.next = (r.next + 1) % kept
	}
	return e
}

func (e *entry) update(f func(*cay.Connection)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	f(&e.c)
}

func (e *entry) finish(sent, received int64) {
	e.update(func(c *cay.Connection) {
		if c.Open {
			c.Sent, c.Received, c.Open, c.Took = sent, received, false, time.Since(c.At)
		}
	})
}

// list returns copies, the oldest first.
func (r *ring) list() []cay.Connection {
	r.mu.Lock()
	entries := append(append([]*entry(nil), r.entries[r.next:]...), r.entries[:r.next]...)
	r.mu.Unlock()
	out := make([]cay.Connection, 0, len(entries))
	for _, e := range entries {
		e.update(func(c *cay.Connection) { out = append(out, *c) })
	}
	return out
}
