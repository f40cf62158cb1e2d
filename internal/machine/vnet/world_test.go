package vnet

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/vnet/nettest"
)

// patience bounds what must happen; refusal bounds the wait for what must not.
const (
	patience = 60 * time.Second
	refusal  = 2 * time.Second
)

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("NOT TESTED HERE: network namespaces need root")
	}
}

// unique returns a name and a network that no other test of this machine uses.
func unique() (string, netip.Prefix) {
	const letters = "abcdefghijklmnopqrstuvwxyz0123456789"
	var b [7]byte
	rand.Read(b[:])
	name := "v"
	for _, c := range b[:5] {
		name += string(letters[int(c)%len(letters)])
	}
	return name, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 60 + b[5]%40, b[6], 0}), 24)
}

func open(t *testing.T, cfg Config) *Manager {
	t.Helper()
	m, err := Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// manager opens one that is torn down at the end of the test.
func manager(t *testing.T, resolvers ...netip.AddrPort) *Manager {
	t.Helper()
	needRoot(t)
	name, network := unique()
	m := open(t, Config{Name: name, Network: network, Resolvers: resolvers})
	t.Cleanup(func() { teardown(t, m) })
	return m
}

func teardown(t *testing.T, m *Manager) {
	t.Helper()
	if err := m.Teardown(context.Background()); err != nil {
		t.Errorf("Teardown: %v", err)
	}
}

func acquire(t *testing.T, m *Manager) Slot {
	t.Helper()
	s, err := m.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func apply(t *testing.T, m *Manager, s Slot, p cay.NetworkPolicy) {
	t.Helper()
	if err := m.Apply(t.Context(), s, p); err != nil {
		t.Fatal(err)
	}
}

// within runs f on a thread in a network namespace.
func inside(t *testing.T, namespace string, f func() error) error {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // for ever: the thread ends here
		ns, err := netns.GetFromPath(namespace)
		if err == nil {
			defer ns.Close()
			err = netns.Set(ns)
		}
		if err == nil {
			err = f()
		}
		done <- err
	}()
	return <-done
}

// world is an "internet" of one namespace, where every address of it greets.
type world struct {
	path    string
	near    netip.Addr // on a network that the host is a member of
	public  netip.Addr
	public2 netip.Addr
	private []netip.Addr // the host routes to them, guests must not reach them
	port    uint16
}

// newWorld makes a namespace with a link to the host, and routes to it.
func newWorld(t *testing.T) *world {
	t.Helper()
	needRoot(t)
	var b [1]byte
	rand.Read(b[:])
	x, y := b[0], nettest.Claim(t)
	name, _ := unique()
	w := &world{
		path:    namespacePath(name),
		near:    netip.AddrFrom4([4]byte{100, 100, x, y - 1}),
		public:  netip.AddrFrom4([4]byte{192, 88, 99, y}),
		public2: netip.AddrFrom4([4]byte{192, 88, 99, y | 0x80}),
		private: []netip.Addr{
			netip.AddrFrom4([4]byte{10, 255, x, y}),
			netip.AddrFrom4([4]byte{172, 31, x, y}),
			netip.AddrFrom4([4]byte{192, 168, x, y}),
			netip.AddrFrom4([4]byte{169, 254, x, y}),
			netip.AddrFrom4([4]byte{100, 64, x, y}),
			netip.AddrFrom4([4]byte{198, 18, x, y}),
		},
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(makeNamespace(w.path))
	t.Cleanup(func() { netns.DeleteNamed(name) })
	ns, err := netns.GetFromPath(w.path)
	must(err)
	defer ns.Close()
	must(netlink.LinkAdd(&netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: guestLink, PeerNamespace: netlink.NsFd(ns),
	}))
	outer, err := netlink.LinkByName(name)
	must(err)
	t.Cleanup(func() { netlink.LinkDel(outer) })
	hostEnd := netip.AddrFrom4([4]byte{100, 100, x, y})
	must(netlink.AddrAdd(outer, &netlink.Addr{IPNet: subnet(hostEnd, 31)}))
	must(netlink.LinkSetUp(outer))

	h, err := netlink.NewHandleAt(ns)
	must(err)
	defer h.Close()
	lo, err := h.LinkByName("lo")
	must(err)
	eth, err := h.LinkByName(guestLink)
	must(err)
	must(h.LinkSetUp(lo))
	must(h.LinkSetUp(eth))
	must(h.AddrAdd(eth, &netlink.Addr{IPNet: subnet(w.near, 31)}))
	must(h.RouteAdd(&netlink.Route{LinkIndex: eth.Attrs().Index, Gw: hostEnd.AsSlice()}))
	for _, a := range append([]netip.Addr{w.public, w.public2}, w.private...) {
		must(h.AddrAdd(lo, &netlink.Addr{IPNet: host(a)}))
		must(netlink.RouteReplace(&netlink.Route{LinkIndex: outer.Attrs().Index, Dst: host(a), Gw: w.near.AsSlice()}))
	}
	must(inside(t, w.path, func() error {
		l, err := net.Listen("tcp4", "0.0.0.0:0")
		if err != nil {
			return err
		}
		w.port = l.Addr().(*net.TCPAddr).AddrPort().Port()
		greet(t, l)
		return nil
	}))
	return w
}

func subnet(a netip.Addr, bits int) *net.IPNet {
	return &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(bits, a.BitLen())}
}

