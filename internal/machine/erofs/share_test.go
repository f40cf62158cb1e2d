package erofs

import (
	"context"
	"crypto/rand"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cay-run/cay/internal/machine/disk"
)

// xfs mounts a file system that can share blocks, or skips the test.
func xfs(t *testing.T) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("mounting needs root")
	}
	mkfs, err := exec.LookPath("mkfs.xfs")
	if err != nil {
		t.Skip("there is no mkfs.xfs (Debian's package is xfsprogs)")
	}
	file, dir := filepath.Join(t.TempDir(), "disk"), t.TempDir()
	for _, args := range [][]string{
		{"truncate", "-s", "400M", file},
		{mkfs, "-q", "-m", "reflink=1", file},
		{"mount", "-o", "loop", file, dir},
	} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Skipf("%s: %v: %s", args[0], err, out)
		}
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// taken is what a file system has given away.
func taken(t *testing.T, dir string) int64 {
	t.Helper()
	must(t, exec.Command("sync", "-f", dir).Run())
	var st unix.Statfs_t
	must(t, unix.Statfs(dir, &st))
	return int64(st.Blocks-st.Bfree) * st.Bsize
}

// On a file system that can, an image takes what it does not have of the one
// that it was made from.
func TestAChildSharesItsBase(t *testing.T) {
	dir := xfs(t)
	content := func(name string, size int64) Node {
		b := make([]byte, size)
		_, _ = rand.Read(b)
		must(t, os.WriteFile(filepath.Join(dir, name), b, 0o600))
		f, err := os.Open(filepath.Join(dir, name))
		must(t, err)
		t.Cleanup(func() { f.Close() })
		return Node{Mode: 0o100644, Mtime: time.Unix(1, 0), Size: size, File: f, Padded: size%blockSize == 0}
	}
	write := func(tree *Tree, name string) string {
		name = filepath.Join(dir, name)
		f, err := os.Create(name)
		must(t, err)
		must(t, tree.Write(context.Background(), f))
		must(t, errors.Join(f.Sync(), f.Close()))
		return name
	}
	base := New()
	for i := range 40 {
		must(t, base.Put("usr/"+string(rune('a'+i)), content("b"+string(rune('a'+i)), 1<<20+int64(i))))
	}
	first := write(base, "base.erofs")
	tree, err := Open(first)
	must(t, err)
	defer tree.Close()
	added := content("package", 2<<20)
	before := taken(t, dir)
	tree.Remove("usr/b")
	must(t, tree.Put("opt/package", added))
	child := write(tree, "child.erofs")
	if cost := taken(t, dir) - before; cost > 1<<20 {
		t.Errorf("the child takes %d bytes of 42 MB, though all of it was on the disk", cost)
	}
	// And that can be told of the two files: the package is the child's own.
	var places [2][]disk.Extent
	for i, name := range []string{first, child} {
		places[i], err = disk.Extents(name)
		must(t, err)
	}
	if own, shared := disk.Shares(places[:]); own[1] < 2<<20 || own[1] > 4<<20 || shared[1] < 36<<20 || shared[0] != shared[1] {
		t.Errorf("of base and child, own are %v and shared %v", own, shared)
	}
}
