// Package disktest makes small disks for tests of what happens when one is
// full.
package disktest

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Ext4 makes an ext4 of so many bytes in a file, without a part reserved for
// root, mounts it, and returns where. It skips the test where that cannot be.
func Ext4(t testing.TB, bytes int64) string {
	t.Helper()
	return Ext4On(t, t.TempDir(), bytes)
}

// Ext4On is Ext4 with its file, which takes room as it is used, in a directory. On a
// disk with less room it promises more than there is.
func Ext4On(t testing.TB, dir string, bytes int64) string {
	t.Helper()
	image, at := filepath.Join(dir, "image"), filepath.Join(dir, "disk")
	if err := os.Mkdir(at, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(image, bytes); err != nil {
		t.Fatal(err)
	}
	for _, command := range [][]string{{"mkfs.ext4", "-q", "-m", "0", "-O", "^has_journal", image}, {"mount", "-o", "loop", image, at}} {
		if out, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
			t.Skipf("NOT TESTED HERE: %s: %v: %s", strings.Join(command, " "), err, out)
		}
	}
	t.Cleanup(func() {
		// A sandbox or a device that has a file of it open may end a moment later.
		err := syscall.Unmount(at, 0)
		for begun := time.Now(); errors.Is(err, syscall.EBUSY) && time.Since(begun) < 10*time.Second; err = syscall.Unmount(at, 0) {
			time.Sleep(10 * time.Millisecond)
		}
		if errors.Is(err, syscall.EBUSY) {
			err = syscall.Unmount(at, syscall.MNT_DETACH)
		}
		if err != nil {
			t.Errorf("unmount %s: %v", at, err)
		}
	})
	return at
}

// Fill takes every byte of a disk that is left and returns what gives them
// back.
func Fill(t testing.TB, dir string) (empty func()) {
	t.Helper()
	path := filepath.Join(dir, "filling")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, size := range []int{1 << 20, 4096, 1} {
		block := make([]byte, size)
		for {
			if _, err = f.Write(block); err != nil {
				break
			}
		}
		if !errors.Is(err, syscall.ENOSPC) {
			t.Fatal(err)
		}
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	return func() { os.Remove(path) }
}

// FillTo takes what a disk has but for so many bytes, and returns what gives
// that back.
func FillTo(t testing.TB, dir string, free int64) (empty func()) {
	t.Helper()
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "filling")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := syscall.Fallocate(int(f.Fd()), 0, 0, int64(st.Bavail)*st.Bsize-free); err != nil {
		t.Fatal(err)
	}
	return func() { os.Remove(path) }
}
