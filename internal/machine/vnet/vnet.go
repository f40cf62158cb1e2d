// Package vnet gives sandboxes their place in the network: slots, and the
// packet filter around them.
//
// A slot is a network namespace, a veth pair and an address. Slots are
// permanent: making one costs milliseconds, so it is made once and used by one
// instance after another. The engine takes the address off the interface when
// it starts an instance (its own network stack answers there then); Acquire
// and Release put it back.
//
//	guest ── eth0 │ <name>-<index> ── host ── internet
//	10.201.0.7/32 │ Gateway/32
//
// Gateway is the same in every slot of every host for ever, because it lives
// in snapshots: as default route, as name server, and (with its hardware
// address) in neighbour caches.
//
// One nftables table, named like the manager, holds static chains; a slot's
// addresses are elements of sets. A slot reaches nothing before Apply opens it,
// and no Apply opens the host, a neighbour (but for one that is of the same
// private network), a private range, link-local and multicast addresses, or IPv6.
// The host may dial guests; guests may answer. Connections that
// addresses alone do not decide are diverted to Diverted (package egress).
package vnet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"sync"

	"github.com/vishvananda/netlink"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/guest"
)

var (
	// Gateway is the default route of every sandbox.
	Gateway = netip.MustParseAddr(guest.NameServer)
	// DNS is the name server of every sandbox: its resolv.conf names it alone.
	DNS = Gateway
)

const (
	gatewayMAC = "02:ca:1e:00:00:01"
	guestLink  = "eth0"
	maxMTU     = 1500
	// spare is how many free slots are kept, so that a create seldom makes one.
	spare = 2
	// maxIndex keeps "<name>-<index>" within an interface's name.
	maxIndex = 65000
)

// Config is what a manager needs to know.
type Config struct {
	// Name prefixes all that the manager makes on the host; at most 6
	// lower-case letters and digits. One manager at a time may have it.
	Name string
	// Network is where guests get their addresses from.
	Network netip.Prefix
	// Resolvers answer the guests' questions. Empty means the host's own. One
	// that is no public address is asked by the server of Diverted alone.
	Resolvers []netip.AddrPort
	// Opened are ranges that are closed to guests on other hosts, and on this
	// one are treated like the internet.
	Opened []netip.Prefix
	// Closed are further ranges that are closed to guests.
	Closed []netip.Prefix
	// Packages diverts what guests send to the gateway's web ports, where a
	// cache answers for the hosts that they install packages from. Their
	// questions for names are diverted as well, which lead them there.
	Packages bool
	// ServerPorts are those of the host's own server: connections to them, at
	// the gateway and at the host's own addresses, are diverted. Diverted lets
	// guests reach sandboxes by their public names there, and nothing else.
	ServerPorts []uint16
	// AllQuestions diverts all questions for names, as it must be where a name
	// is the server's that no other name server knows.
	AllQuestions bool
}

// Slot is a place in the network for one instance.
type Slot struct {
	Index     int
	Namespace string     // path of the network namespace
	Addr      netip.Addr // where the host dials the guest
}

// Manager owns the slots of one name.
type Manager struct {
	name    string
	network netip.Prefix
	mtu     int
	links   *netlink.Handle
	lock    net.Listener // held while the manager lives: one a name

	servers  []netip.AddrPort
	opened   []netip.Prefix
	closed4  []netip.Prefix
	blocked  []netip.Prefix // ranges that are closed to all
	packages bool
	ports    []uint16     // of the host's own server
	own      []netip.Addr // the host's addresses
	diverts  bool         // all questions, also those that a policy does not bound
	diverted Diverted

	filling sync.WaitGroup
	cancel  context.CancelFunc
	wanted  chan struct{} // a hint that spare slots may be missing

	rules sync.Mutex // serialises changes of policies

	mu      sync.Mutex
	closed  bool
	slots   map[int]state
	free    []int // the one that was used longest ago is the first
	applied map[int]policy
	shaped  map[int]cay.Bandwidth // of slots that this process has set or made
}

// state is what a slot is doing.
type state int

const (
	making state = iota // its index is taken, nothing else is there yet
	found               // was there at Open; Adopt or Reclaim decides
	idle                // in the queue of free ones
	held                // an instance has it
)

var goodName = regexp.MustCompile(`^[a-z][a-z0-9]{0,5}$`)

