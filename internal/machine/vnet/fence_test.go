package vnet

import (
	"net/netip"
	"testing"
	"time"

	"github.com/cay-run/cay"
)

// Packets of a fenced slot pass while the lease lasts, which the kernel ends by itself;
// whatever its policy is, and however often the lease is renewed. Others never notice.
func TestFence(t *testing.T) {
	w := newWorld(t)
	needRoot(t)
	name, network := unique()
	cfg := Config{Name: name, Network: network}
	m := open(t, cfg)
	t.Cleanup(func() { teardown(t, m) })
	s, plain := acquire(t, m), acquire(t, m)
	for _, one := range []Slot{s, plain} {
		apply(t, m, one, cay.DefaultNetwork())
	}
	if err := m.Fence(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	refused(t, s, w.public, w.port)
	keep := func(lasts time.Duration) {
		t.Helper()
		if err := m.KeepLease(t.Context(), lasts); err != nil {
			t.Fatal(err)
		}
	}
	keep(time.Hour)
	reaches(t, s, w.public, w.port)
	apply(t, m, s, cay.NetworkPolicy{AllowInternet: true, AllowOut: []string{"1.1.1.1"}}) // the fence stays
	for range 3 {
		keep(time.Hour)
	}
	keep(time.Second) // shorter than it was
	eventually(t, "the end of the lease", func() bool {
		target := netip.AddrPortFrom(w.public, w.port).String()
		return inside(t, s.Namespace, func() error { return dial(target, refusal) }) != nil
	})
	refused(t, s, w.public, w.port)
	reaches(t, plain, w.public, w.port)
	keep(time.Hour) // one that is over
	reaches(t, s, w.public, w.port)

	// The next server finds the fence, and closes the lease no sooner than the last one did.
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	m = open(t, cfg)
	for _, one := range []*Slot{&s, &plain} {
		found, err := m.Adopt(t.Context(), one.Index)
		if err != nil {
			t.Fatal(err)
		}
		*one = found
	}
	reaches(t, s, w.public, w.port)
	apply(t, m, s, cay.DefaultNetwork())
	keep(time.Millisecond)
	eventually(t, "the end of the lease", func() bool {
		target := netip.AddrPortFrom(w.public, w.port).String()
		return inside(t, s.Namespace, func() error { return dial(target, refusal) }) != nil
	})
	// A slot that is released is no instance's: the next one is not fenced.
	if err := m.Release(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	for range 8 {
		next := acquire(t, m)
		apply(t, m, next, cay.DefaultNetwork())
		reaches(t, next, w.public, w.port)
		if next.Index == s.Index {
			return
		}
	}
	t.Error("the slot did not come again")
}
