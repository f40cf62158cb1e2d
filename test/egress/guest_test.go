package egress_test

import (
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// guestSockets makes sockets where the guest's are, as its root.
type guestSockets interface {
	// dial waits for patience at most. from is the address that it comes from; the
	// zero one leaves that to the guest.
	dial(network, addr string, from netip.Addr) (net.Conn, error)
	listen(network, addr string) (net.Listener, error)
	listenPacket(network, addr string) (net.PacketConn, error)
	// send sends a packet of IP with its header.
	send(packet []byte, to netip.Addr) error
	// take gives the interface an address, until done.
	take(a netip.Addr) (done func(), err error)
}

// namespace is a guest of Linux: a network namespace of the host, without a kernel
// of its own in front of it.
type namespace string

func (n namespace) dial(network, addr string, from netip.Addr) (net.Conn, error) {
	return inside(string(n), func() (net.Conn, error) {
		d := net.Dialer{Timeout: patience}
		if from.IsValid() {
			d.LocalAddr = &net.UDPAddr{IP: from.AsSlice()}
		}
		return d.Dial(network, addr)
	})
}

func (n namespace) listen(network, addr string) (net.Listener, error) {
	return inside(string(n), func() (net.Listener, error) { return net.Listen(network, addr) })
}

func (n namespace) listenPacket(network, addr string) (net.PacketConn, error) {
	return inside(string(n), func() (net.PacketConn, error) { return net.ListenPacket(network, addr) })
}

func (n namespace) send(packet []byte, to netip.Addr) error {
	_, err := inside(string(n), func() (int, error) { return 0, sendRaw(packet, to) })
	return err
}

func (n namespace) take(a netip.Addr) (done func(), err error) {
	ns, err := netns.GetFromPath(string(n))
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	h, err := netlink.NewHandleAt(ns)
	if err != nil {
		return nil, err
	}
	link, err := h.LinkByName("eth0")
	if err != nil {
		h.Close()
		return nil, err
	}
	addr := &netlink.Addr{IPNet: ipnet(a, 32)}
	if err := h.AddrAdd(link, addr); err != nil {
		h.Close()
		return nil, err
	}
	return func() {
		_ = h.AddrDel(link, addr)
		h.Close()
	}, nil
}
