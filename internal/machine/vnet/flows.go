package vnet

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// A request's filter, and the parts of a tuple that it compares: the netlink
// library lacks these of linux/netfilter/nfnetlink_conntrack.h, which leaves the
// bits to net/netfilter/nf_conntrack_netlink.c.
const (
	ctaFilter          = 25
	ctaFilterOrigFlags = 1
	filterSource       = 1 << 0
	filterDestination  = 1 << 1
)

// forgetFlows makes the host forget the connections of an address, so that
// late packets of one instance do not reach the next one. A kernel that cannot
// is no reason to fail: the next instance's network stack resets them.
func forgetFlows(addr netip.Addr) {
	if forgetFlowsAt(addr, nl.CTA_IP_V4_SRC, filterSource) == nil &&
		forgetFlowsAt(addr, nl.CTA_IP_V4_DST, filterDestination) == nil {
		return
	}
	_ = untorn(func() error {
		_, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, unix.AF_INET, flowsOf(addr))
		return err
	})
}

// forgetFlowsAt has the kernel forget the connections of an address at one end.
// It finds them itself: a dump locks each bucket of the table, which takes more
// processor than all else at a slot's release. A kernel before Linux 6.11 takes
// the tuple for a whole one and answers EINVAL.
func forgetFlowsAt(addr netip.Addr, end int, compare uint32) error {
	tuple := nl.NewRtAttr(unix.NLA_F_NESTED|nl.CTA_TUPLE_ORIG, nil)
	tuple.AddRtAttr(unix.NLA_F_NESTED|nl.CTA_TUPLE_IP, nil).AddRtAttr(end, addr.AsSlice())
	filter := nl.NewRtAttr(unix.NLA_F_NESTED|ctaFilter, nil)
	filter.AddRtAttr(ctaFilterOrigFlags, binary.NativeEndian.AppendUint32(nil, compare))

	req := nl.NewNetlinkRequest(netlink.ConntrackTable<<8|nl.IPCTNL_MSG_CT_DELETE, unix.NLM_F_ACK)
	req.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_INET, Version: nl.NFNETLINK_V0})
	req.AddData(tuple)
	req.AddData(filter)
	_, err := req.Execute(unix.NETLINK_NETFILTER, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil // there are none
	}
	return err
}

// flowsOf selects the connections that begin or end at an address.
type flowsOf netip.Addr

// MatchConntrackFlow implements netlink.CustomConntrackFilter.
func (f flowsOf) MatchConntrackFlow(flow *netlink.ConntrackFlow) bool {
	for _, ip := range []net.IP{flow.Forward.SrcIP, flow.Forward.DstIP} {
		if a, ok := netip.AddrFromSlice(ip); ok && a.Unmap() == netip.Addr(f) {
			return true
		}
	}
	return false
}
