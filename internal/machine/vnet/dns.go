package vnet

import (
	"bufio"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/conns/outside"
)

// resolver finds the name servers that the guests' questions end up at, and
// returns the one that the packet filter sends them to, where a policy lets a
// guest ask everything. It works while the server is away, and is for a public
// name server alone: any other may know internal names, so the server of
// Diverted is asked in its stead, and the zero address is returned.
func (m *Manager) resolver(given []netip.AddrPort) (netip.AddrPort, error) {
	m.servers = given
	if len(m.servers) == 0 {
		m.servers = hostResolvers("/etc/resolv.conf")
	}
	first := m.servers[0]
	networks := outside.Networks{Closed: append(slices.Clone(m.closed4), m.network)}
	public, err := networks.Outside(first.Addr())
	if err != nil {
		return netip.AddrPort{}, cay.Wrap(cay.Internal, err, "the host's addresses cannot be listed")
	}
	if !public || !first.Addr().Is4() {
		return netip.AddrPort{}, nil
	}
	return first, nil
}

// hostResolvers reads the name servers of a resolv.conf. Without any, the
// C library asks the loopback, and so do we.
func hostResolvers(path string) []netip.AddrPort {
	var out []netip.AddrPort
	if f, err := os.Open(path); err == nil {
		defer f.Close()
		for lines := bufio.NewScanner(f); lines.Scan(); {
			words := strings.Fields(lines.Text())
			if len(words) < 2 || words[0] != "nameserver" {
				continue
			}
			if addr, err := netip.ParseAddr(words[1]); err == nil {
				out = append(out, netip.AddrPortFrom(addr.Unmap(), 53))
			}
		}
	}
	if len(out) == 0 {
		out = append(out, netip.MustParseAddrPort("127.0.0.1:53"))
	}
	return out
}
