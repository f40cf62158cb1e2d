package enginetest

import (
	"io"
	"net"
	"net/netip"
	"os/exec"
	"runtime"
	"sync"
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
	at, to := s.slots[0], s.slots[1]
	busy(t) // where nothing else runs, segments are read as they come
	for range 6 {
		id := s.start(t, at)
		leave := at.crowd(t, 48)
		saved, dir := s.snapshot(t, id, false)
		leave()
		id = s.resume(t, saved, dir, to)
		to.expect(t, "ok", "/health")
		must(t, s.Kill(t.Context(), id))
	}
}

// busy keeps all processors of the host busy until the test ends.
func busy(t *testing.T) {
	for range 3 * runtime.NumCPU() {
		cmd := exec.Command("sh", "-c", "while :; do :; done")
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		must(t, cmd.Start())
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait() // it says that it was killed
		})
	}
}

// crowd has clients come and go until leave is called, and returns once each of them
// has been there. They wait for no guest that is gone.
func (s *slot) crowd(t *testing.T, clients int) (leave func()) {
	over := make(chan struct{})
	var all, first sync.WaitGroup
	first.Add(clients)
	for range clients {
		all.Go(func() {
			been := sync.OnceFunc(first.Done)
			defer been()
			visited, deadline := false, time.Now().Add(patience)
			for {
				select {
				case <-over:
					return
				default:
				}
				err := s.comeAndGo()
				if visited = visited || err == nil; visited {
					been()
				} else if time.Now().After(deadline) {
					t.Errorf("a client cannot visit the guest: %v", err)
					return
				}
			}
		})
	}
	first.Wait()
	return func() { close(over); all.Wait() }
}

// comeAndGo makes a connection that the guest closes first.
func (s *slot) comeAndGo() error {
	conn, err := net.DialTimeout("tcp4", netip.AddrPortFrom(s.guest, 8080).String(), time.Second)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return err
	}
	return untilClosed(conn)
}

// untilClosed asks the guest for something, and reads until the guest closes.
func untilClosed(conn net.Conn) error {
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
	return conn.LocalAddr().(*net.TCPAddr).AddrPort().Port(), untilClosed(conn)
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