// Open makes a manager: it writes the packet filter, keeping the policies that
// an earlier process applied, and finds the slots that process made. They
// have no owner until Adopt takes them or Reclaim frees the rest.
func Open(ctx context.Context, cfg Config) (*Manager, error) {
	if !goodName.MatchString(cfg.Name) {
		return nil, cay.Errorf(cay.Invalid, "network name %q is not a letter and at most 5 more letters or digits", cfg.Name)
	}
	if !cfg.Network.IsValid() || !cfg.Network.Addr().Is4() || cfg.Network.Bits() > 30 {
		return nil, cay.Errorf(cay.Invalid, "network %s is not an IPv4 prefix with room for sandboxes", cfg.Network)
	}
	lock, err := net.Listen("unix", "@cay-vnet-"+cfg.Name)
	if err != nil {
		return nil, cay.Wrap(cay.Conflict, err, "another server uses the network name %q", cfg.Name).
			WithHint("stop it, or set CAY_NETWORK_NAME and CAY_NETWORK to others")
	}
	m := &Manager{
		name:    cfg.Name,
		network: cfg.Network.Masked(),
		lock:    lock,
		opened:  cfg.Opened,
		closed4: slices.DeleteFunc(slices.Clone(cfg.Closed), func(p netip.Prefix) bool { return !p.Addr().Is4() }),

		packages: cfg.Packages,
		ports:    cfg.ServerPorts,
		diverts:  cfg.AllQuestions,

		wanted:  make(chan struct{}, 1),
		slots:   map[int]state{},
		applied: map[int]policy{},
		shaped:  map[int]cay.Bandwidth{},
	}
	if err := m.open(ctx, cfg.Resolvers); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

func (m *Manager) open(ctx context.Context, resolvers []netip.AddrPort) (err error) {
	if m.links, err = netlink.NewHandle(); err != nil {
		return cay.Wrap(cay.Internal, err, "no netlink socket")
	}
	if err := m.checkNetwork(); err != nil {
		return err
	}
	if err := forwardPackets(); err != nil {
		return err
	}
	m.mtu = m.uplinkMTU()
	target, err := m.resolver(resolvers)
	if err != nil {
		return err
	}
	m.diverts = m.diverts || m.packages || !target.IsValid()
	if err := m.listen(ctx); err != nil {
		return err
	}
	if err := m.find(); err != nil {
		return err
	}
	if err := m.writeTable(target); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	ctx, m.cancel = context.WithCancel(context.Background())
	m.filling.Go(func() { m.fill(ctx) })
	return nil
}

// checkNetwork refuses a network that the host is already part of.
func (m *Manager) checkNetwork() error {
	var addrs []netlink.Addr
	err := untorn(func() (err error) {
		addrs, err = m.links.AddrList(nil, netlink.FAMILY_V4)
		return err
	})
	if err != nil {
		return cay.Wrap(cay.Internal, err, "the host's addresses cannot be listed")
	}
	for _, a := range addrs {
		if p, ok := prefixOf(a.IPNet); ok && p.Overlaps(m.network) {
			return cay.Errorf(cay.Conflict, "the sandboxes' network %s overlaps the host's %s", m.network, p).
				WithHint("set CAY_NETWORK to a free range, e.g. 10.213.0.0/16")
		}
	}
	return nil
}

// forwardPackets lets the host pass packets on. It is left on at the end:
// other programs may rely on it by then.
func forwardPackets() error {
	const path = "/proc/sys/net/ipv4/ip_forward"
	if b, err := os.ReadFile(path); err == nil && len(b) > 0 && b[0] == '1' {
		return nil
	}
	if err := os.WriteFile(path, []byte("1"), 0o644); err != nil {
		return cay.Wrap(cay.Unsupported, err, "packet forwarding cannot be turned on").
			WithHint("run as root, or: sysctl -w net.ipv4.ip_forward=1")
	}
	return nil
}

// uplinkMTU is what packets to the internet may measure.
func (m *Manager) uplinkMTU() int {
	routes, err := m.links.RouteGet(net.IPv4(1, 1, 1, 1))
	if err != nil || len(routes) == 0 {
		return maxMTU
	}
	link, err := m.links.LinkByIndex(routes[0].LinkIndex)
	if err != nil || link.Attrs().MTU < 576 {
		return maxMTU
	}
	return min(maxMTU, link.Attrs().MTU)
}

// Close ends the manager. Its slots, the instances in them and the packet
// filter stay for the next one.
func (m *Manager) Close() error {
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	if m.cancel != nil {
		m.cancel()
	}
	m.filling.Wait()
	m.diverted.close()
	if m.links != nil {
		m.links.Close()
	}
	if err := m.lock.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return cay.Wrap(cay.Internal, err, "the lock of network name %q cannot be let go", m.name)
	}
	return nil
}

func (m *Manager) slot(index int) Slot {
	return Slot{Index: index, Namespace: namespacePath(m.linkName(index)), Addr: m.addr(index)}
}

func (m *Manager) linkName(index int) string { return fmt.Sprintf("%s-%d", m.name, index) }

// addr is the address of a slot: the network's own plus the index.
func (m *Manager) addr(index int) netip.Addr {
	b := m.network.Addr().As4()
	n := uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
	n += uint32(index)
	return netip.AddrFrom4([4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)})
}

// capacity is the highest index: the network without its first and last address.
func (m *Manager) capacity() int {
	return min(maxIndex, 1<<(32-m.network.Bits())-2)
}

func prefixOf(n *net.IPNet) (netip.Prefix, bool) {
	if n == nil {
		return netip.Prefix{}, false
	}
	addr, ok := netip.AddrFromSlice(n.IP)
	if !ok {
		return netip.Prefix{}, false
	}
	ones, _ := n.Mask.Size()
	p, err := addr.Unmap().Prefix(ones)
	return p, err == nil
}