// greet answers every connection with a word, until the test is over.
func greet(t *testing.T, l net.Listener) {
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			io.WriteString(c, "hello")
			c.Close()
		}
	}()
}

// dial connects from where the thread is, and wants the word.
func dial(target string, wait time.Duration) error {
	c, err := net.DialTimeout("tcp", target, wait)
	if err != nil {
		return err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(wait))
	got, err := io.ReadAll(c)
	if err != nil {
		return err
	}
	if string(got) != "hello" {
		return fmt.Errorf("got %q", got)
	}
	return nil
}

func reaches(t *testing.T, s Slot, a netip.Addr, port uint16) {
	t.Helper()
	target := netip.AddrPortFrom(a, port).String()
	if err := inside(t, s.Namespace, func() error { return dial(target, patience) }); err != nil {
		t.Errorf("a guest cannot reach %s: %v", target, err)
	}
}

func refused(t *testing.T, s Slot, a netip.Addr, port uint16) {
	t.Helper()
	target := netip.AddrPortFrom(a, port).String()
	if err := inside(t, s.Namespace, func() error { return dial(target, refusal) }); err == nil {
		t.Errorf("a guest reaches %s", target)
	}
}

// dropped counts the packets that a chain's rules with a counter met.
func dropped(t *testing.T, m *Manager, chain string) uint64 {
	t.Helper()
	c, err := nftables.New()
	if err != nil {
		t.Fatal(err)
	}
	rules, err := c.GetRules(m.table(), &nftables.Chain{Name: chain, Table: m.table()})
	if err != nil {
		t.Fatal(err)
	}
	var n uint64
	for _, r := range rules {
		for _, e := range r.Exprs {
			if counter, ok := e.(*expr.Counter); ok {
				n += counter.Packets
			}
		}
	}
	return n
}

// eventually polls until f holds.
func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if f() {
			return
		}
	}
	t.Fatalf("never happened: %s", what)
}

// echoUDP answers every packet with itself.
func echoUDP(t *testing.T, c net.PacketConn) {
	t.Cleanup(func() { c.Close() })
	go func() {
		buf := make([]byte, 2048)
		for {
			n, from, err := c.ReadFrom(buf)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				c.WriteTo(buf[:n], from)
			}
		}
	}()
}

// leftovers names what bears a manager's name on the host.
func leftovers(t *testing.T, name string) []string {
	t.Helper()
	var out []string
	links, err := netlink.LinkList()
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		t.Fatal(err)
	}
	for _, l := range links {
		if strings.HasPrefix(l.Attrs().Name, name+"-") {
			out = append(out, "link "+l.Attrs().Name)
		}
	}
	entries, _ := os.ReadDir(namespaces)
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), name+"-") {
			out = append(out, "namespace "+e.Name())
		}
	}
	c, err := nftables.New()
	if err != nil {
		t.Fatal(err)
	}
	if table, err := c.ListTableOfFamily(name, nftables.TableFamilyINet); err == nil && table != nil {
		out = append(out, "table "+name)
	}
	return out
}
