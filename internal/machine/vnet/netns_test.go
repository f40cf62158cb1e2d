package vnet

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// TestNamespacesAreAMount: what `ip netns add` does to a directory that is no
// mount would hide the namespaces in it.
func TestNamespacesAreAMount(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("mounts need root")
	}
	dir := t.TempDir()
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	for range 2 { // the second finds it done
		if err := shareNamespaces(dir); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Unmount(dir, 0); err != nil {
		t.Errorf("it is no mount: %v", err)
	}
	if err := unix.Unmount(dir, 0); err != unix.EINVAL {
		t.Errorf("it was mounted more than once: %v", err)
	}
}
