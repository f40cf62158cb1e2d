// Package outside says which addresses are the internet, and dials no others.
// Guests, the registries and URLs that callers name, and every other address
// that a stranger chooses go by its one list: a stranger must not reach through
// this host what only this host can reach.
package outside

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"github.com/cay-run/cay"
)

// closed4 are the ranges of IPv4 that are no internet: "this" network, private,
// shared, loopback, link-local, Azure's host (which answers like a metadata
// service), protocol assignments, documentation of the first kind (hosts in
// small clouds live there), benchmarks, multicast and the rest.
var closed4 = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"),
	netip.MustParsePrefix("10.0.0.0/8"),
	netip.MustParsePrefix("100.64.0.0/10"),
	netip.MustParsePrefix("127.0.0.0/8"),
	netip.MustParsePrefix("168.63.129.16/32"),
	netip.MustParsePrefix("169.254.0.0/16"),
	netip.MustParsePrefix("172.16.0.0/12"),
	netip.MustParsePrefix("192.0.0.0/24"),
	netip.MustParsePrefix("192.0.2.0/24"),
	netip.MustParsePrefix("192.168.0.0/16"),
	netip.MustParsePrefix("198.18.0.0/15"),
	netip.MustParsePrefix("224.0.0.0/3"),
}

// open6 is where IPv6 has its internet, and closed6 are the ranges in it that
// are none: protocol assignments, documentation, and IPv4 in disguise.
var (
	open6   = netip.MustParsePrefix("2000::/3")
	closed6 = []netip.Prefix{
		netip.MustParsePrefix("2001::/23"),
		netip.MustParsePrefix("2001:db8::/32"),
		netip.MustParsePrefix("2002::/16"),
		netip.MustParsePrefix("3fff::/20"),
	}
)

// Closed4 lists the ranges of IPv4 that are no internet on any host.
func Closed4() []netip.Prefix { return slices.Clone(closed4) }

// Internet reports whether an address can be the internet's, on any host.
func Internet(a netip.Addr) bool {
	in := func(p netip.Prefix) bool { return p.Contains(a) }
	if a.Is4() {
		return !slices.ContainsFunc(closed4, in)
	}
	return open6.Contains(a) && !slices.ContainsFunc(closed6, in)
}

// Neighbourhood returns the network of one of the host's addresses, whose other
// members are closed too. An address of a tunnel may claim half the world; that
// is no neighbourhood, and only the address itself is returned.
func Neighbourhood(own netip.Prefix) netip.Prefix {
	own = netip.PrefixFrom(own.Addr().Unmap(), own.Bits())
	if own.Addr().Is4() && own.Bits() >= 8 || own.Addr().Is6() && own.Bits() >= 32 {
		return own.Masked()
	}
	return netip.PrefixFrom(own.Addr(), own.Addr().BitLen())
}

// Networks decides which addresses are outside this host's own networks. The
// zero value knows the closed ranges and asks the kernel for the host's
// addresses each time, because they change.
type Networks struct {
	// Opened are ranges that the operator opens. They open none of the host's
	// own addresses.
	Opened []netip.Prefix
	// Trusted are ranges that the operator opens with the host's own addresses in
	// them, such as 127.0.0.0/8 for receivers on this machine.
	Trusted []netip.Prefix
	// Closed are further ranges that are closed, such as the sandboxes'.
	Closed []netip.Prefix
	// Own lists the host's addresses with their networks, in place of the
	// kernel in tests.
	Own func() ([]netip.Prefix, error)
}

// Outside reports whether an address is outside.
func (n Networks) Outside(a netip.Addr) (bool, error) {
	a = a.Unmap().WithZone("")
	in := func(p netip.Prefix) bool { return p.Contains(a) }
	if slices.ContainsFunc(n.Trusted, in) && !slices.ContainsFunc(n.Closed, in) {
		return true, nil
	}
	list := n.Own
	if list == nil {
		list = hostAddresses
	}
	own, err := list()
	if err != nil {
		return false, err
	}
	near := false
	for _, p := range own {
		if p.Addr().Unmap() == a {
			return false, nil
		}
		near = near || Neighbourhood(p).Contains(a)
	}
	switch {
	case slices.ContainsFunc(n.Closed, in):
		return false, nil
	case slices.ContainsFunc(n.Opened, in):
		return true, nil
	}
	return Internet(a) && !near, nil
}

// closedError is why an address is not dialled.
type closedError struct{ addr netip.Addr }

func (e closedError) Error() string {
	return fmt.Sprintf("%s is on a closed network", e.addr)
}

const (
	dialWithin = 20 * time.Second
	keepAlive  = 30 * time.Second
)

// DialContext connects to an address outside, or to a name's addresses that
// are. It looks at the very address that the kernel is about to connect to, so
// a name that changes between a look and a dial gains nothing. A refusal is of
// the kind Denied.
func (n Networks) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	d := net.Dialer{Timeout: dialWithin, KeepAlive: keepAlive, Control: n.control}
	c, err := d.DialContext(ctx, network, address)
	var closed closedError
	if errors.As(err, &closed) {
		host, _, _ := net.SplitHostPort(address)
		return nil, cay.Wrap(cay.Denied, err, "%s is on a private network, or on this host's own", host)
	}
	return c, err
}

func (n Networks) control(_, address string, _ syscall.RawConn) error {
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return err
	}
	ok, err := n.Outside(to.Addr())
	if err == nil && !ok {
		err = closedError{to.Addr()}
	}
	return err
}

// hostAddresses lists the host's addresses with their networks.
func hostAddresses() ([]netip.Prefix, error) {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("the host's addresses cannot be listed: %w", err)
	}
	var out []netip.Prefix
	for _, a := range addrs {
		p, err := netip.ParsePrefix(a.String())
		if err != nil {
			return nil, fmt.Errorf("the host's address %s cannot be read: %w", a, err)
		}
		out = append(out, p)
	}
	return out, nil
}
