package enginetest

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/cay-run/cay/internal/machine/engine"
)

// patience bounds every wait. The machine may be busy with other things, so
// it is long; nothing waits for it to pass.
const patience = 60 * time.Second

// rootImage builds the suite's root image: the guest, and what a program
// expects around it.
func rootImage(t *testing.T) string {
	t.Helper()
	for _, tool := range []string{"mkfs.erofs", "go"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Fatalf("the suite needs %s (Debian: erofs-utils, golang)", tool)
		}
	}
	dir := t.TempDir()
	tree := filepath.Join(dir, "tree")
	for _, d := range []string{"proc", "sys", "dev", "tmp", "etc", "run", "root", "srv", ".cay"} {
		must(t, os.MkdirAll(filepath.Join(tree, d), 0o755))
	}
	must(t, os.WriteFile(filepath.Join(tree, "etc/hosts"), []byte("127.0.0.1 localhost "+engine.Hostname+"\n"), 0o644))
	must(t, os.WriteFile(filepath.Join(tree, "etc/passwd"), []byte("root:x:0:0::/root:/guest\nuser:x:1000:1000::/tmp:/guest\n"), 0o644))
	must(t, os.WriteFile(filepath.Join(tree, "etc/old"), []byte("from the image"), 0o644))
	must(t, os.WriteFile(filepath.Join(tree, "srv/inside"), nil, 0o644))
	must(t, os.WriteFile(filepath.Join(tree, "tmp/.keep"), nil, 0o644)) // an empty /tmp would be memory
	must(t, os.WriteFile(filepath.Join(tree, "tmp/theirs"), nil, 0o644))
	must(t, os.Mkdir(filepath.Join(tree, "tmp/theirs-dir"), 0o755))
	must(t, os.Chmod(filepath.Join(tree, "tmp"), 0o777|os.ModeSticky))
	for name, build := range map[string][]string{
		"cay-agent": {"build", "github.com/cay-run/cay/cmd/cay-agent"},
		"guest":     {"build", "github.com/cay-run/cay/internal/machine/engine/enginetest/guest"},
		"reap.test": {"test", "-c", "github.com/cay-run/cay/internal/inside/agent/reap"},
	} {
		last := len(build) - 1
		// With the flags of scripts/build, whose packages are compiled.
		args := append(build[:last:last], "-trimpath", "-gcflags=all=-dwarf=false", "-ldflags", "-s -w", "-o", filepath.Join(tree, name), build[last])
		cmd := exec.Command("go", args...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		output(t, cmd)
	}
	program, err := os.ReadFile(filepath.Join(tree, "guest"))
	must(t, err)
	suid := filepath.Join(tree, "guest-suid")
	must(t, os.WriteFile(suid, program, 0o755))
	must(t, os.Chmod(suid, 0o755|os.ModeSetuid))
	image := filepath.Join(dir, "root.erofs")
	output(t, exec.Command("mkfs.erofs", "--quiet", "-E", "noinline_data", image, tree))
	return image
}

func output(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, out)
	}
}

// slot is a network namespace with one address, as vnet would give.
type slot struct {
	net   engine.Net
	guest netip.Addr
	host  netip.Addr
	name  string
}

// newSlot makes the n-th slot of this test and removes it at its end.
func newSlot(t *testing.T, n int) *slot {
	t.Helper()
	// Suites may run side by side: names and addresses are the process's own,
	// out of the network that is set aside for tests of networks.
	block := 198<<24 | 18<<16 | uint32(2*os.Getpid()+n)%(1<<15)*4
	addr := func(i uint32) netip.Addr {
		var b [4]byte
		binary.BigEndian.PutUint32(b[:], block+i)
		return netip.AddrFrom4(b)
	}
	s := &slot{name: fmt.Sprintf("cet%d-%d", os.Getpid(), n), host: addr(1), guest: addr(2)}
	s.net.Namespace = filepath.Join("/run/netns", s.name)
	s.remove() // what an earlier, killed run left
	t.Cleanup(s.remove)

	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	home, err := netns.Get()
	must(t, err)
	defer home.Close()
	inside, err := netns.NewNamed(s.name)
	must(t, err)
	defer inside.Close()
	must(t, netns.Set(home))

	peer := s.name + "p"
	must(t, netlink.LinkAdd(&netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: s.name}, PeerName: peer, PeerNamespace: netlink.NsFd(int(inside)),
	}))
	outside, err := netlink.LinkByName(s.name)
	must(t, err)
	must(t, netlink.AddrAdd(outside, address(t, s.host)))
	must(t, netlink.LinkSetUp(outside))
	s.address(t)
	return s
}

