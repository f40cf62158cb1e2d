package main

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// loopback does to lo in a new network namespace what bubblewrap does.
func loopback() error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	const length = unix.SizeofNlMsghdr + unix.SizeofIfAddrmsg + 2*8
	m := binary.NativeEndian.AppendUint32(nil, length)
	m = binary.NativeEndian.AppendUint16(m, unix.RTM_NEWADDR)
	m = binary.NativeEndian.AppendUint16(m, unix.NLM_F_REQUEST|unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK)
	m = append(m, make([]byte, 8)...)                                        // sequence, port
	m = append(m, unix.AF_INET, 8, unix.IFA_F_PERMANENT, unix.RT_SCOPE_HOST) // 127.0.0.1/8
	m = binary.NativeEndian.AppendUint32(m, 1)                               // lo
	for _, attribute := range []uint16{unix.IFA_LOCAL, unix.IFA_ADDRESS} {
		m = binary.NativeEndian.AppendUint16(m, 8)
		m = binary.NativeEndian.AppendUint16(m, attribute)
		m = append(m, 127, 0, 0, 1)
	}
	if err := unix.Sendto(fd, m, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	answer := make([]byte, 4096)
	n, _, err := unix.Recvfrom(fd, answer, 0)
	if err != nil || n < unix.SizeofNlMsghdr+4 {
		return errors.Join(err, fmt.Errorf("an answer of %d bytes", n))
	}
	if code := int32(binary.NativeEndian.Uint32(answer[unix.SizeofNlMsghdr:])); code != 0 {
		return unix.Errno(-code)
	}
	return nil
}

// network makes sockets of every kind in every state in its network namespace,
// and then says for each line that it reads how they fare.
func network() error {
	held, err := sockets()
	if err != nil {
		return err
	}
	fmt.Println("ready")
	for in := bufio.NewReader(os.Stdin); ; {
		if _, err := in.ReadString('\n'); err != nil {
			return err
		}
		if err := held.fare(); err != nil {
			fmt.Println(err)
			continue
		}
		fmt.Println("fine")
	}
}

// bridge makes a bridge in its network namespace that has learned an address, and
// then answers each line that it reads.
func bridge() error {
	ends := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "end"}, PeerName: "port"}
	over := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "over"}}
	for _, link := range []netlink.Link{over, ends} {
		if err := netlink.LinkAdd(link); err != nil {
			return fmt.Errorf("%s: %w", link.Attrs().Name, err)
		}
	}
	port, err := netlink.LinkByName("port")
	if err != nil {
		return err
	}
	addr := &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(10, 99, 0, 2), Mask: net.CIDRMask(24, 32)}}
	if err := errors.Join(netlink.LinkSetMaster(port, over), netlink.AddrAdd(ends, addr)); err != nil {
		return err
	}
	for _, link := range []netlink.Link{over, port, ends} {
		if err := netlink.LinkSetUp(link); err != nil {
			return fmt.Errorf("%s up: %w", link.Attrs().Name, err)
		}
	}
	// A neighbour that is not there is asked for through the bridge, until the
	// caller is told so.
	if _, err := net.DialTimeout("tcp", "10.99.0.9:9", 20*time.Second); !errors.Is(err, unix.EHOSTUNREACH) {
		return fmt.Errorf("a neighbour that is not there: %w", err)
	}
	fmt.Println("ready")
	for in := bufio.NewReader(os.Stdin); ; fmt.Println("fine") {
		if _, err := in.ReadString('\n'); err != nil {
			return err
		}
	}
}

type netSockets struct {
	listener         net.Listener
	client, server   net.Conn
	datagrams, peer  *net.UDPConn
	unaccepted, idle []net.Conn
}

func sockets() (*netSockets, error) {
	s := new(netSockets)
	var err error
	if s.listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		return nil, err
	}
	addr := s.listener.Addr().String()
	if s.client, s.server, err = s.pair(addr); err != nil {
		return nil, err
	}
	// One that was closed by one end, one by both, and data that wait.
	for n := range 3 {
		client, server, err := s.pair(addr)
		if err != nil {
			return nil, err
		}
		_, err = client.Write([]byte("waits"))
		switch n {
		case 0:
			err = errors.Join(err, client.(*net.TCPConn).CloseWrite())
		case 1:
			err = errors.Join(err, client.Close(), server.Close())
		}
		if err != nil {
			return nil, err
		}
		s.idle = append(s.idle, client, server)
	}
	if s.datagrams, err = net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)}); err != nil {
		return nil, err
	}
	if s.peer, err = net.DialUDP("udp", nil, s.datagrams.LocalAddr().(*net.UDPAddr)); err != nil {
		return nil, err
	}
	if _, err := net.Listen("unix", "@in a namespace"); err != nil {
		return nil, err
	}
	s.odd()
	return s, nil
}

// odd makes sockets that an engine may refuse: of what it does not refuse, none
// may stand in the way of a restore.
func (s *netSockets) odd() {
	for _, kind := range [][3]int{
		{unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP},
		{unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_ICMP},
		{unix.AF_INET6, unix.SOCK_RAW, unix.IPPROTO_TCP},
		{unix.AF_PACKET, unix.SOCK_RAW, 0x0300},
		{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE},
	} {
		_, _ = unix.Socket(kind[0], kind[1], kind[2])
	}
	// A connection that nothing accepts, and one on its way to nowhere.
	if l, err := net.Listen("tcp", "[::1]:0"); err == nil {
		if c, err := net.Dial("tcp", l.Addr().String()); err == nil {
			s.unaccepted = append(s.unaccepted, c)
		}
	}
	if fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK, 0); err == nil {
		_ = unix.Connect(fd, &unix.SockaddrInet4{Port: 9, Addr: [4]byte{198, 51, 100, 1}})
	}
}

func (s *netSockets) pair(addr string) (client, server net.Conn, err error) {
	if client, err = net.Dial("tcp", addr); err != nil {
		return nil, nil, err
	}
	server, err = s.listener.Accept()
	return client, server, err
}

// fare tries what was made: the connection, another one to the listener, and
// datagrams.
func (s *netSockets) fare() error {
	if err := passes(s.client, s.server); err != nil {
		return fmt.Errorf("the connection: %w", err)
	}
	client, server, err := s.pair(s.listener.Addr().String())
	if err != nil {
		return fmt.Errorf("a new connection: %w", err)
	}
	defer client.Close()
	defer server.Close()
	if err := passes(client, server); err != nil {
		return fmt.Errorf("the new connection: %w", err)
	}
	if err := passes(s.peer, s.datagrams); err != nil {
		return fmt.Errorf("datagrams: %w", err)
	}
	if _, err := net.Dial("unix", "@in a namespace"); err != nil {
		return fmt.Errorf("the abstract socket: %w", err)
	}
	return nil
}

func passes(from, to net.Conn) error {
	const text = "hello"
	end := time.Now().Add(20 * time.Second)
	if err := errors.Join(from.SetDeadline(end), to.SetDeadline(end)); err != nil {
		return err
	}
	if _, err := io.WriteString(from, text); err != nil {
		return err
	}
	got := make([]byte, len(text))
	if _, err := io.ReadFull(to, got); err != nil || string(got) != text {
		return fmt.Errorf("%q came through: %w", got, err)
	}
	return nil
}
