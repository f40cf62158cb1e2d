package vnet

import (
	"io"
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/cay-run/cay"
)

// bucket is the token bucket filter of a link: its rate, and how many packets
// had to wait for it.
func bucket(t *testing.T, h *netlink.Handle, name string) (rate uint64, waited uint32) {
	t.Helper()
	link, err := h.LinkByName(name)
	if err != nil {
		t.Fatal(err)
	}
	list, err := h.QdiscList(link)
	if err != nil {
		t.Fatal(err)
	}
	for _, q := range list {
		if tbf, ok := q.(*netlink.Tbf); ok {
			rate = tbf.Rate
			if s := tbf.Statistics; s != nil && s.Queue != nil {
				waited = s.Queue.Overlimits
			}
		}
	}
	return rate, waited
}

// buckets are those of a slot.
func buckets(t *testing.T, m *Manager, s Slot) (down, up uint64, waitedDown, waitedUp uint32) {
	t.Helper()
	down, waitedDown = bucket(t, m.links, m.linkName(s.Index))
	ns, err := netns.GetFromPath(s.Namespace)
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	inside, err := netlink.NewHandleAt(ns)
	if err != nil {
		t.Fatal(err)
	}
	defer inside.Close()
	up, waitedUp = bucket(t, inside, guestLink)
	return down, up, waitedDown, waitedUp
}

func rates(t *testing.T, m *Manager, s Slot, down, up uint64) {
	t.Helper()
	if gotDown, gotUp, _, _ := buckets(t, m, s); gotDown != down || gotUp != up {
		t.Errorf("bounded to %d down and %d up, want %d and %d", gotDown, gotUp, down, up)
	}
}

// TestBandwidth: a bound is in force both ways, changes, and goes with its
// owner.
func TestBandwidth(t *testing.T) {
	m := manager(t)
	s := acquire(t, m)
	rates(t, m, s, 0, 0)
	p := cay.DefaultNetwork()
	p.Bandwidth = cay.Bandwidth{Up: 2 << 20, Down: 1 << 20}
	apply(t, m, s, p)
	rates(t, m, s, 1<<20, 2<<20)
	// Far more than the buckets hold, so that most of it has to wait.
	const amount = 1 << 20
	exchange(t, s, amount)
	if _, _, down, up := buckets(t, m, s); down == 0 || up == 0 {
		t.Errorf("of %d bytes each way, %d packets waited down and %d up", amount, down, up)
	}
	p.Bandwidth = cay.Bandwidth{Down: 30 << 20}
	apply(t, m, s, p)
	rates(t, m, s, 30<<20, 0)
	if err := m.Release(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	for range spare + 2 { // until it comes again
		next := acquire(t, m)
		rates(t, m, next, 0, 0)
		if next.Index == s.Index {
			return
		}
	}
	t.Error("the slot never came again")
}

// exchange has the host send an amount to a guest, and then the guest as much
// to the host. One after the other: an echo would come no faster than what it
// answers, and the bound of the way back would never be met.
func exchange(t *testing.T, s Slot, amount int64) {
	t.Helper()
	var l net.Listener
	err := inside(t, s.Namespace, func() (err error) {
		l, err = net.Listen("tcp4", netip.AddrPortFrom(s.Addr, 0).String())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		c, err := l.Accept()
		if err == nil {
			io.CopyN(io.Discard, c, amount)
			io.CopyN(c, zeros{}, amount)
			c.Close()
		}
	}()
	c, err := net.Dial("tcp4", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	go io.CopyN(c, zeros{}, amount)
	if n, err := io.CopyN(io.Discard, c, amount); err != nil {
		t.Fatalf("%d bytes came back, then %v", n, err)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// TestBandwidthAndNetworkOutliveTheManager: the next one finds them and takes
// them away.
func TestBandwidthAndNetworkOutliveTheManager(t *testing.T) {
	needRoot(t)
	name, network := unique()
	cfg := Config{Name: name, Network: network}
	m := open(t, cfg)
	s, other := acquire(t, m), acquire(t, m)
	p := cay.NetworkPolicy{
		Bandwidth: cay.Bandwidth{Up: 1 << 20, Down: 1 << 20},
		Private:   &cay.PrivateNetwork{Team: "team", Name: "net", Member: "a"},
	}
	apply(t, m, s, p)
	apply(t, m, other, p)
	greeting := func(s Slot) {
		t.Helper()
		err := inside(t, s.Namespace, func() error {
			l, err := net.Listen("tcp4", netip.AddrPortFrom(s.Addr, 7000).String())
			if err == nil {
				greet(t, l)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	greeting(s)
	reaches(t, other, s.Addr, 7000)
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	reaches(t, other, s.Addr, 7000)
	m = open(t, cfg)
	t.Cleanup(func() { teardown(t, m) })
	reaches(t, other, s.Addr, 7000)
	rates(t, m, s, 1<<20, 1<<20)
	if err := m.Reclaim(t.Context()); err != nil {
		t.Fatal(err)
	}
	rates(t, m, s, 0, 0)
	for range 2 {
		if again := acquire(t, m); again.Index != s.Index {
			apply(t, m, again, cay.DefaultNetwork())
			refused(t, again, s.Addr, 7000)
		}
	}
}
