package vnet

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/cay-run/cay"
)

func TestReach(t *testing.T) {
	w := newWorld(t)
	m := manager(t)
	s, neighbour := acquire(t, m), acquire(t, m)
	apply(t, m, neighbour, cay.DefaultNetwork())

	l, err := net.Listen("tcp", "[::]:0")
	if err != nil {
		t.Fatal(err)
	}
	greet(t, l)
	hostPort := l.Addr().(*net.TCPAddr).AddrPort().Port()
	var guestPort uint16
	if err := inside(t, neighbour.Namespace, func() error {
		l, err := net.Listen("tcp4", "0.0.0.0:0")
		if err != nil {
			return err
		}
		guestPort = l.Addr().(*net.TCPAddr).AddrPort().Port()
		greet(t, l)
		return nil
	}); err != nil {
		t.Fatal(err)
	}

	// The host reaches everything, so what a guest cannot reach is refused.
	for _, a := range append([]netip.Addr{w.public, w.public2, w.near}, w.private...) {
		if err := dial(netip.AddrPortFrom(a, w.port).String(), patience); err != nil {
			t.Fatalf("the host cannot reach %s: %v", a, err)
		}
	}
	if err := dial(netip.AddrPortFrom(neighbour.Addr, guestPort).String(), patience); err != nil {
		t.Fatalf("the host cannot reach a guest: %v", err)
	}

	refused(t, s, w.public, w.port) // no policy yet
	apply(t, m, s, cay.DefaultNetwork())
	reaches(t, s, w.public, w.port)
	reaches(t, s, w.public2, w.port)

	for _, a := range append([]netip.Addr{w.near}, w.private...) {
		refused(t, s, a, w.port)
	}
	refused(t, s, neighbour.Addr, guestPort)
	refused(t, s, Gateway, hostPort)
	for _, a := range hostAddresses(t) {
		refused(t, s, a, hostPort)
	}

	t.Run("AllowOut opens nothing that is closed for ever", func(t *testing.T) {
		apply(t, m, s, cay.NetworkPolicy{AllowInternet: true, AllowOut: []string{"0.0.0.0/0"}})
		refused(t, s, w.private[0], w.port)
		refused(t, s, neighbour.Addr, guestPort)
		refused(t, s, Gateway, hostPort)
	})
	t.Run("policies", func(t *testing.T) {
		apply(t, m, s, cay.NetworkPolicy{})
		refused(t, s, w.public, w.port)
		apply(t, m, s, cay.NetworkPolicy{AllowOut: []string{w.public.String(), w.public.String() + "/31"}})
		reaches(t, s, w.public, w.port)
		refused(t, s, w.public2, w.port)
		apply(t, m, s, cay.NetworkPolicy{AllowInternet: true, DenyOut: []string{"192.88.99.0/25", "::/0"}})
		refused(t, s, w.public, w.port)
		reaches(t, s, w.public2, w.port)
		apply(t, m, s, cay.NetworkPolicy{AllowInternet: true, AllowOut: []string{w.public.String()}, DenyOut: []string{"0.0.0.0/0"}})
		reaches(t, s, w.public, w.port)
		refused(t, s, w.public2, w.port)
		apply(t, m, s, cay.DefaultNetwork())
		reaches(t, s, w.public2, w.port)
		reaches(t, neighbour, w.public, w.port)
	})
}

// hostAddresses are the host's own, of both families, but loopback ones.
func hostAddresses(t *testing.T) []netip.Addr {
	t.Helper()
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	var out []netip.Addr
	for _, a := range addrs {
		p, ok := prefixOf(a.(*net.IPNet))
		// Other tests' links come and go; these belong to the machine.
		if ok && !p.Addr().IsLoopback() && !netip.MustParsePrefix("100.64.0.0/10").Contains(p.Addr()) {
			out = append(out, p.Addr())
		}
	}
	return out
}

