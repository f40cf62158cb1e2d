package vnet

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/cay-run/cay"
)

// namespaces is where `ip netns` looks for them too.
const namespaces = "/run/netns"

func namespacePath(name string) string { return filepath.Join(namespaces, name) }

// build makes a slot from nothing: namespace, veth pair, address, routes, and
// its place in the packet filter. After an error nothing of it is left.
func (m *Manager) build(index int) (err error) {
	name := m.linkName(index)
	defer func() {
		if err != nil {
			err = errors.Join(cay.Wrap(cay.Internal, err, "network slot %s cannot be made", name), m.remove(index))
		}
	}()
	if err := makeNamespace(namespacePath(name)); err != nil {
		return err
	}
	ns, err := netns.GetFromPath(namespacePath(name))
	if err != nil {
		return err
	}
	defer ns.Close()
	host, _ := net.ParseMAC(gatewayMAC)
	addr := m.addr(index).As4()
	veth := &netlink.Veth{
		LinkAttrs:        netlink.LinkAttrs{Name: name, MTU: m.mtu, HardwareAddr: host},
		PeerName:         guestLink,
		PeerHardwareAddr: append(net.HardwareAddr{0x02, 0xca}, addr[:]...),
		PeerNamespace:    netlink.NsFd(ns),
	}
	if err := m.links.LinkAdd(veth); err != nil {
		return fmt.Errorf("veth pair: %w", err)
	}
	if err := m.armHost(index, veth); err != nil {
		return err
	}
	if err := m.arm(index); err != nil {
		return err
	}
	m.mu.Lock()
	m.shaped[index] = cay.Bandwidth{} // a new pair has no bound
	m.mu.Unlock()
	return m.admit([]int{index})
}

// Sent is how many bytes came out of a slot since it was made, of whichever
// instances had it; 0 when that cannot be read.
func (m *Manager) Sent(s Slot) int64 {
	text, err := os.ReadFile(filepath.Join("/sys/class/net", m.linkName(s.Index), "statistics/rx_bytes"))
	if err != nil {
		return 0
	}
	n, _ := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	return n
}

// makeNamespace makes a network namespace that is kept at path. It has no IPv6
// but ::1.
func makeNamespace(path string) error {
	if err := shareNamespaces(namespaces); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDONLY, 0o444)
	if err != nil {
		return err
	}
	f.Close()
	done := make(chan error, 1)
	go func() {
		// The namespace belongs to the thread. If the way back fails the
		// thread stays locked, and ends with the goroutine.
		runtime.LockOSThread()
		home, err := netns.Get()
		if err != nil {
			done <- err
			return
		}
		defer home.Close()
		err = inNewNamespace(path)
		if back := netns.Set(home); back == nil {
			runtime.UnlockOSThread()
		}
		done <- err
	}()
	return <-done
}

// shareNamespaces makes the directory of namespaces a mount of its own, as
// `ip netns add` does when it is not. Done by that, later, it would lay a copy
// over our namespaces: one that is unmounted here would stay busy there.
func shareNamespaces(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, dir, 0, unix.STATX_BASIC_STATS, &st)
	if err != nil || st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0 {
		return err
	}
	if err := unix.Mount(dir, dir, "none", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("bind %s: %w", dir, err)
	}
	return unix.Mount("", dir, "none", unix.MS_SHARED|unix.MS_REC, "")
}

func inNewNamespace(path string) error {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("new network namespace: %w", err)
	}
	for _, which := range []string{"default", "all"} {
		disableIPv6(which)
	}
	setIPv6("lo", true) // services that listen on ::1 are services too
	if err := unix.Mount("/proc/thread-self/ns/net", path, "bind", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind %s: %w", path, err)
	}
	return nil
}

// disableIPv6 spares an interface its link-local address. It is no matter when
// that fails (a kernel without IPv6, for one): the packet filter drops all the
// same.
func disableIPv6(link string) { setIPv6(link, false) }

func setIPv6(link string, on bool) {
	disable := "1"
	if on {
		disable = "0"
	}
	_ = os.WriteFile("/proc/sys/net/ipv6/conf/"+link+"/disable_ipv6", []byte(disable), 0o644)
}

