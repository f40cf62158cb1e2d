package agent

import (
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A question to a silent peer wakes a sandbox that sleeps.
func TestSilentPeersAreAskedSeldom(t *testing.T) {
	l, err := Listen(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	peer, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var idle, on int
	if err := raw.Control(func(fd uintptr) {
		on, _ = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_KEEPALIVE)
		idle, _ = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_KEEPIDLE)
	}); err != nil {
		t.Fatal(err)
	}
	if on != 1 || time.Duration(idle)*time.Second != patience.Idle {
		t.Errorf("a peer is asked (%d) after %d seconds of silence, want %v", on, idle, patience.Idle)
	}
}
