package ledger

import (
	"context"
	"slices"
	"strings"
	"sync"

	"github.com/cay-run/cay"
)

// Needs reports whether a snapshot must be kept: a sandbox, a template or
// work in progress needs it, or that is unknown.
func (l *Ledger) Needs(ctx context.Context, id cay.SnapshotID) bool {
	if l.holds.has(string(id)) {
		return true
	}
	used, err := l.store.SnapshotUsed(ctx, id)
	return used || err != nil || !l.unused(ctx, id)
}

// unused reports whether no record names a snapshot, and none that was written before can come
// to name it: a change may count that was not confirmed. Garbage collection removes it later.
func (l *Ledger) unused(ctx context.Context, id cay.SnapshotID) bool {
	if l.store.Settled(ctx) != nil {
		return false
	}
	used, err := l.store.SnapshotUsed(ctx, id)
	return !used && err == nil
}

// Discard removes a snapshot that was taken of a sandbox or made of a team's
// template, if nothing needs it, and reports whether it did.
func (l *Ledger) Discard(ctx context.Context, id cay.SnapshotID) (bool, error) {
	if id == "" || l.holds.has(string(id)) {
		return false, nil
	}
	if used, err := l.store.SnapshotUsed(ctx, id); used || err != nil {
		return false, nil
	}
	return l.holds.remove(string(id),
		func() bool { return l.unused(ctx, id) },
		func() error { return l.snapshots.RemoveSnapshot(ctx, id) })
}

// Tidy is Discard for when the caller may have gone. A snapshot that is left
// by a failure is found again at the next collection.
func (l *Ledger) Tidy(ctx context.Context, id cay.SnapshotID) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), EndWithin)
	defer cancel()
	if _, err := l.Discard(ctx, id); err != nil {
		l.log.WarnContext(ctx, "cannot remove a snapshot that nothing needs", "snapshot", id, "err", err)
	}
}

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

// await holds a key after every removal of it that is under way. A thing that is
// there afterwards stays.
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

// with lists the held keys that begin with a text, without it.
func (h *holds) with(prefix string) []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var out []string
	for key := range h.held {
		if rest, ok := strings.CutPrefix(key, prefix); ok {
			out = append(out, rest)
		}
	}
	slices.Sort(out)
	return out
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

// Pin keeps a snapshot that no record names yet, until the returned function
// is called.
func (l *Ledger) Pin(id cay.SnapshotID) (unpin func()) { return l.holds.pin(string(id)) }

// Holds reports whether work in progress holds a snapshot.
func (l *Ledger) Holds(id cay.SnapshotID) bool { return l.holds.has(string(id)) }

// Await holds a snapshot whatever was removed. After it, a snapshot that is
// there stays until release.
func (l *Ledger) Await(ctx context.Context, id cay.SnapshotID) (release func(), err error) {
	return l.holds.await(ctx, string(id))
}

// Remove has remove take a template away that no work in progress holds, and
// reports whether it did.
func (l *Ledger) Remove(id cay.TemplateID, remove func() bool) bool {
	removed, _ := l.holds.remove(string(id), remove, func() error { return nil })
	return removed
}
