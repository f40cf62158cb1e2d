package vnet

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/cay-run/cay"
)

// diverted accepts what the filter diverts, says "diverted" and tells where it
// was going.
func diverted(t *testing.T, m *Manager) <-chan netip.AddrPort {
	out := make(chan netip.AddrPort, 64)
	go func() {
		for {
			c, err := m.Diverted().Conns.Accept()
			if err != nil {
				return
			}
			dst, err := Original(c)
			if err != nil {
				t.Errorf("Original: %v", err)
			}
			c.Close()
			out <- dst
		}
	}()
	return out
}

func TestDivert(t *testing.T) {
	w := newWorld(t)
	m := manager(t)
	s := acquire(t, m)
	seen := diverted(t, m)
	goes := func(what string, a netip.Addr, port uint16, want bool) {
		t.Helper()
		to := netip.AddrPortFrom(a, port)
		err := inside(t, s.Namespace, func() error {
			c, err := net.DialTimeout("tcp", to.String(), patience)
			if err == nil {
				c.Close()
			}
			return err
		})
		wait := 100 * time.Millisecond // an answer that comes too late fails the next try
		if want {
			wait = patience
		}
		select {
		case got := <-seen:
			if !want || got != to {
				t.Errorf("%s: a connection to %s was diverted as one to %s, want %v", what, to, got, want)
			}
		case <-time.After(wait):
			if want {
				t.Errorf("%s: the connection to %s was not diverted (%v)", what, to, err)
			}
		}
	}
	goes("no policy", w.public, w.port, true)
	apply(t, m, s, cay.DefaultNetwork())
	goes("open", w.public, w.port, false)
	apply(t, m, s, cay.NetworkPolicy{AllowInternet: true, DenyOut: []string{w.public.String()}})
	goes("denied", w.public, w.port, true)
	goes("not denied", w.public2, w.port, false)
	goes("private", w.private[0], w.port, false)
	goes("gateway", Gateway, 22, false)
	apply(t, m, s, cay.NetworkPolicy{AllowOut: []string{w.public.String()}})
	goes("allowed", w.public, w.port, false)
	goes("not allowed", w.public2, w.port, true)
	goes("not allowed and private", w.private[1], w.port, false)
	apply(t, m, s, cay.NetworkPolicy{AllowInternet: true, Rules: map[string][]cay.HeaderRule{"a.example": nil}})
	goes("the web with rules", w.public, 443, true)
	goes("the web with rules", w.public, 80, true)
	goes("another port with rules", w.public, w.port, false)
	goes("the web of a private address", w.private[2], 443, false)
	apply(t, m, s, cay.NetworkPolicy{AllowInternet: true, Proxy: &cay.EgressProxy{Address: "192.88.99.1:1080"}})
	goes("anything with a proxy", w.public, w.port, true)
}

func TestDialStaysOutside(t *testing.T) {
	w := newWorld(t)
	m := manager(t)
	ctx := t.Context()
	c, err := m.Dial(ctx, "tcp4", netip.AddrPortFrom(w.public, w.port).String())
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	l, err := net.Listen("tcp4", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	greet(t, l)
	own := portOf(l.Addr())
	for _, to := range []netip.AddrPort{
		netip.AddrPortFrom(w.private[0], w.port), netip.AddrPortFrom(w.near, w.port),
		netip.MustParseAddrPort("127.0.0.1:" + netip.AddrPortFrom(w.public, own).String()[len(w.public.String())+1:]),
	} {
		if c, err := m.Dial(ctx, "tcp4", to.String()); err == nil {
			c.Close()
			t.Errorf("Dial reaches %s", to)
		}
		if !m.Closed(to.Addr()) {
			t.Errorf("%s is not said to be closed", to)
		}
	}
	if m.Closed(w.public) || !m.Closed(netip.IPv6LinkLocalAllNodes()) {
		t.Error("Closed is wrong about public addresses")
	}
}

func TestOpenedRange(t *testing.T) {
	w := newWorld(t)
	name, network := unique()
	m := open(t, Config{Name: name, Network: network, Opened: []netip.Prefix{netip.PrefixFrom(w.private[0], 32), network}})
	t.Cleanup(func() { teardown(t, m) })
	s := acquire(t, m)
	apply(t, m, s, cay.DefaultNetwork())
	reaches(t, s, w.private[0], w.port)
	refused(t, s, w.private[1], w.port)
	if !m.Closed(s.Addr) {
		t.Error("the sandboxes' own network was opened")
	}
}

func TestClosedRange(t *testing.T) {
	w := newWorld(t)
	name, network := unique()
	m := open(t, Config{Name: name, Network: network, Closed: []netip.Prefix{netip.PrefixFrom(w.public, 32), netip.MustParsePrefix("2001:470::/32")}})
	t.Cleanup(func() { teardown(t, m) })
	s := acquire(t, m)
	apply(t, m, s, cay.NetworkPolicy{AllowInternet: true, AllowOut: []string{w.public.String()}})
	refused(t, s, w.public, w.port)
	reaches(t, s, w.public2, w.port)
	if !m.Closed(w.public) || m.Closed(w.public2) {
		t.Error("Closed does not say so")
	}
}