// armHost gives the host's end of a slot its address and its route.
func (m *Manager) armHost(index int, link netlink.Link) error {
	disableIPv6(link.Attrs().Name)
	// Scope link: the host must never choose this address as its own source.
	gateway := &netlink.Addr{IPNet: host(Gateway), Scope: unix.RT_SCOPE_LINK}
	if err := m.links.AddrReplace(link, gateway); err != nil {
		return fmt.Errorf("gateway address: %w", err)
	}
	if err := m.links.LinkSetUp(link); err != nil {
		return fmt.Errorf("link up: %w", err)
	}
	route := &netlink.Route{
		LinkIndex: link.Attrs().Index,
		Dst:       host(m.addr(index)),
		Src:       Gateway.AsSlice(),
		Scope:     netlink.SCOPE_LINK,
	}
	if err := m.links.RouteAdd(route); err != nil {
		return fmt.Errorf("route to %s: %w", m.addr(index), err)
	}
	return nil
}

// arm puts address and routes of the guest's end in place, where the engine
// finds them when it starts an instance (and takes them away). It is
// idempotent.
func (m *Manager) arm(index int) error {
	ns, err := netns.GetFromPath(namespacePath(m.linkName(index)))
	if err != nil {
		return err
	}
	defer ns.Close()
	inside, err := netlink.NewHandleAt(ns)
	if err != nil {
		return err
	}
	defer inside.Close()
	lo, err := inside.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := inside.LinkSetUp(lo); err != nil {
		return err
	}
	link, err := inside.LinkByName(guestLink)
	if err != nil {
		return err
	}
	if err := inside.AddrReplace(link, &netlink.Addr{IPNet: host(m.addr(index))}); err != nil {
		return fmt.Errorf("guest address: %w", err)
	}
	if err := inside.LinkSetUp(link); err != nil {
		return err
	}
	for _, route := range []*netlink.Route{
		{LinkIndex: link.Attrs().Index, Dst: host(Gateway), Scope: netlink.SCOPE_LINK},
		{LinkIndex: link.Attrs().Index, Gw: Gateway.AsSlice()},
	} {
		if err := inside.RouteReplace(route); err != nil {
			return fmt.Errorf("guest route: %w", err)
		}
	}
	return nil
}

// whole reports whether all of a slot is there but what the engine may have
// taken: the namespace, the pair, and the route to its address.
func (m *Manager) whole(index int) bool {
	name := m.linkName(index)
	var fs unix.Statfs_t
	if unix.Statfs(namespacePath(name), &fs) != nil || fs.Type != unix.NSFS_MAGIC {
		return false
	}
	link, err := m.links.LinkByName(name)
	if err != nil || link.Attrs().Flags&net.FlagUp == 0 {
		return false
	}
	var routes []netlink.Route
	err = untorn(func() (err error) {
		routes, err = m.links.RouteList(link, netlink.FAMILY_V4)
		return err
	})
	if err != nil {
		return false
	}
	for _, r := range routes {
		if p, ok := prefixOf(r.Dst); ok && p.IsSingleIP() && p.Addr() == m.addr(index) {
			return true
		}
	}
	return false
}

// remove deletes what there is of a slot. It is idempotent.
func (m *Manager) remove(index int) error {
	name := m.linkName(index)
	errs := []error{m.changePolicy(index, func(policy) policy { return policy{} }), m.expel(index)}
	link, err := m.links.LinkByName(name)
	switch {
	case err == nil:
		errs = append(errs, m.links.LinkDel(link))
	case !errors.As(err, new(netlink.LinkNotFoundError)):
		errs = append(errs, err)
	}
	path := namespacePath(name)
	if err := unix.Unmount(path, unix.MNT_DETACH); err != nil && err != unix.EINVAL && err != unix.ENOENT {
		errs = append(errs, fmt.Errorf("unmount %s: %w", path, err))
	}
	// EBUSY means that a mount is hidden below it: it has no owner any more.
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.EBUSY) {
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return cay.Wrap(cay.Internal, err, "network slot %s cannot be removed", name)
	}
	return nil
}

// find lists the slots that an earlier manager left, whole or not.
func (m *Manager) find() error {
	var names []string
	entries, err := os.ReadDir(namespaces)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return cay.Wrap(cay.Internal, err, "network namespaces cannot be listed")
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	var links []netlink.Link
	err = untorn(func() (err error) {
		links, err = m.links.LinkList()
		return err
	})
	if err != nil {
		return cay.Wrap(cay.Internal, err, "network interfaces cannot be listed")
	}
	for _, l := range links {
		names = append(names, l.Attrs().Name)
	}
	for _, name := range names {
		digits, ok := strings.CutPrefix(name, m.name+"-")
		if !ok {
			continue
		}
		index, err := strconv.Atoi(digits)
		if err == nil && index > 0 && index <= maxIndex && name == m.linkName(index) {
			m.slots[index] = found
		}
	}
	return nil
}

// host is the prefix of an address alone.
func host(a netip.Addr) *net.IPNet {
	return &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}
}
