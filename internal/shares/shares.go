// Package shares has the bounds of a host that several parties use: places, bytes,
// pixels. No party can use up a bound for the others.
package shares

import (
	"context"
	"net/netip"
	"sync"
)

// Bound is what parties may hold together. A party gets more as long as it then holds no
// more than what is left for all others; a party that holds nothing gets what is left. So
// one party alone has half of the bound, each of two a third, and the next one finds
// something free. Its methods are safe for concurrent use.
type Bound[K comparable] struct {
	all, each int64

	mu      sync.Mutex
	used    int64
	held    map[K]int64
	waiting []*wait[K] // the longest first
}

// wait is a call of Wait.
type wait[K comparable] struct {
	party K
	n     int64
	ready chan struct{} // closed when it has its part
}

// New returns a bound of all parties, and of each party where each is not 0.
func New[K comparable](all, each int64) *Bound[K] {
	return &Bound[K]{all: all, each: each, held: map[K]int64{}}
}

// Fits reports whether a party that holds so much of a bound may have n more, where others
// hold the rest of what is used.
func Fits(all, used, held, n int64) bool {
	left := all - used - n
	return left >= 0 && (held == 0 || held+n <= left)
}

func (b *Bound[K]) fits(party K, n int64) bool {
	held := b.held[party]
	return (b.each == 0 || held+n <= b.each) && Fits(b.all, b.used, held, n)
}

func (b *Bound[K]) add(party K, n int64) {
	b.used += n
	if b.held[party] += n; b.held[party] == 0 {
		delete(b.held, party)
	}
}

// Take takes n for a party, which gives it back, or reports that it may not have it now.
func (b *Bound[K]) Take(party K, n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.fits(party, n) {
		return false
	}
	b.add(party, n)
	return true
}

// Give gives back n that a party took.
func (b *Bound[K]) Give(party K, n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.add(party, -n)
	b.serve()
}

// Wait takes n for a party, and waits until it may have it. A free part goes to the
// party that holds least, and among those to the one that waits longest: a long queue of
// one party is no queue for another.
func (b *Bound[K]) Wait(ctx context.Context, party K, n int64) error {
	b.mu.Lock()
	mine := &wait[K]{party, n, make(chan struct{})}
	b.waiting = append(b.waiting, mine)
	b.serve()
	b.mu.Unlock()
	select {
	case <-mine.ready:
		return nil
	case <-ctx.Done():
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case <-mine.ready: // it came at the same moment
		b.add(party, -n)
		b.serve()
	default:
		b.leave(mine)
	}
	return ctx.Err()
}

// serve gives waiting calls what is free. The caller holds the lock.
func (b *Bound[K]) serve() {
	for {
		var next *wait[K]
		for _, w := range b.waiting {
			if b.fits(w.party, w.n) && (next == nil || b.held[w.party] < b.held[next.party]) {
				next = w
			}
		}
		if next == nil {
			return
		}
		b.leave(next)
		b.add(next.party, next.n)
		close(next.ready)
	}
}

func (b *Bound[K]) leave(gone *wait[K]) {
	for i, w := range b.waiting {
		if w == gone {
			b.waiting = append(b.waiting[:i], b.waiting[i+1:]...)
			return
		}
	}
}

// Network returns the network of an address, without the bits that its owner chooses
// freely: an IPv4 address stands for itself, of one of IPv6 so many bits are left. It
// returns anything else as it is.
func Network(address string, bits int) string {
	at, err := netip.ParseAddr(address)
	if err != nil {
		return address
	}
	if at = at.Unmap(); at.Is4() {
		return at.String()
	}
	network, err := at.WithZone("").Prefix(bits)
	if err != nil {
		return address
	}
	return network.String()
}

// Used returns how much all parties hold.
func (b *Bound[K]) Used() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used
}
