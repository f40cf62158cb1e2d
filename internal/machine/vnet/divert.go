package vnet

import (
	"context"
	"encoding/binary"
	"errors"
	"hash/fnv"
	"net"
	"net/netip"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/cay-run/cay"
)

// Diverted is where the packet filter sends what it does not decide alone:
// connections that no address rule allows or whose headers are to be set, and
// the questions for names of slots that may not reach everything. Its server
// decides; while there is none, guests get resets and no answers.
type Diverted struct {
	Conns         net.Listener
	Questions     net.PacketConn
	QuestionConns net.Listener
}

// Diverted is this manager's. Close closes it.
func (m *Manager) Diverted() Diverted { return m.diverted }

// Resolvers are the name servers that guests' questions end up at.
func (m *Manager) Resolvers() []netip.AddrPort { return slices.Clone(m.servers) }

// Closed reports whether no policy opens an address.
func (m *Manager) Closed(a netip.Addr) bool {
	a = a.Unmap()
	return !a.Is4() || slices.ContainsFunc(m.blocked, func(p netip.Prefix) bool { return p.Contains(a) })
}

// Dial connects in the name of a guest. Wherever the address leads, the packet
// filter keeps the connection away from the host and from what is closed.
func (m *Manager) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	d := net.Dialer{Control: func(_, _ string, c syscall.RawConn) error {
		var failed error
		err := c.Control(func(fd uintptr) {
			failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, int(m.mark()))
		})
		return errors.Join(err, failed)
	}}
	return d.DialContext(ctx, network, address)
}

// mark is on the packets of Dial; each manager has its own.
func (m *Manager) mark() uint32 {
	h := fnv.New32a()
	h.Write([]byte(m.name))
	return 0xca<<24 | h.Sum32()>>8
}

// Original is where a diverted connection was going.
func Original(c net.Conn) (netip.AddrPort, error) {
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return netip.AddrPort{}, cay.Errorf(cay.Internal, "not a TCP connection")
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return netip.AddrPort{}, err
	}
	var sockaddr *unix.IPv6Mreq // large enough for what the kernel writes
	var failed error
	err = raw.Control(func(fd uintptr) {
		sockaddr, failed = unix.GetsockoptIPv6Mreq(int(fd), unix.SOL_IP, unix.SO_ORIGINAL_DST)
	})
	if err := errors.Join(err, failed); err != nil {
		return netip.AddrPort{}, err
	}
	b := sockaddr.Multiaddr
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), binary.BigEndian.Uint16(b[2:4])), nil
}

// listenGateway listens on a free port of the gateway's address, which exists
// only while there is a slot: hence the free binding.
func listenGateway(ctx context.Context, port uint16) (*net.TCPListener, error) {
	free := net.ListenConfig{Control: freeBind}
	l, err := free.Listen(ctx, "tcp4", netip.AddrPortFrom(DNS, port).String())
	if err != nil {
		return nil, err
	}
	return l.(*net.TCPListener), nil
}

func freeBind(_, _ string, c syscall.RawConn) error {
	var failed error
	err := c.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_FREEBIND, 1)
	})
	return errors.Join(err, failed)
}

// listenPair listens for datagrams and connections on one port of the
// gateway. UDP chooses it; TCP may find it taken, so it tries again.
func listenPair(ctx context.Context) (net.PacketConn, net.Listener, error) {
	free := net.ListenConfig{Control: freeBind}
	var failed error
	for range 20 {
		udp, err := free.ListenPacket(ctx, "udp4", netip.AddrPortFrom(DNS, 0).String())
		if err != nil {
			return nil, nil, err
		}
		tcp, err := listenGateway(ctx, portOf(udp.LocalAddr()))
		if err == nil {
			return udp, tcp, nil
		}
		udp.Close()
		failed = err
	}
	return nil, nil, failed
}

func portOf(a net.Addr) uint16 {
	p, err := netip.ParseAddrPort(a.String())
	if err != nil {
		return 0
	}
	return p.Port()
}

func (m *Manager) listen(ctx context.Context) error {
	conns, err := listenGateway(ctx, 0)
	if err != nil {
		return cay.Wrap(cay.Internal, err, "nothing can listen for the guests' connections")
	}
	m.diverted.Conns = conns
	m.diverted.Questions, m.diverted.QuestionConns, err = listenPair(ctx)
	if err != nil {
		return cay.Wrap(cay.Internal, err, "nothing can listen for the guests' questions")
	}
	return nil
}

func (d Diverted) close() {
	if d.Conns != nil {
		d.Conns.Close()
	}
	if d.Questions != nil {
		d.Questions.Close()
	}
	if d.QuestionConns != nil {
		d.QuestionConns.Close()
	}
}

// ports are those of a Diverted, as the packet filter needs them.
func (d Diverted) ports() (conns, questions netip.AddrPort) {
	return netip.AddrPortFrom(Gateway, portOf(d.Conns.Addr())), netip.AddrPortFrom(DNS, portOf(d.Questions.LocalAddr()))
}
