package egress_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/netip"
	"net/rpc"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/engine"
	"github.com/cay-run/cay/internal/machine/engine/enginetest"
	"github.com/cay-run/cay/internal/machine/engine/runsc"
)

// guestEnv says that the guest is a sandbox with all that a template with Docker
// gives its root: the engine's own network stack, NET_ADMIN and NET_RAW.
const guestEnv = "CAY_EGRESS_GUEST"

const guestArg = "guest"

func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == guestArg {
		log.Fatal(serveSockets())
	}
	os.Exit(m.Run())
}

// sandbox is a guest in a sandbox of its own: each socket is one of it, and each
// call on one is a call into it.
type sandbox struct{ calls *rpc.Client }

// newGuest is the guest in a slot.
func (w *world) newGuest() guestSockets {
	switch kind := os.Getenv(guestEnv); kind {
	case "":
		return namespace(w.slot.Namespace)
	case "docker":
		return w.newSandbox()
	default:
		w.t.Fatalf("%s is %q, want docker", guestEnv, kind)
		return nil
	}
}

func (w *world) newSandbox() sandbox {
	t := w.t
	engines, hash := enginetest.Built(t)
	e, err := runsc.Open(runsc.Config{Engines: engines, Hash: hash, Run: t.TempDir(), Cgroup: "cay-egress"})
	w.must(err)
	dir, id := t.TempDir(), cay.NewInstanceID()
	t.Cleanup(func() {
		if err := e.Kill(context.Background(), id); err != nil {
			t.Error(err)
		}
	})
	w.must(e.Boot(t.Context(), engine.BootSpec{
		ID: id, Root: rootOfSockets(t), Digest: "sha256-egress", Args: []string{"/egress.test", guestArg},
		Limits: cay.Limits{CPUs: 2, MemoryMB: 512, DiskMB: 64},
		Dir:    filepath.Join(dir, "instance"), Net: engine.Net{Namespace: w.slot.Namespace}, Docker: true,
	}))
	addr := net.JoinHostPort(w.slot.Addr.String(), socketsPort)
	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		c, err := net.DialTimeout("tcp4", addr, time.Second)
		if err == nil {
			calls := rpc.NewClient(c)
			t.Cleanup(func() { calls.Close() })
			return sandbox{calls}
		}
		if time.Now().After(end) {
			t.Fatalf("the guest does not answer: %v", err)
		}
	}
}

