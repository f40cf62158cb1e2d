package enginetest

import (
	"io"
	"net"
	"os"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cay-run/cay/internal/machine/engine"
)

// visitors is the storm that comes from the host.
const visitors = "visitors"

// storms are what the guest does all the time while it is saved (guest/storm.go).
var storms = []string{
	visitors, "clients", "callers", "loopback", "datagrams", "sockets", "processes", "files", "mappings", "waits", "terminals",
}

// SoakStorms saves a guest that is busy, at whatever it is just then, and restores it
// with another address, again and again: it starts each time, and its threads go on.
func SoakStorms(t *testing.T, rounds int, open func(testing.TB) engine.Engine) {
	if os.Getuid() != 0 {
		t.Fatal("the engine's soak must run as root")
	}
	s := &suite{Engine: open(t), open: open, image: rootImage(t), dir: t.TempDir()}
	s.slots = []*slot{newSlot(t, 0), newSlot(t, 1)}
	answering, silent := answer(t), keepSilent(t)
	for _, kind := range storms {
		t.Run(kind, func(t *testing.T) {
			(&storm{suite: s, kind: kind, at: s.slots[0], answering: answering, silent: silent}).rage(t, rounds)
		})
	}
}

// answer returns a port of the host that says ten bytes of each connection back and
// closes it, until the test ends.
func answer(t *testing.T) string {
	l, err := net.Listen("tcp", ":0")
	must(t, err)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_ = conn.SetDeadline(time.Now().Add(time.Second))
				_, _ = io.CopyN(conn, conn, 10)
			}()
		}
	}()
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
}

// keepSilent returns a port of the host that answers no more calls, until the test
// ends.
func keepSilent(t *testing.T) string {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	t.Cleanup(func() { unix.Close(fd) })
	must(t, unix.Bind(fd, &unix.SockaddrInet4{}))
	must(t, unix.Listen(fd, 0)) // the first waits for ever, and the others have no room
	own, err := unix.Getsockname(fd)
	must(t, err)
	return strconv.Itoa(own.(*unix.SockaddrInet4).Port)
}

// storm is a guest that does something all the time.
type storm struct {
	*suite
	kind              string
	at                *slot
	answering, silent string // ports of the host
}

// rage goes on with what each save of the guest starts.
func (s *storm) rage(t *testing.T, rounds int) {
	const threads = 6
	id := s.start(t, s.at)
	s.begin(t, threads)
	for round := range rounds {
		leave := func() {}
		if s.kind == visitors {
			leave = s.at.crowd(t, 4*threads)
		}
		s.goesOn(t)
		keep := round%2 == 1
		saved, dir := s.snapshot(t, id, keep)
		leave()
		if keep {
			s.goesOn(t)
			must(t, s.Kill(t.Context(), id))
		}
		s.at = s.slots[(round+1)%2]
		id = s.resume(t, saved, dir, s.at)
		s.begin(t, 0)
		s.goesOn(t)
		must(t, os.RemoveAll(dir))
	}
	must(t, s.Kill(t.Context(), id))
}

// begin begins threads of the storm, and tells the guest where its host is.
func (s *storm) begin(t *testing.T, threads int) {
	if s.kind != visitors {
		s.at.expect(t, "", "/storm", "kind", s.kind, "threads", strconv.Itoa(threads),
			"answering", net.JoinHostPort(s.at.host.String(), s.answering), "silent", net.JoinHostPort(s.at.host.String(), s.silent))
	}
}

// goesOn waits until the guest has done more of it.
func (s *storm) goesOn(t *testing.T) {
	t.Helper()
	s.at.expect(t, "ok", "/health")
	if s.kind == visitors {
		return
	}
	done := func() int {
		text, _ := s.at.ask(t, "/stormed", "kind", s.kind)
		n, err := strconv.Atoi(text)
		must(t, err)
		return n
	}
	before := done()
	soon(t, "the guest goes on with "+s.kind, func() bool { return done() >= before+20 })
	if t.Failed() {
		text, _ := s.at.ask(t, "/storm-error", "kind", s.kind)
		t.Fatalf("its newest error is %q", text)
	}
}