// TestOperatorsCanList: a rule that nft cannot read makes it abort, for every
// table of the host.
func TestOperatorsCanList(t *testing.T) {
	m := manager(t)
	nft, err := exec.LookPath("nft")
	if err != nil {
		t.Skip("NOT TESTED HERE: there is no nft")
	}
	apply(t, m, acquire(t, m), cay.NetworkPolicy{
		AllowInternet: true, AllowOut: []string{"192.88.99.0/24"}, DenyOut: []string{"192.88.98.1"},
		Private: &cay.PrivateNetwork{Team: "team", Name: "net"},
	})
	out, err := exec.CommandContext(t.Context(), nft, "list", "table", "inet", m.name).CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("chain forward")) {
		t.Errorf("nft list table: %v\n%s", err, out)
	}
}

func TestSpoofedSourceIsDropped(t *testing.T) {
	w := newWorld(t)
	m := manager(t)
	s := acquire(t, m)
	apply(t, m, s, cay.DefaultNetwork())
	reaches(t, s, w.public, w.port)
	before := dropped(t, m, "spoofing")
	if err := inside(t, s.Namespace, func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		packet := []byte{
			0x45, 0, 0, 28, 0, 0, 0, 0, 64, unix.IPPROTO_UDP, 0, 0,
			8, 8, 8, 8, 0, 0, 0, 0, // another's name
			0, 9, 0, 9, 0, 8, 0, 0,
		}
		copy(packet[16:], w.public.AsSlice())
		return unix.Sendto(fd, packet, 0, &unix.SockaddrInet4{Addr: w.public.As4()})
	}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the packet is dropped", func() bool { return dropped(t, m, "spoofing") > before })
}

func TestIPv6IsDropped(t *testing.T) {
	m := manager(t)
	s := acquire(t, m)
	apply(t, m, s, cay.DefaultNetwork())
	// Turn on again what the slot has off, as a guest's own stack may.
	link, err := netlink.LinkByName(m.linkName(s.Index))
	if err != nil {
		t.Fatal(err)
	}
	const conf = "/proc/sys/net/ipv6/conf/"
	if _, err := os.Stat(conf); err != nil {
		t.Skip("NOT TESTED HERE: the kernel has no IPv6")
	}
	if err := os.WriteFile(conf+link.Attrs().Name+"/disable_ipv6", []byte("0"), 0o644); err != nil {
		t.Fatal(err)
	}
	before := dropped(t, m, "spoofing")
	if err := inside(t, s.Namespace, func() error {
		for _, which := range []string{"all", guestLink} {
			if err := os.WriteFile(conf+which+"/disable_ipv6", []byte("0"), 0o644); err != nil {
				return err
			}
		}
		eth, err := net.InterfaceByName(guestLink)
		if err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		// A UDP packet to the host's well-known all-nodes address.
		packet := make([]byte, 48)
		packet[0], packet[5], packet[6], packet[7] = 0x60, 8, unix.IPPROTO_UDP, 1
		copy(packet[8:], net.ParseIP("fe80::2"))
		copy(packet[24:], net.ParseIP("ff02::1"))
		packet[45] = 8
		gateway, _ := net.ParseMAC(gatewayMAC)
		to := &unix.SockaddrLinklayer{Protocol: 0xdd86, Ifindex: eth.Index, Halen: 6}
		copy(to.Addr[:], gateway)
		return unix.Sendto(fd, packet, 0, to)
	}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the packet is dropped", func() bool { return dropped(t, m, "spoofing") > before })
}

// Questions go straight to a public name server. Those for any other, which may
// know internal names, go to the server of Diverted.
func TestNames(t *testing.T) {
	w := newWorld(t)
	var far, near net.PacketConn
	if err := inside(t, w.path, func() (err error) {
		if far, err = net.ListenPacket("udp4", netip.AddrPortFrom(w.public, 0).String()); err != nil {
			return err
		}
		near, err = net.ListenPacket("udp4", netip.AddrPortFrom(w.private[0], 0).String())
		return err
	}); err != nil {
		t.Fatal(err)
	}
	echoUDP(t, far)
	t.Cleanup(func() { near.Close() })
	loop, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { loop.Close() })
	for name, resolver := range map[string]net.PacketConn{"public": far, "private": near, "loopback": loop} {
		t.Run(name, func(t *testing.T) {
			m := manager(t, resolver.LocalAddr().(*net.UDPAddr).AddrPort())
			if resolver != far {
				echoUDP(t, m.Diverted().Questions)
			}
			s := acquire(t, m)
			ask := func(tries int) error {
				return inside(t, s.Namespace, func() error { return askUDP(tries) })
			}
			if err := ask(1); err == nil {
				t.Error("a closed slot gets answers")
			}
			apply(t, m, s, cay.NetworkPolicy{AllowInternet: true, DenyOut: []string{w.private[0].String()}})
			if err := ask(30); err != nil {
				t.Errorf("no answer from %s: %v", DNS, err)
			}
			refused(t, s, w.private[0], w.port) // the resolver's other ports
		})
	}
	_ = near.SetReadDeadline(time.Now())
	if n, _, err := near.ReadFrom(make([]byte, 16)); err == nil {
		t.Errorf("a guest's question of %d bytes went straight to a private name server", n)
	}
}

