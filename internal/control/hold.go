package control

import (
	"context"
	"sync"

	"github.com/cay-run/cay"
)

// holds are claims on snapshots and templates by work in progress, which no
// record names yet. Removal goes the other way: it takes what has no hold,
// looks whether a record names it, and removes it. Work that is about to take a
// hold waits for the look, which is short, and never for the removal, which may
// have to end instances of the warm pool.
type holds struct {
	mu       sync.Mutex
	held     map[string]int
	going    map[string]*removal
	removals int64 // decided so far
}

// removal is what is being removed, or looked at for that.
type removal struct {
	decided chan struct{} // closed when it is known whether it goes
	done    chan struct{} // closed when it is gone, or stays
}

// next is closed at the next step.
func (g *removal) next() chan struct{} {
	select {
	case <-g.decided:
		return g.done
	default:
		return g.decided
	}
}

func newHolds() *holds {
	return &holds{held: make(map[string]int), going: make(map[string]*removal)}
}

// moment is to be taken before the records are read that name what is held
// then.
func (h *holds) moment() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.removals
}

// pin holds something that its caller knows to be there, or to come to be.
func (h *holds) pin(keys ...string) (release func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.take(keys)
}

// take is pin for callers that have the lock.
func (h *holds) take(keys []string) (release func()) {
	for _, key := range keys {
		h.held[key]++
	}
	return sync.OnceFunc(func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		for _, key := range keys {
			if h.held[key]--; h.held[key] == 0 {
				delete(h.held, key)
			}
		}
	})
}

// hold takes what was found in records that were read after the moment since.
// It is nil when something was removed since then: the records are to be read
// again.
func (h *holds) hold(ctx context.Context, since int64, keys ...string) (release func(), err error) {
	for {
		h.mu.Lock()
		if h.removals != since {
			h.mu.Unlock()
			return nil, nil
		}
		var wait chan struct{}
		for _, key := range keys {
			if g := h.going[key]; g != nil {
				wait = g.next()
			}
		}
		if wait == nil {
			release = h.take(keys)
			h.mu.Unlock()
			return release, nil
		}
		h.mu.Unlock()
		select {
		case <-wait:
		case <-ctx.Done():
			return nil, cay.Wrap(cay.Unavailable, ctx.Err(), "what it starts from is being removed")
		}
	}
}

// await holds something whatever was removed. After it, what is there stays.
func (h *holds) await(ctx context.Context, key string) (release func(), err error) {
	for {
		h.mu.Lock()
		g := h.going[key]
		if g == nil {
			release = h.take([]string{key})
			h.mu.Unlock()
			return release, nil
		}
		h.mu.Unlock()
		select {
		case <-g.done:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (h *holds) has(key string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.held[key] > 0
}

// remove has what nothing holds looked at, and removed if unused says so. It
// reports whether it was.
func (h *holds) remove(key string, unused func() bool, do func() error) (removed bool, err error) {
	g := h.begin(key)
	if g == nil {
		return false, nil
	}
	defer func() {
		h.mu.Lock()
		delete(h.going, key)
		h.mu.Unlock()
		close(g.done)
	}()
	goes := unused()
	if goes {
		h.mu.Lock()
		h.removals++
		h.mu.Unlock()
	}
	close(g.decided)
	if !goes {
		return false, nil
	}
	return true, do()
}

// begin is nil for what is held, or goes already.
func (h *holds) begin(key string) *removal {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.held[key] > 0 || h.going[key] != nil {
		return nil
	}
	g := &removal{decided: make(chan struct{}), done: make(chan struct{})}
	h.going[key] = g
	return g
}

// pin keeps a snapshot that no record names yet, until the returned function
// is called.
func (c *Control) pin(id cay.SnapshotID) (unpin func()) { return c.holds.pin(string(id)) }

// held finds a team's template of a reference and holds its snapshot, and the
// template itself if asked.
func (c *Control) held(ctx context.Context, team cay.TeamID, ref string, withTemplate bool) (t cay.Template, release func(), err error) {
	for {
		since := c.holds.moment()
		if t, err = c.findTemplate(ctx, team, ref); err != nil {
			return t, nil, err
		}
		keys := []string{string(t.Snapshot)}
		if withTemplate {
			keys = append(keys, string(t.ID))
		}
		if release, err = c.holds.hold(ctx, since, keys...); release != nil || err != nil {
			return t, release, err
		}
	}
}
