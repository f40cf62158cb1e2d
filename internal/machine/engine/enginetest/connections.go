package enginetest

import (
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
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

// closingConnections saves an instance while many clients come and go: of some
// connections that the guest has closed, the last segments have come and are not
// read. An instance with another address, where none of these can go on, starts.
func (s *suite) closingConnections(t *testing.T) {
	const clients, saves = 48, 6
	at, to := s.slots[0], s.slots[1]
	for range saves {
		id := s.start(t, at)
		over := make(chan struct{})
		var all sync.WaitGroup
		var visits atomic.Int64
		for range clients {
			all.Go(func() {
				for {
					select {
					case <-over:
						return
					default:
					}
					if at.comeAndGo() == nil {
						visits.Add(1)
					}
				}
			})
		}
		soon(t, "each client has been there", func() bool { return visits.Load() >= clients })
		saved, dir := s.snapshot(t, id, false)
		close(over)
		all.Wait()
		id = s.resume(t, saved, dir, to)
		to.expect(t, "ok", "/health")
		must(t, s.Kill(t.Context(), id))
	}
}

// comeAndGo makes a connection that the guest closes first. It waits for no guest
// that is gone.
func (s *slot) comeAndGo() error {
	conn, err := net.DialTimeout("tcp4", netip.AddrPortFrom(s.guest, 8080).String(), time.Second)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return err
	}
	return ask(conn)
}

// ask asks the guest for something, and reads until the guest closes.
func ask(conn net.Conn) error {
	if _, err := io.WriteString(conn, "GET /ready HTTP/1.1\r\nHost: guest\r\nConnection: close\r\n\r\n"); err != nil {
		return err
	}
	_, err := io.Copy(io.Discard, conn)
	return err
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
	return conn.LocalAddr().(*net.TCPAddr).AddrPort().Port(), ask(conn)
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
