package vnet

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// A dump's filter, and the parts of a tuple that it compares: the netlink library
// lacks these of linux/netfilter/nfnetlink_conntrack.h, which leaves the bits to
// net/netfilter/nf_conntrack_netlink.c.
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
	for _, end := range []int{filterSource, filterDestination} {
		var found [][]byte
		_ = untorn(func() (err error) {
			found, err = flowsOf(addr, end)
			return err
		})
		for _, flow := range found {
			_ = forgetFlow(flow)
		}
	}
}

// flowsOf lists the connections that begin or end at an address, as the kernel
// writes them. The kernel walks its table and copies out those alone; one
// before Linux 5.8 copies all, which are passed over here.
func flowsOf(addr netip.Addr, end int) ([][]byte, error) {
	ip := nl.CTA_IP_V4_SRC
	if end == filterDestination {
		ip = nl.CTA_IP_V4_DST
	}
	tuple := nl.NewRtAttr(unix.NLA_F_NESTED|nl.CTA_TUPLE_ORIG, nil)
	tuple.AddRtAttr(unix.NLA_F_NESTED|nl.CTA_TUPLE_IP, nil).AddRtAttr(ip, addr.AsSlice())
	filter := nl.NewRtAttr(unix.NLA_F_NESTED|ctaFilter, nil)
	filter.AddRtAttr(ctaFilterOrigFlags, binary.NativeEndian.AppendUint32(nil, uint32(end)))

	req := flowRequest(nl.IPCTNL_MSG_CT_GET, unix.NLM_F_DUMP)
	req.AddData(tuple)
	req.AddData(filter)
	all, err := req.Execute(unix.NETLINK_NETFILTER, 0)
	if err != nil {
		return nil, err
	}
	var found [][]byte
	for _, flow := range all {
		if a, ok := endOf(flow, ip); ok && a == addr {
			found = append(found, flow)
		}
	}
	return found, nil
}

// forgetFlow removes one connection, as flowsOf found it.
func forgetFlow(flow []byte) error {
	req := flowRequest(nl.IPCTNL_MSG_CT_DELETE, unix.NLM_F_ACK)
	req.AddRawData(flow[nl.SizeofNfgenmsg:])
	_, err := req.Execute(unix.NETLINK_NETFILTER, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

func flowRequest(operation, flags int) *nl.NetlinkRequest {
	req := nl.NewNetlinkRequest(netlink.ConntrackTable<<8|operation, flags)
	req.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_INET, Version: nl.NFNETLINK_V0})
	return req
}

// endOf reads one address of the direction that began a connection.
func endOf(flow []byte, which int) (netip.Addr, bool) {
	if len(flow) < nl.SizeofNfgenmsg {
		return netip.Addr{}, false
	}
	text := flow[nl.SizeofNfgenmsg:]
	for _, want := range []int{nl.CTA_TUPLE_ORIG, nl.CTA_TUPLE_IP, which} {
		attrs, err := nl.ParseRouteAttr(text)
		if err != nil {
			return netip.Addr{}, false
		}
		text = nil
		for _, a := range attrs {
			if int(a.Attr.Type)&^(unix.NLA_F_NESTED|unix.NLA_F_NET_BYTEORDER) == want {
				text = a.Value
			}
		}
	}
	return netip.AddrFromSlice(text)
}
