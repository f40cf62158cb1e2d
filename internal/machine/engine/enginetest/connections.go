package enginetest

import (
	"io"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// oldConnections saves an instance that keeps a connection that is over, in
// TIME-WAIT, as the side does that closes first. An instance that is restored
// at the same address takes a new connection between the same ports, whatever
// number it begins at: a host counts on, from where no snapshot knows.
func (s *suite) oldConnections(t *testing.T) {
	const later, earlier = 1 << 31, 1 << 30
	at := s.slots[0]
	for _, keep := range []bool{true, false} {
		id := s.start(t, at)
		from, err := at.visit(0, later)
		must(t, err)
		saved, dir := s.snapshot(t, id, keep)
		if keep {
			must(t, s.Kill(t.Context(), id))
		}
		id = s.resume(t, saved, dir, at)
		if _, err := at.visit(from, earlier); err != nil {
			t.Errorf("saved with keep %v: a new connection from the port of one that is over: %v", keep, err)
		}
		must(t, s.Kill(t.Context(), id))
	}
}

// visit asks the guest for something over a connection of its own, which the
// guest closes first, and returns the port that it came from. The connection
// begins at a number, from a port if that is not 0.
func (s *slot) visit(from uint16, begin int) (uint16, error) {
	dialer := net.Dialer{
		Timeout:   patience / 6,
		LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(s.host, from)),
		Control: func(_, _ string, c syscall.RawConn) (err error) {
			controlled := c.Control(func(fd uintptr) { err = beginAt(int(fd), begin) })
			if err == nil {
				err = controlled
			}
			return err
		},
	}
	conn, err := dialer.Dial("tcp4", netip.AddrPortFrom(s.guest, 8080).String())
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return 0, err
	}
	if _, err := io.WriteString(conn, "GET /ready HTTP/1.1\r\nHost: guest\r\nConnection: close\r\n\r\n"); err != nil {
		return 0, err
	}
	_, err = io.Copy(io.Discard, conn)
	return conn.LocalAddr().(*net.TCPAddr).AddrPort().Port(), err
}

// beginAt has the connection of a new socket begin at a number.
func beginAt(fd, number int) error {
	const sendQueue = 2 // of include/uapi/linux/tcp.h
	for _, o := range []struct{ level, name, value int }{
		{unix.IPPROTO_TCP, unix.TCP_REPAIR, 1},
		{unix.IPPROTO_TCP, unix.TCP_REPAIR_QUEUE, sendQueue},
		{unix.IPPROTO_TCP, unix.TCP_QUEUE_SEQ, number},
		{unix.IPPROTO_TCP, unix.TCP_REPAIR, 0},
		{unix.SOL_SOCKET, unix.SO_REUSEADDR, 1}, // the port may still be that of one that is over
	} {
		if err := unix.SetsockoptInt(fd, o.level, o.name, o.value); err != nil {
			return err
		}
	}
	return nil
}