// address gives the slot its address and route, again after each instance:
// an engine may take them away.
func (s *slot) address(t *testing.T) {
	t.Helper()
	inside, err := netns.GetFromPath(s.net.Namespace)
	must(t, err)
	defer inside.Close()
	handle, err := netlink.NewHandleAt(inside)
	must(t, err)
	defer handle.Close()
	lo, err := handle.LinkByName("lo")
	must(t, err)
	must(t, handle.LinkSetUp(lo))
	link, err := handle.LinkByName(s.name + "p")
	must(t, err)
	must(t, handle.AddrReplace(link, address(t, s.guest)))
	must(t, handle.LinkSetUp(link))
	must(t, handle.RouteReplace(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: s.host.AsSlice()}))
}

func (s *slot) remove() {
	if link, err := netlink.LinkByName(s.name); err == nil {
		_ = netlink.LinkDel(link)
	}
	_ = unix.Unmount(s.net.Namespace, unix.MNT_DETACH)
	_ = os.Remove(s.net.Namespace)
}

func address(t *testing.T, a netip.Addr) *netlink.Addr {
	t.Helper()
	addr, err := netlink.ParseAddr(a.String() + "/30")
	must(t, err)
	return addr
}

// ask calls the guest and returns its answer. A connection that fails is tried
// again until patience ends.
func (s *slot) ask(t *testing.T, path string, args ...string) (string, int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var last error
	for {
		text, status, err := s.try(ctx, path, args...)
		if err == nil {
			return text, status
		}
		// Only what was never sent may be sent again: the guest counts.
		var dial *net.OpError
		again := path == "/health" || errors.As(err, &dial) && dial.Op == "dial"
		if ctx.Err() != nil || !again {
			t.Fatalf("the guest at %s does not answer %s: %v", s.guest, path, errors.Join(err, last))
		}
		last = err
		time.Sleep(10 * time.Millisecond)
	}
}

// try calls the guest once.
func (s *slot) try(ctx context.Context, path string, args ...string) (string, int, error) {
	q := url.Values{}
	for i := 0; i+1 < len(args); i += 2 {
		q.Set(args[i], args[i+1])
	}
	u := "http://" + net.JoinHostPort(s.guest.String(), "8080") + path + "?" + q.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u, nil)
	if err != nil {
		return "", 0, err
	}
	client := &http.Client{Transport: &http.Transport{
		DialContext: (&net.Dialer{Timeout: 2 * time.Second}).DialContext, DisableKeepAlives: true,
	}}
	resp, err := client.Do(req)
	if err != nil {
		return "", 0, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	return string(text), resp.StatusCode, err
}

// expect asks and wants 200 with this text.
func (s *slot) expect(t *testing.T, want, path string, args ...string) {
	t.Helper()
	if got, status := s.ask(t, path, args...); status != http.StatusOK || got != want {
		t.Fatalf("guest answers %s %q with %d %.200q, want %q", path, args, status, got, want)
	}
}

// refused asks and wants an error with this text in it.
func (s *slot) refused(t *testing.T, want, path string, args ...string) {
	t.Helper()
	if got, status := s.ask(t, path, args...); status != http.StatusConflict || !strings.Contains(got, want) {
		t.Fatalf("guest answers %s %q with %d %.200q, want an error with %q", path, args, status, got, want)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
