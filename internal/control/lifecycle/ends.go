package lifecycle

import (
	"sync"

	"github.com/cay-run/cay"
)

// endsKept is how many ends are remembered: requests that come just after one are told
// why, without a look at the records for each stranger who knocks.
const endsKept = 4096

// ends are the latest ends of sandboxes.
type ends struct {
	mu    sync.Mutex
	cause map[cay.SandboxID]cay.Cause
	order []cay.SandboxID // a ring, once it is full
	next  int
}

func (e *ends) note(id cay.SandboxID, cause cay.Cause) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.cause == nil {
		e.cause = make(map[cay.SandboxID]cay.Cause)
	}
	if _, known := e.cause[id]; known {
		return
	}
	e.cause[id] = cause
	if len(e.order) < endsKept {
		e.order = append(e.order, id)
		return
	}
	delete(e.cause, e.order[e.next])
	e.order[e.next] = id
	e.next = (e.next + 1) % endsKept
}

func (e *ends) of(id cay.SandboxID) (cay.Cause, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	cause, ok := e.cause[id]
	return cause, ok
}

// Fate returns the state of a sandbox of this node, and the cause of its end where it
// has ended lately; empty where nothing is known.
func (c *Controller) Fate(id cay.SandboxID) (cay.State, cay.Cause) {
	if e := c.entry(id); e != nil {
		s := e.sandbox()
		return s.State, s.Cause
	}
	if cause, ok := c.ends.of(id); ok {
		return cay.Killed, cause
	}
	return "", ""
}