// askUDP sends a question to the name server till it is answered.
func askUDP(tries int) error {
	c, err := net.Dial("udp4", netip.AddrPortFrom(DNS, 53).String())
	if err != nil {
		return err
	}
	defer c.Close()
	for range tries {
		if _, err = c.Write([]byte("who?")); err != nil {
			continue
		}
		buf := make([]byte, 16)
		c.SetReadDeadline(time.Now().Add(refusal))
		var n int
		if n, err = c.Read(buf); err == nil && string(buf[:n]) == "who?" {
			return nil
		}
	}
	return errors.Join(err, errors.New("no answer"))
}

func TestHostResolvers(t *testing.T) {
	file := filepath.Join(t.TempDir(), "resolv.conf")
	text := "# nameserver 1.2.3.4\nsearch x\nnameserver 10.0.0.1\nnameserver\nnameserver bad\nnameserver fd00::1\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	got := fmt.Sprint(hostResolvers(file))
	if want := "[10.0.0.1:53 [fd00::1]:53]"; got != want {
		t.Errorf("hostResolvers = %s, want %s", got, want)
	}
	if got := fmt.Sprint(hostResolvers(file + "x")); got != "[127.0.0.1:53]" {
		t.Errorf("hostResolvers of nothing = %s", got)
	}
}

// strip takes the guest's address away, as the engine does.
func strip(t *testing.T, s Slot) {
	t.Helper()
	guestSide(t, s, func(h *netlink.Handle, link netlink.Link) {
		if err := h.AddrDel(link, &netlink.Addr{IPNet: host(s.Addr)}); err != nil {
			t.Fatal(err)
		}
	})
}

func guestSide(t *testing.T, s Slot, f func(*netlink.Handle, netlink.Link)) {
	t.Helper()
	ns, err := netns.GetFromPath(s.Namespace)
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	h, err := netlink.NewHandleAt(ns)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	link, err := h.LinkByName(guestLink)
	if err != nil {
		t.Fatal(err)
	}
	f(h, link)
}

// armed reports whether the guest's end has its address and default route.
func armed(t *testing.T, s Slot) bool {
	t.Helper()
	ok := false
	guestSide(t, s, func(h *netlink.Handle, link netlink.Link) {
		addrs, err := h.AddrList(link, netlink.FAMILY_ALL)
		if err != nil {
			t.Fatal(err)
		}
		routes, err := h.RouteList(link, netlink.FAMILY_V4)
		if err != nil {
			t.Fatal(err)
		}
		address := len(addrs) == 1 && addrs[0].IP.Equal(s.Addr.AsSlice())
		ok = address && slices.ContainsFunc(routes, func(r netlink.Route) bool {
			return r.Gw.Equal(Gateway.AsSlice())
		})
	})
	return ok
}

