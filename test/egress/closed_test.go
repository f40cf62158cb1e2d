package egress_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/vnet"
)

// wideOpen is the most that a policy can ask for.
func wideOpen(*world) cay.NetworkPolicy {
	return cay.NetworkPolicy{AllowInternet: true, AllowOut: []string{"0.0.0.0/0", "10.0.0.0/8", "169.254.0.0/16", "*"}}
}

// closed wants a connection refused.
func closed(w *world, a netip.Addr, port uint16) error {
	_, err := w.says(a, port, "\x00hello")
	return refused(w, err)
}

// spoof sends a datagram with another's address as its source.
func spoof(w *world, from, to netip.Addr) error { return spoofTo(w, from, to, 123) }

// spoofTo is spoof to a port.
func spoofTo(w *world, from, to netip.Addr, port uint16) error {
	packet := []byte{
		0x45, 0, 0, 29, 0, 0, 0, 0, 64, unix.IPPROTO_UDP, 0, 0,
		0, 0, 0, 0, 0, 0, 0, 0,
		0, 9, byte(port >> 8), byte(port), 0, 9, 0, 0, 'x',
	}
	copy(packet[12:], from.AsSlice())
	copy(packet[16:], to.AsSlice())
	return w.guest.send(packet, to)
}

// barrier is a datagram that must arrive, so that an earlier one would have.
func barrier(w *world) error {
	if err := w.udp(w.b, 5353); err != nil {
		return err
	}
	return unseen(w, ":123")
}

var closedRanges = group{"closed always", wideOpen, []attempt{
	{"the internet is open", func(w *world) error {
		got, err := w.says(w.a, 9000, "hello")
		if err != nil || got != "hello" {
			return fmt.Errorf("got %q, %v", got, err)
		}
		return errors.Join(w.udp(w.a, 123), saw(w, "udp"))
	}},
	{"10/8", func(w *world) error { return closed(w, w.private[0], 80) }},
	{"172.16/12", func(w *world) error { return closed(w, w.private[1], 80) }},
	{"192.168/16", func(w *world) error { return closed(w, w.private[2], 80) }},
	{"169.254/16", func(w *world) error { return closed(w, w.private[3], 80) }},
	{"100.64/10", func(w *world) error { return closed(w, w.private[4], 80) }},
	{"datagrams to a private range", func(w *world) error { return refused(w, w.udp(w.private[0], 123)) }},
	{"the metadata service", func(w *world) error { return closed(w, netip.MustParseAddr("169.254.169.254"), 80) }},
	{"the host's neighbour", func(w *world) error { return closed(w, w.near, 80) }},
	{"the gateway's ports", func(w *world) error {
		for _, port := range []uint16{80, 443, 7070} { // for models and sandboxes' public names, and no other word
			for _, word := range []string{"SSH-2.0-guest\r\n", "\x16\x03\x01\x00\x01\x00"} {
				if got, err := w.says(vnet.Gateway, port, word); err == nil && got != "\x15\x03\x03\x00\x02\x02\x31" {
					return fmt.Errorf("port %d of the gateway answers %q with %q", port, word, got)
				}
			}
		}
		for _, port := range []uint16{22, 53} {
			if c, err := w.tcp(vnet.Gateway, port); err == nil && port != 53 {
				return fmt.Errorf("port %d of the gateway takes %s", port, c.RemoteAddr())
			}
		}
		return nil
	}},
	{"the ports that diverted connections go to", func(w *world) error {
		port := netip.MustParseAddrPort(w.net.Diverted().Conns.Addr().String()).Port()
		return closed(w, vnet.Gateway, port)
	}},
	{"the host's own addresses", func(w *world) error {
		l, err := net.Listen("tcp", "[::]:0")
		if err != nil {
			return err
		}
		defer l.Close()
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				io.WriteString(c, "host")
				c.Close()
			}
		}()
		addrs, err := net.InterfaceAddrs()
		if err != nil {
			return err
		}
		for _, a := range addrs {
			p, err := netip.ParsePrefix(a.String())
			if err != nil || !p.Addr().Is4() || p.Addr().IsLoopback() {
				continue
			}
			if err := closed(w, p.Addr(), netip.MustParseAddrPort(l.Addr().String()).Port()); err != nil {
				return fmt.Errorf("%s: %w", p.Addr(), err)
			}
		}
		return nil
	}},
	{"a neighbour", func(w *world) error {
		other, err := w.net.Acquire(w.t.Context())
		if err != nil {
			return err
		}
		defer w.net.Release(w.t.Context(), other)
		l, err := namespace(other.Namespace).listen("tcp4", "0.0.0.0:80")
		if err != nil {
			return err
		}
		defer l.Close()
		go w.accept(l, func(c net.Conn) { io.WriteString(c, "neighbour") })
		return closed(w, other.Addr, 80)
	}},
	{"IPv6", func(w *world) error {
		_, err := w.dial("tcp6", "[2001:db8::1]:80")
		return refused(w, err)
	}},
	{"an address mapped into IPv6", func(w *world) error {
		_, err := w.dial("tcp", "[::ffff:"+w.private[0].String()+"]:80")
		return refused(w, err)
	}},
	{"another's name on a packet", func(w *world) error {
		return errors.Join(spoof(w, netip.MustParseAddr("8.8.8.8"), w.a), barrier(w))
	}},
	{"a neighbour's name on a packet", func(w *world) error {
		return errors.Join(spoof(w, w.slot.Addr.Next(), w.a), barrier(w))
	}},
	{"the gateway's name on a packet", func(w *world) error { return errors.Join(spoof(w, vnet.Gateway, w.a), barrier(w)) }},
	{"a second address of one's own (ARP)", func(w *world) error {
		stolen := w.slot.Addr.Next().Next()
		done, err := w.guest.take(stolen)
		if err != nil {
			return err
		}
		defer done()
		c, err := w.guest.dial("udp4", netip.AddrPortFrom(w.a, 123).String(), stolen)
		if err != nil {
			return err
		}
		defer c.Close()
		if _, err := c.Write([]byte("x")); err != nil {
			return err
		}
		return barrier(w)
	}},
	{"all names are answered", func(w *world) error { return answers(w, "udp4", "b.example", dnsmessage.TypeA, w.b) }},
}}

