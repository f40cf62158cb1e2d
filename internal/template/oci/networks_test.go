package oci

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/cay-run/cay"
)

// inNamespace runs a test again in a process that has a network of its own,
// with a public address.
func inNamespace(t *testing.T) bool {
	t.Helper()
	needRoot(t)
	const child = "CAY_TEST_NAMESPACE"
	if os.Getenv(child) != "" {
		lo, err := netlink.LinkByName("lo")
		if err == nil {
			err = netlink.LinkSetUp(lo)
		}
		if err == nil {
			var addr *netlink.Addr
			addr, err = netlink.ParseAddr("198.51.100.7/24")
			if err == nil {
				err = netlink.AddrAdd(lo, addr)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
		return true
	}
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), child+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	return false
}

// A pull reaches neither the host's own public address, nor its neighbours, nor
// a place that a registry redirects to there.
func TestPullsStayOutside(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	l, err := net.Listen("tcp", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	var reached atomic.Int32
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			reached.Add(1)
			c.Close()
		}
	}()
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	hostile := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		http.Redirect(rw, r, "http://198.51.100.7:"+port+r.URL.Path, http.StatusTemporaryRedirect)
	}))
	defer hostile.Close()
	host := strings.TrimPrefix(hostile.URL, "http://")
	s, err := Open(t.TempDir(), Options{PlainHTTP: []string{host}})
	if err != nil {
		t.Fatal(err)
	}
	for _, registry := range []string{"198.51.100.7:" + port, "198.51.100.8:" + port, "127.0.0.1:" + port, "localhost:" + port, host} {
		_, err := s.Pull(context.Background(), registry+"/app:1", Credentials{}, nil)
		if cay.KindOf(err) != cay.Denied || !strings.Contains(err.Error(), "private network") {
			t.Errorf("%s: %v", registry, err)
		}
	}
	if n := reached.Load(); n != 0 {
		t.Errorf("%d connections reached the host", n)
	}
}
