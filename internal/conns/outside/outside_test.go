package outside

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"

	"github.com/cay-run/cay"
)

func TestOutside(t *testing.T) {
	n := Networks{
		Opened: []netip.Prefix{netip.MustParsePrefix("10.8.0.0/24"), netip.MustParsePrefix("203.0.113.0/29")},
		Closed: []netip.Prefix{
			netip.MustParsePrefix("10.8.0.128/25"), netip.MustParsePrefix("5.5.0.0/16"), netip.MustParsePrefix("10.201.0.0/16"),
		},
		Trusted: []netip.Prefix{netip.MustParsePrefix("10.200.0.0/15"), netip.MustParsePrefix("127.2.0.0/16")},
		Own: func() ([]netip.Prefix, error) {
			return []netip.Prefix{
				netip.MustParsePrefix("203.0.113.7/24"), netip.MustParsePrefix("10.8.0.5/24"), netip.MustParsePrefix("127.2.0.1/8"),
				netip.MustParsePrefix("2a01:4f8:1:2::1/64"), netip.MustParsePrefix("100.2.0.1/1"),
			}, nil
		},
	}
	for addr, want := range map[string]bool{
		"8.8.8.8": true, "2606:4700::1": true, "::ffff:8.8.8.8": true, "128.1.1.1": true,
		"127.0.0.1": false, "10.1.2.3": false, "192.168.1.1": false, "172.16.0.1": false,
		"169.254.169.254": false, "100.64.1.1": false, "100.100.100.200": false, "0.0.0.0": false,
		"168.63.129.16": false, "168.63.129.17": true,
		"224.0.0.1": false, "255.255.255.255": false, "::ffff:127.0.0.1": false,
		"::": false, "::1": false, "fe80::1": false, "fd00:ec2::254": false, "ff02::1": false,
		"64:ff9b::a9fe:a9fe": false, "2002:7f00:1::": false, "2001::1": false, "2001:db8::1": false,
		"::127.0.0.1": false, "100::1": false,
		// The host itself, and its neighbours.
		"203.0.113.7": false, "203.0.113.200": false, "::ffff:203.0.113.7": false,
		"2a01:4f8:1:2::1": false, "2a01:4f8:1:2:ffff::9": false, "2a01:4f8:1:3::1": true,
		"100.2.0.1": false,
		// The operator's ranges open neighbours, not the host.
		"203.0.113.6": true, "10.8.0.1": true, "10.8.0.5": false, "10.8.0.200": false, "5.5.5.5": false,
		// Trusted ranges open the host, and nothing that is closed.
		"127.2.0.1": true, "::ffff:127.2.0.9": true, "127.3.0.1": false, "10.200.0.1": true, "10.201.0.1": false,
	} {
		got, err := n.Outside(netip.MustParseAddr(addr))
		if got != want || err != nil {
			t.Errorf("%s: %v, %v", addr, got, err)
		}
	}
	n.Own = func() ([]netip.Prefix, error) { return nil, errors.New("no netlink") }
	if ok, err := n.Outside(netip.MustParseAddr("8.8.8.8")); ok || err == nil {
		t.Error("a host that does not know its own addresses lets everything through")
	}
}

// A dial connects to no address of this host, by number or by name.
func TestDialContext(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	for _, host := range []string{"127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "0.0.0.0"} {
		c, err := Networks{}.DialContext(context.Background(), "tcp", host+":"+port)
		if err == nil {
			c.Close()
		}
		if cay.KindOf(err) != cay.Denied {
			t.Errorf("%s: %v", host, err)
		}
	}
	addrs, err := hostAddresses()
	if err != nil || len(addrs) == 0 {
		t.Fatalf("%v, %v", addrs, err)
	}
	for _, a := range addrs {
		if ok, err := (Networks{}).Outside(a.Addr()); ok || err != nil {
			t.Errorf("the host's own %s: %v, %v", a, ok, err)
		}
	}
}

func FuzzOutside(f *testing.F) {
	f.Add([]byte{127, 0, 0, 1})
	f.Add([]byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1})
	n := Networks{Own: func() ([]netip.Prefix, error) { return nil, nil }}
	f.Fuzz(func(t *testing.T, b []byte) {
		a, ok := netip.AddrFromSlice(b)
		if !ok {
			return
		}
		out, err := n.Outside(a)
		if bad := a.IsPrivate() || a.IsLoopback() || a.IsLinkLocalUnicast() || a.IsMulticast() || a.IsUnspecified(); err != nil || out && bad {
			t.Errorf("%s is outside: %v", a, err)
		}
	})
}
