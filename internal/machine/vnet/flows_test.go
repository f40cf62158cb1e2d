package vnet

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Flows that begin or end at an address are forgotten, and no other.
func TestForgetFlows(t *testing.T) {
	m := manager(t)
	s := acquire(t, m)
	gone, stays, far := s.Addr, s.Addr.Next(), netip.MustParseAddr("192.0.2.1")
	add := func(from, to netip.Addr, port uint16) error {
		there := netlink.IPTuple{
			SrcIP: net.IP(from.AsSlice()), DstIP: net.IP(to.AsSlice()), SrcPort: port, DstPort: 80, Protocol: unix.IPPROTO_UDP,
		}
		back := netlink.IPTuple{
			SrcIP: there.DstIP, DstIP: there.SrcIP, SrcPort: 80, DstPort: port, Protocol: unix.IPPROTO_UDP,
		}
		return netlink.ConntrackCreate(netlink.ConntrackTable, unix.AF_INET, &netlink.ConntrackFlow{
			FamilyType: unix.AF_INET, Forward: there, Reverse: back, TimeOut: 600,
		})
	}
	// A namespace has a table of its own, which this test fills.
	if err := inside(t, s.Namespace, func() error {
		var errs []error
		for port := uint16(1000); port < 1020; port++ {
			errs = append(errs, add(gone, far, port), add(far, gone, port), add(gone, gone, port),
				add(stays, far, port), add(far, stays, port))
		}
		forgetFlows(gone)
		left, err := netlink.ConntrackTableList(netlink.ConntrackTable, unix.AF_INET)
		errs = append(errs, err)
		kept := 0
		for _, flow := range left {
			if flow.Forward.SrcIP.Equal(gone.AsSlice()) || flow.Forward.DstIP.Equal(gone.AsSlice()) {
				errs = append(errs, fmt.Errorf("left: %s", flow))
			}
			if flow.Forward.SrcIP.Equal(stays.AsSlice()) || flow.Forward.DstIP.Equal(stays.AsSlice()) {
				kept++
			}
		}
		if kept != 40 {
			errs = append(errs, fmt.Errorf("%d flows of another address are left of 40", kept))
		}
		return errors.Join(errs...)
	}); err != nil {
		t.Fatal(err)
	}
}

// A torn answer of the kernel names no address.
func TestEndOf(t *testing.T) {
	whole := []byte{2, 0, 0, 0, 16, 0, 1, 0x80, 12, 0, 1, 0x80, 8, 0, 1, 0, 10, 0, 0, 7}
	if a, ok := endOf(whole, 1); !ok || a != netip.MustParseAddr("10.0.0.7") {
		t.Errorf("an address is read as %s, %v", a, ok)
	}
	for cut := range whole {
		if a, ok := endOf(whole[:cut], 1); ok {
			t.Errorf("the first %d bytes name %s", cut, a)
		}
	}
}
