package egress_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"net/rpc"
	"os"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// socketsPort is where a guest of a sandbox takes calls.
const socketsPort = "7777"

// serveSockets is PID 1 of a sandbox that stands for the guest: it makes sockets
// there and passes on what goes through them.
func serveSockets() error {
	l, err := net.Listen("tcp4", ":"+socketsPort)
	if err != nil {
		return err
	}
	if err := rpc.RegisterName("Sockets", &Sockets{open: map[int]any{}}); err != nil {
		return err
	}
	rpc.Accept(l)
	return nil
}

// Sockets has the sockets that were opened, by number: of type net.Conn,
// net.Listener or net.PacketConn.
type Sockets struct {
	mu   sync.Mutex
	open map[int]any
	last int
}

// Opening is a socket to be opened.
type Opening struct {
	Network, Addr, From string
	Patience            time.Duration
}

// Opened is one that is open.
type Opened struct {
	Number        int
	Local, Remote string
}

// IO is bytes to be written, or room for those to be read.
type IO struct {
	Number, Room int
	Bytes        []byte
	Network, To  string // of a datagram
}

// Done says what came of it.
type Done struct {
	N         int
	Bytes     []byte
	From      string
	End, Late bool // io.EOF, a deadline that is over
	Err       string
}

// Deadline is one for reads, writes or both: a pause from now. 0 is none, and one
// below 0 is over.
type Deadline struct {
	Number      int
	Read, Write bool
	Pause       time.Duration
}

func (d *Done) failed(err error) {
	if err != nil {
		d.End, d.Late, d.Err = errors.Is(err, io.EOF), errors.Is(err, os.ErrDeadlineExceeded), err.Error()
	}
}

func (s *Sockets) keep(socket any) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last++
	s.open[s.last] = socket
	return s.last
}

func find[T any](s *Sockets, number int) (T, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	socket, ok := s.open[number].(T)
	if !ok {
		return socket, net.ErrClosed
	}
	return socket, nil
}

// Dial connects.
func (s *Sockets) Dial(o Opening, out *Opened) error {
	d := net.Dialer{Timeout: o.Patience}
	if o.From != "" {
		d.LocalAddr = &net.UDPAddr{IP: net.ParseIP(o.From)}
	}
	c, err := d.Dial(o.Network, o.Addr)
	if err != nil {
		return err
	}
	*out = Opened{s.keep(c), c.LocalAddr().String(), c.RemoteAddr().String()}
	return nil
}

// Listen makes a listener.
func (s *Sockets) Listen(o Opening, out *Opened) error {
	l, err := net.Listen(o.Network, o.Addr)
	if err != nil {
		return err
	}
	*out = Opened{Number: s.keep(l), Local: l.Addr().String()}
	return nil
}

// ListenPacket makes a socket for datagrams.
func (s *Sockets) ListenPacket(o Opening, out *Opened) error {
	p, err := net.ListenPacket(o.Network, o.Addr)
	if err != nil {
		return err
	}
	*out = Opened{Number: s.keep(p), Local: p.LocalAddr().String()}
	return nil
}

// Accept waits for a connection of a listener.
func (s *Sockets) Accept(number int, out *Opened) error {
	l, err := find[net.Listener](s, number)
	if err != nil {
		return err
	}
	c, err := l.Accept()
	if err != nil {
		return err
	}
	*out = Opened{s.keep(c), c.LocalAddr().String(), c.RemoteAddr().String()}
	return nil
}

// Read reads what a connection has.
func (s *Sockets) Read(in IO, out *Done) error {
	c, err := find[net.Conn](s, in.Number)
	if err != nil {
		return err
	}
	out.Bytes = make([]byte, in.Room)
	out.N, err = c.Read(out.Bytes)
	out.Bytes = out.Bytes[:out.N]
	out.failed(err)
	return nil
}

// Write writes to a connection.
func (s *Sockets) Write(in IO, out *Done) error {
	c, err := find[net.Conn](s, in.Number)
	if err != nil {
		return err
	}
	out.N, err = c.Write(in.Bytes)
	out.failed(err)
	return nil
}

// ReadFrom waits for a datagram.
func (s *Sockets) ReadFrom(in IO, out *Done) error {
	p, err := find[net.PacketConn](s, in.Number)
	if err != nil {
		return err
	}
	out.Bytes = make([]byte, in.Room)
	var from net.Addr
	out.N, from, err = p.ReadFrom(out.Bytes)
	out.Bytes = out.Bytes[:out.N]
	if from != nil {
		out.From = from.String()
	}
	out.failed(err)
	return nil
}

// WriteTo sends a datagram.
func (s *Sockets) WriteTo(in IO, out *Done) error {
	p, err := find[net.PacketConn](s, in.Number)
	if err != nil {
		return err
	}
	to, err := addressOf(in.Network, in.To)
	if err == nil {
		out.N, err = p.WriteTo(in.Bytes, to)
	}
	out.failed(err)
	return nil
}

// addressOf is what net.Addr's String was of.
func addressOf(network, text string) (net.Addr, error) {
	if network == "udp" {
		return net.ResolveUDPAddr("udp4", text)
	}
	return net.ResolveIPAddr("ip4", text)
}

// SetDeadline sets one.
func (s *Sockets) SetDeadline(d Deadline, _ *struct{}) error {
	socket, err := find[interface {
		SetReadDeadline(time.Time) error
		SetWriteDeadline(time.Time) error
	}](s, d.Number)
	if err != nil {
		return err
	}
	at := time.Time{}
	if d.Pause != 0 {
		at = time.Now().Add(d.Pause)
	}
	if d.Read {
		err = socket.SetReadDeadline(at)
	}
	if d.Write {
		err = errors.Join(err, socket.SetWriteDeadline(at))
	}
	return err
}

// Close closes a socket of any kind.
func (s *Sockets) Close(number int, _ *struct{}) error {
	c, err := find[io.Closer](s, number)
	if err != nil {
		return err
	}
	s.mu.Lock()
	delete(s.open, number)
	s.mu.Unlock()
	return c.Close()
}

// Send sends a packet of IP with its header.
func (s *Sockets) Send(in IO, _ *struct{}) error {
	to, err := netip.ParseAddr(in.To)
	if err != nil {
		return err
	}
	return sendRaw(in.Bytes, to)
}

// Take gives the sandbox's interface an address.
func (s *Sockets) Take(addr string, _ *struct{}) error { return changeAddress(addr, netlink.AddrAdd) }

// Leave takes it away.
func (s *Sockets) Leave(addr string, _ *struct{}) error { return changeAddress(addr, netlink.AddrDel) }

func changeAddress(addr string, do func(netlink.Link, *netlink.Addr) error) error {
	links, err := netlink.LinkList()
	if err != nil {
		return err
	}
	a, err := netlink.ParseAddr(addr + "/32")
	if err != nil {
		return err
	}
	for _, l := range links {
		if l.Attrs().Flags&net.FlagLoopback == 0 {
			return do(l, a)
		}
	}
	return fmt.Errorf("%d interfaces, none but loopback", len(links))
}

// sendRaw sends a packet of IP with its header, from where this thread is.
func sendRaw(packet []byte, to netip.Addr) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Sendto(fd, packet, 0, &unix.SockaddrInet4{Addr: to.As4()})
}