// rootOfSockets is a root image with this test's program in it.
func rootOfSockets(t *testing.T) string {
	tree, image := t.TempDir(), filepath.Join(t.TempDir(), "root.erofs")
	for _, d := range []string{"proc", "sys", "dev", "tmp", ".cay"} {
		if err := os.Mkdir(filepath.Join(tree, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	// With the flags of scripts/build, whose packages are compiled.
	build := exec.Command("go", "test", "-c", "-trimpath", "-gcflags=all=-dwarf=false", "-o", filepath.Join(tree, "egress.test"), ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	for _, cmd := range []*exec.Cmd{build, exec.Command("mkfs.erofs", "--quiet", "-E", "noinline_data", image, tree)} {
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", cmd, err, out)
		}
	}
	return image
}

func (s sandbox) call(what string, in, out any) error { return s.calls.Call("Sockets."+what, in, out) }

func (s sandbox) dial(network, addr string, from netip.Addr) (net.Conn, error) {
	o := Opening{Network: network, Addr: addr, Patience: patience}
	if from.IsValid() {
		o.From = from.String()
	}
	var out Opened
	if err := s.call("Dial", o, &out); err != nil {
		return nil, err
	}
	return &far{guest: s, network: network, Opened: out}, nil
}

func (s sandbox) listen(network, addr string) (net.Listener, error) {
	var out Opened
	if err := s.call("Listen", Opening{Network: network, Addr: addr}, &out); err != nil {
		return nil, err
	}
	return listener{&far{guest: s, network: network, Opened: out}}, nil
}

func (s sandbox) listenPacket(network, addr string) (net.PacketConn, error) {
	var out Opened
	if err := s.call("ListenPacket", Opening{Network: network, Addr: addr}, &out); err != nil {
		return nil, err
	}
	return &far{guest: s, network: network, Opened: out}, nil
}

func (s sandbox) send(packet []byte, to netip.Addr) error {
	return s.call("Send", IO{Bytes: packet, To: to.String()}, &struct{}{})
}

func (s sandbox) take(a netip.Addr) (done func(), err error) {
	if err := s.call("Take", a.String(), &struct{}{}); err != nil {
		return nil, err
	}
	return func() { _ = s.call("Leave", a.String(), &struct{}{}) }, nil
}

// far is a socket in a sandbox: a connection, or one for datagrams.
type far struct {
	Opened
	guest   sandbox
	network string
}

// end is one end of a connection.
type end struct{ network, text string }

func (e end) Network() string { return e.network }
func (e end) String() string  { return e.text }

func (f *far) LocalAddr() net.Addr  { return end{f.network, f.Local} }
func (f *far) RemoteAddr() net.Addr { return end{f.network, f.Remote} }

func (f *far) Close() error { return f.guest.call("Close", f.Number, &struct{}{}) }

// io does one thing with the socket, and has its error as it was inside.
func (f *far) io(what string, in IO) (Done, error) {
	in.Number = f.Number
	var out Done
	err := f.guest.call(what, in, &out)
	switch {
	case err != nil:
		if err.Error() == net.ErrClosed.Error() {
			err = net.ErrClosed
		}
	case out.End:
		err = io.EOF
	case out.Late:
		err = os.ErrDeadlineExceeded
	case out.Err != "":
		err = errors.New(out.Err)
	}
	return out, err
}

func (f *far) Read(b []byte) (int, error) {
	out, err := f.io("Read", IO{Room: len(b)})
	return copy(b, out.Bytes), err
}

func (f *far) Write(b []byte) (int, error) {
	out, err := f.io("Write", IO{Bytes: b})
	return out.N, err
}

func (f *far) ReadFrom(b []byte) (int, net.Addr, error) {
	out, err := f.io("ReadFrom", IO{Room: len(b)})
	if err != nil {
		return copy(b, out.Bytes), nil, err
	}
	from, err := addressOf(f.kind(), out.From)
	return copy(b, out.Bytes), from, err
}

func (f *far) WriteTo(b []byte, to net.Addr) (int, error) {
	out, err := f.io("WriteTo", IO{Bytes: b, Network: f.kind(), To: to.String()})
	return out.N, err
}

// kind is udp or ip.
func (f *far) kind() string {
	if strings.HasPrefix(f.network, "udp") {
		return "udp"
	}
	return "ip"
}

func (f *far) SetDeadline(t time.Time) error      { return f.deadline(t, true, true) }
func (f *far) SetReadDeadline(t time.Time) error  { return f.deadline(t, true, false) }
func (f *far) SetWriteDeadline(t time.Time) error { return f.deadline(t, false, true) }

func (f *far) deadline(at time.Time, read, write bool) error {
	d := Deadline{Number: f.Number, Read: read, Write: write}
	if !at.IsZero() {
		if d.Pause = time.Until(at); d.Pause == 0 {
			d.Pause = -1
		}
	}
	return f.guest.call("SetDeadline", d, &struct{}{})
}

// listener is far that accepts.
type listener struct{ *far }

func (l listener) Addr() net.Addr { return l.LocalAddr() }

func (l listener) Accept() (net.Conn, error) {
	var out Opened
	if err := l.guest.call("Accept", l.Number, &out); err != nil {
		return nil, fmt.Errorf("accept: %w", err)
	}
	return &far{guest: l.guest, network: l.network, Opened: out}, nil
}
