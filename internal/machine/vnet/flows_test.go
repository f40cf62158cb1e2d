package vnet

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Flows that begin or end at an address are forgotten, and no other, by kernels
// that find them themselves and by those that do not.
func TestForgetFlows(t *testing.T) {
	for name, forget := range map[string]func(netip.Addr) error{
		"as the kernel can": func(a netip.Addr) error { forgetFlows(a); return nil },
		"one by one": func(a netip.Addr) error {
			_, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, unix.AF_INET, flowsOf(a))
			return err
		},
	} {
		t.Run(name, func(t *testing.T) { forgetsFlows(t, forget) })
	}
}

func forgetsFlows(t *testing.T, forget func(netip.Addr) error) {
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
		errs = append(errs, forget(gone))
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

func BenchmarkForgetFlows(b *testing.B) {
	if os.Geteuid() != 0 {
		b.Skip("NOT TESTED HERE: the table of connections needs root")
	}
	addr := netip.MustParseAddr("192.0.2.77") // of no machine
	for b.Loop() {
		forgetFlows(addr)
	}
}
