package egress_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/cay-run/cay"
)

// left lists what bears a name on the host.
func left(t *testing.T, name string) []string {
	t.Helper()
	out, _ := filepath.Glob("/run/netns/" + name + "-*")
	links, err := netlink.LinkList()
	for err != nil && strings.Contains(err.Error(), "interrupted") {
		links, err = netlink.LinkList()
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		if strings.HasPrefix(l.Attrs().Name, name+"-") {
			out = append(out, "link "+l.Attrs().Name)
		}
	}
	return out
}

// sockets counts this process's sockets.
func sockets(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, e := range entries {
		if target, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && strings.HasPrefix(target, "socket:") {
			n++
		}
	}
	return n
}

// TestNothingIsLeft gives slots out and takes them back under load, each with
// policies and connections. CAY_TEST_LIVES says how many (40).
func TestNothingIsLeft(t *testing.T) {
	w := newWorld(t)
	lives := 40
	if s := os.Getenv("CAY_TEST_LIVES"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil {
			t.Fatal(err)
		}
		lives = n
	}
	w.policy(byName(w))
	if _, err := overTLS(w, w.a, 443, "a.example", "a.example"); err != nil {
		t.Fatal(err)
	}
	before := sockets(t)
	var wg sync.WaitGroup
	turns := make(chan struct{}, 8)
	for i := range lives {
		turns <- struct{}{}
		wg.Go(func() {
			defer func() { <-turns }()
			if err := oneLife(w, i); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for end := time.Now().Add(patience); sockets(t) > before; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d sockets before, %d after %d lives", before, sockets(t), lives)
		}
	}
	name := filepath.Base(w.slot.Namespace)
	name = name[:strings.LastIndexByte(name, '-')]
	w.proxy.Drop(w.slot.Addr)
	if err := w.net.Teardown(context.Background()); err != nil {
		t.Error(err)
	}
	if got := left(t, name); len(got) > 0 {
		t.Errorf("left after %d lives: %v", lives, got)
	}
}

// oneLife is what a sandbox does with the network.
func oneLife(w *world, i int) error {
	slot, err := w.net.Acquire(w.t.Context())
	if err != nil {
		return err
	}
	spec := cay.InstanceSpec{Sandbox: cay.SandboxID(fmt.Sprint("s", i)), Team: "team", Network: byName(w)}
	w.proxy.Set(slot.Addr, spec)
	if err := w.net.Apply(w.t.Context(), slot, spec.Network); err != nil {
		return err
	}
	guest := &world{t: w.t, slot: slot, guest: namespace(slot.Namespace), guestCA: w.guestCA}
	defer func() {
		w.proxy.Drop(slot.Addr)
		if err := w.net.Release(w.t.Context(), slot); err != nil {
			w.t.Error(err)
		}
	}()
	c := guest.client(w.a, 443, "a.example")
	defer c.transport.CloseIdleConnections()
	if got, err := c.get("a.example", "/"); err != nil || got.status != 200 {
		return fmt.Errorf("life %d: %+v, %v", i, got, err)
	}
	plain := guest.client(w.b, 80, "")
	defer plain.transport.CloseIdleConnections()
	if got, err := plain.get("b.example", "/"); err != nil || got.status != 403 {
		return fmt.Errorf("life %d: %+v, %v", i, got, err)
	}
	open, err := guest.tcp(w.a, 443) // left to the end to cut
	if err != nil {
		return err
	}
	defer open.Close()
	return nil
}