var nothing = group{"no internet", func(*world) cay.NetworkPolicy { return cay.NetworkPolicy{} }, []attempt{
	{"a connection", func(w *world) error { return closed(w, w.a, 9000) }},
	{"a request is told why", func(w *world) error {
		got, err := w.client(w.a, 80, "").get("a.example", "/")
		return denied(w, got, err, "allow_internet_access")
	}},
	{"a TLS connection is told", func(w *world) error { return alert(w, w.a, 443, clientHello(1<<14, false, "a.example")) }},
	{"a datagram", func(w *world) error { return refused(w, w.udp(w.a, 123)) }},
	{"a question", func(w *world) error {
		_, err := w.ask("udp4", nameServer, "a.example", dnsmessage.TypeA)
		return errors.Join(refused(w, err), unseen(w, "dns"))
	}},
}}

var addresses = group{"by address", func(w *world) cay.NetworkPolicy {
	return cay.NetworkPolicy{AllowInternet: true, AllowOut: []string{w.a.String()}, DenyOut: []string{w.a.String(), w.b.String() + "/32"}}
}, []attempt{
	{"allowed beats denied", func(w *world) error {
		got, err := w.says(w.a, 9000, "hello")
		if err != nil || got != "hello" {
			return fmt.Errorf("got %q, %v", got, err)
		}
		return nil
	}},
	{"what is not denied is open", func(w *world) error {
		got, err := w.says(w.c, 9000, "hello")
		if err != nil || got != "hello" {
			return fmt.Errorf("got %q, %v", got, err)
		}
		return nil
	}},
	{"a denied address", func(w *world) error { return closed(w, w.b, 9000) }},
	{"a denied address is told why", func(w *world) error {
		got, err := w.client(w.b, 80, "").get("b.example", "/")
		return denied(w, got, err, "denyOut "+w.b.String())
	}},
	{"a denied address under an open name", func(w *world) error { return alert(w, w.b, 443, clientHello(1<<14, false, "a.example")) }},
	{"datagrams to a denied address", func(w *world) error { return refused(w, w.udp(w.b, 123)) }},
}}