func TestReuse(t *testing.T) {
	w := newWorld(t)
	m := manager(t)
	first := acquire(t, m)
	if !armed(t, first) {
		t.Error("a fresh slot has no address and route")
	}
	apply(t, m, first, cay.DefaultNetwork())
	strip(t, first)
	if err := m.Release(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	if !armed(t, first) {
		t.Error("a released slot has no address and route")
	}
	if err := m.Release(t.Context(), first); cay.KindOf(err) != cay.Conflict {
		t.Errorf("second Release = %v, want a conflict", err)
	}
	if err := m.Apply(t.Context(), first, cay.DefaultNetwork()); cay.KindOf(err) != cay.Conflict {
		t.Errorf("Apply to a free slot = %v, want a conflict", err)
	}
	for range 10 {
		s := acquire(t, m)
		if s.Index != first.Index {
			continue
		}
		if !armed(t, s) {
			t.Error("a reused slot has no address and route")
		}
		refused(t, s, w.public, w.port) // the policy of its past is gone
		apply(t, m, s, cay.DefaultNetwork())
		reaches(t, s, w.public, w.port)
		return
	}
	t.Error("a released slot was never reused")
}

func TestQueueTakesTheLongestUnused(t *testing.T) {
	m := manager(t)
	var slots []Slot
	for range 3 {
		slots = append(slots, acquire(t, m))
	}
	m.cancel() // no more spare ones
	m.filling.Wait()
	m.mu.Lock()
	spares := len(m.free)
	m.mu.Unlock()
	for range spares {
		acquire(t, m)
	}
	for _, i := range []int{1, 0, 2} {
		if err := m.Release(t.Context(), slots[i]); err != nil {
			t.Fatal(err)
		}
	}
	for _, i := range []int{1, 0, 2} {
		if got := acquire(t, m); got != slots[i] {
			t.Errorf("Acquire = %v, want %v", got, slots[i])
		}
	}
}

func TestDamagedSlotIsReplaced(t *testing.T) {
	m := manager(t)
	s := acquire(t, m)
	if err := m.Release(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	link, err := netlink.LinkByName(m.linkName(s.Index))
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkDel(link); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		if got := acquire(t, m); !armed(t, got) {
			t.Errorf("slot %d has no address and route", got.Index)
		}
	}
}

func TestAdoptAndReclaim(t *testing.T) {
	w := newWorld(t)
	needRoot(t)
	name, network := unique()
	cfg := Config{Name: name, Network: network, Resolvers: []netip.AddrPort{netip.AddrPortFrom(w.public2, 53)}}
	m := open(t, cfg)
	living, dead, broken := acquire(t, m), acquire(t, m), acquire(t, m)
	policy := cay.NetworkPolicy{
		AllowInternet: true, DenyOut: []string{"192.88.99.128/25"}, AllowOut: []string{"192.88.99.128"},
	}
	apply(t, m, living, policy)
	apply(t, m, dead, policy)
	if _, err := Open(t.Context(), cfg); cay.KindOf(err) != cay.Conflict {
		t.Errorf("a second manager of one name: %v, want a conflict", err)
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	reaches(t, living, w.public, w.port) // with no manager at all
	link, err := netlink.LinkByName(m.linkName(broken.Index))
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkDel(link); err != nil {
		t.Fatal(err)
	}

	m = open(t, cfg)
	defer func() { teardown(t, m) }()
	got, err := m.Adopt(t.Context(), living.Index)
	if err != nil || got != living {
		t.Fatalf("Adopt = %v, %v, want %v", got, err, living)
	}
	if _, err := m.Adopt(t.Context(), living.Index); cay.KindOf(err) != cay.Conflict {
		t.Errorf("second Adopt = %v, want a conflict", err)
	}
	for _, index := range []int{broken.Index, 200} {
		if _, err := m.Adopt(t.Context(), index); cay.KindOf(err) != cay.NotFound {
			t.Errorf("Adopt of slot %d = %v, want not found", index, err)
		}
	}
	if fresh := acquire(t, m); fresh.Index == living.Index || fresh.Index == dead.Index {
		t.Errorf("Acquire before Reclaim gave slot %d, which may be in use", fresh.Index)
	}
	if err := m.Reclaim(t.Context()); err != nil {
		t.Fatal(err)
	}
	reaches(t, living, w.public, w.port)
	refused(t, living, w.public2, w.port)
	refused(t, dead, w.public, w.port)
	if want, got := m.appliedPolicy(living.Index), inKernel(policy); !cmp.Equal(want, got, cmp.AllowUnexported(got), cmp.Comparer(samePrefix)) {
		t.Errorf("policy read back = %+v, want %+v", want, got)
	}
	apply(t, m, living, cay.DefaultNetwork()) // takes the old one away
	reaches(t, living, w.public2, w.port)
	if err := m.Release(t.Context(), living); err != nil {
		t.Error(err)
	}
}

func samePrefix(a, b netip.Prefix) bool { return a == b }

func (m *Manager) appliedPolicy(index int) policy {
	m.rules.Lock()
	defer m.rules.Unlock()
	return m.applied[index]
}

func TestTeardownLeavesNothing(t *testing.T) {
	needRoot(t)
	name, network := unique()
	m := open(t, Config{Name: name, Network: network})
	var group sync.WaitGroup
	var mu sync.Mutex
	seen := map[int]bool{}
	for range 6 {
		group.Go(func() {
			s, err := m.Acquire(t.Context())
			mu.Lock()
			defer mu.Unlock()
			if err != nil || seen[s.Index] {
				t.Errorf("Acquire = %v, %v (seen: %v)", s, err, seen[s.Index])
			}
			seen[s.Index] = true
		})
	}
	group.Wait()
	teardown(t, m)
	if left := leftovers(t, name); len(left) > 0 {
		t.Errorf("Teardown left %v", left)
	}
	if _, err := m.Acquire(t.Context()); cay.KindOf(err) != cay.Unavailable {
		t.Errorf("Acquire after Teardown = %v, want unavailable", err)
	}
}

func TestTwoManagersDoNotDisturbEachOther(t *testing.T) {
	w := newWorld(t)
	needRoot(t)
	stay := manager(t)
	name, network := unique()
	leave := open(t, Config{Name: name, Network: network})
	a, b := acquire(t, stay), acquire(t, leave)
	apply(t, stay, a, cay.DefaultNetwork())
	apply(t, leave, b, cay.DefaultNetwork())
	reaches(t, a, w.public, w.port)
	reaches(t, b, w.public, w.port)
	var port uint16
	if err := inside(t, b.Namespace, func() error {
		l, err := net.Listen("tcp4", "0.0.0.0:0")
		if err == nil {
			port = l.Addr().(*net.TCPAddr).AddrPort().Port()
			greet(t, l)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	refused(t, a, b.Addr, port)
	teardown(t, leave)
	reaches(t, a, w.public, w.port)
}

func TestOpenRefuses(t *testing.T) {
	needRoot(t)
	for _, tc := range []struct {
		cfg  Config
		want cay.Kind
	}{
		{Config{Name: "Bad-name", Network: netip.MustParsePrefix("10.250.0.0/24")}, cay.Invalid},
		{Config{Name: "vbad", Network: netip.MustParsePrefix("fd00::/64")}, cay.Invalid},
		{Config{Name: "vbad", Network: netip.MustParsePrefix("10.250.0.0/31")}, cay.Invalid},
		{Config{Name: "vbad", Network: netip.MustParsePrefix("127.0.0.0/24")}, cay.Conflict},
	} {
		if _, err := Open(t.Context(), tc.cfg); cay.KindOf(err) != tc.want {
			t.Errorf("Open(%+v) = %v, want kind %s", tc.cfg, err, tc.want)
		}
	}
}

func TestExhausted(t *testing.T) {
	needRoot(t)
	name, network := unique()
	m := open(t, Config{Name: name, Network: netip.PrefixFrom(network.Addr(), 30)})
	defer teardown(t, m)
	acquire(t, m)
	eventually(t, "the other slot is acquired", func() bool {
		_, err := m.Acquire(t.Context())
		return err == nil
	})
	if _, err := m.Acquire(t.Context()); cay.KindOf(err) != cay.Unavailable || cay.CodeOf(err) != cay.CodeCapacity {
		t.Errorf("Acquire = %v, want exhausted", err)
	}
}

func TestInKernel(t *testing.T) {
	some := []netip.Prefix{netip.MustParsePrefix("1.1.1.1/32")}
	all := []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}
	if !(policy{allowed: some}).is(policy{allowed: slices.Clone(some)}) || (policy{allowed: some}).is(policy{denied: some}) {
		t.Error("policies are compared wrongly")
	}
	rules := map[string][]cay.HeaderRule{"example.com": nil}
	for name, tc := range map[string]struct {
		p    cay.NetworkPolicy
		want policy
	}{
		"nothing":   {cay.NetworkPolicy{}, policy{}},
		"open":      {cay.DefaultNetwork(), policy{open: true, dns: true}},
		"addresses": {cay.NetworkPolicy{AllowOut: []string{"1.1.1.1", "2606::/16"}}, policy{asking: true, allowed: some}},
		"a star":    {cay.NetworkPolicy{AllowOut: []string{"*"}}, policy{dns: true, allowed: all}},
		"domains": {cay.NetworkPolicy{AllowInternet: true, AllowOut: []string{"example.com"}, DenyOut: []string{"0.0.0.0/0"}},
			policy{asking: true}},
		"halves": {cay.NetworkPolicy{AllowInternet: true, DenyOut: []string{"0.0.0.0/1", "128.0.0.0/1"}},
			policy{open: true, asking: true, denied: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/1"), netip.MustParsePrefix("128.0.0.0/1")}}},
		"rules": {cay.NetworkPolicy{AllowInternet: true, Rules: rules}, policy{open: true, asking: true, web: true}},
		"proxy": {cay.NetworkPolicy{AllowInternet: true, Proxy: &cay.EgressProxy{}}, policy{dns: true}},
	} {
		if got := inKernel(tc.p); !cmp.Equal(got, tc.want, cmp.AllowUnexported(got), cmp.Comparer(samePrefix)) {
			t.Errorf("%s: %+v, want %+v", name, got, tc.want)
		}
	}
}

func TestWithout(t *testing.T) {
	in := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("192.168.0.0/16")}
	for hole, want := range map[string]string{
		"10.0.0.0/9":     "[10.128.0.0/9 192.168.0.0/16]",
		"10.64.0.0/10":   "[10.0.0.0/10 10.128.0.0/9 192.168.0.0/16]",
		"192.0.0.0/8":    "[10.0.0.0/8]",
		"8.8.8.8/32":     "[10.0.0.0/8 192.168.0.0/16]",
		"192.168.0.0/16": "[10.0.0.0/8]",
	} {
		if got := fmt.Sprint(without(in, netip.MustParsePrefix(hole))); got != want {
			t.Errorf("without %s = %s, want %s", hole, got, want)
		}
	}
}

func TestDisjoint(t *testing.T) {
	var in []netip.Prefix
	for _, s := range []string{"10.1.0.0/16", "192.168.0.0/16", "10.0.0.0/8", "10.1.2.0/24", "10.0.0.0/8"} {
		in = append(in, netip.MustParsePrefix(s))
	}
	if got := fmt.Sprint(disjoint(in)); got != "[10.0.0.0/8 192.168.0.0/16]" {
		t.Errorf("disjoint = %s", got)
	}
}

func TestProbe(t *testing.T) {
	needRoot(t)
	if err := Probe(); err != nil {
		t.Error(err)
	}
	if _, err := DropsForwarded(); err != nil {
		t.Error(err)
	}
}
