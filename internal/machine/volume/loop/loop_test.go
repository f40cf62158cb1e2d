package loop

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/disk"
	"github.com/cay-run/cay/internal/machine/loopdev"
	"github.com/cay-run/cay/internal/machine/volume"
	"github.com/cay-run/cay/internal/machine/volume/volumetest"
)

// TestMain runs the tests where no other process sees their mounts.
func TestMain(m *testing.M) {
	const inside = "CAY_TEST_MOUNTS"
	if os.Getuid() != 0 || os.Getenv(inside) != "" {
		os.Exit(m.Run())
	}
	cmd := exec.Command(os.Args[0], os.Args[1:]...)
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	runtime.LockOSThread() // the child dies with the thread that began it
	err := cmd.Run()
	var failed *exec.ExitError
	if err != nil && !errors.As(err, &failed) {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(cmd.ProcessState.ExitCode())
}

// xfsTest is the size from which volumes of the tests are XFS.
const xfsTest = 320

// able skips a test where no file system can be mounted.
func able(t testing.TB) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("NOT TESTED HERE: mounting needs root")
	}
	for _, k := range kinds {
		if _, err := exec.LookPath(k.args[0]); err != nil {
			t.Skipf("NOT TESTED HERE: there is no %s (Debian's package is %s)", k.args[0], k.needs)
		}
	}
	if _, err := os.Stat("/dev/loop-control"); err != nil {
		t.Skipf("NOT TESTED HERE: there are no loop devices: %v", err)
	}
}

func opened(t testing.TB, dir string) *Storage {
	t.Helper()
	s, err := Open(t.Context(), dir, disk.Reserve{}, slog.New(slog.DiscardHandler))
	must(t, err)
	s.xfsFrom = xfsTest
	t.Cleanup(func() {
		if err := s.Teardown(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestStorage tries both file systems.
func TestStorage(t *testing.T) {
	for name, size := range map[string]int{"ext4": 24, "xfs": xfsTest} {
		t.Run(name, func(t *testing.T) {
			able(t)
			volumetest.Run(t, volumetest.Options{
				Open:   func(t *testing.T, dir string) volume.Storage { return opened(t, dir) },
				SizeMB: size, Bounded: true, GrowsIdle: name == "ext4" && !mayGrow(),
			})
		})
	}
}

// mayGrow reports whether this process may grow an ext4 that is mounted.
func mayGrow() bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var has [2]unix.CapUserData
	return unix.Capget(&header, &has[0]) == nil && has[0].Effective&(1<<unix.CAP_SYS_RESOURCE) != 0
}

// one makes storage with a volume.
func one(t testing.TB, sizeMB int) (*Storage, cay.VolumeID) {
	t.Helper()
	able(t)
	s := opened(t, t.TempDir())
	id := cay.NewVolumeID()
	must(t, s.Create(t.Context(), id, sizeMB))
	return s, id
}

func attached(t testing.TB, s *Storage, id cay.VolumeID) string {
	t.Helper()
	dir, err := s.Attach(t.Context(), id)
	must(t, err)
	return dir
}

// mounts counts the mounts below a directory.
func mounts(t *testing.T, dir string) int {
	t.Helper()
	text, err := os.ReadFile("/proc/self/mountinfo")
	must(t, err)
	return strings.Count(string(text), " "+dir+"/")
}

// A file beyond those that a volume has room for is refused as one beyond its
// bytes is; what is there stays, and a removal makes room again.
func TestFilesAreBounded(t *testing.T) {
	s, id := one(t, 24)
	dir := attached(t, s, id)
	name := func(i int) string { return filepath.Join(dir, strconv.Itoa(i)) }
	made, err := 0, error(nil)
	for ; err == nil; made++ {
		err = os.WriteFile(name(made), nil, 0o644)
	}
	made--
	if !errors.Is(err, unix.ENOSPC) || made < 1000 || made > 24<<20/4096 {
		t.Fatalf("after %d files: %v", made, err)
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) < made {
		t.Errorf("%d of %d files: %v", len(files), made, err)
	}
	must(t, os.Remove(name(0)))
	must(t, os.WriteFile(name(0), nil, 0o644))
}

func TestItIsMountedWithoutDevicesAndRights(t *testing.T) {
	for _, size := range []int{24, xfsTest} {
		s, id := one(t, size)
		dir := attached(t, s, id)
		var st unix.Statfs_t
		must(t, unix.Statfs(dir, &st))
		if want := int64(unix.ST_NOSUID | unix.ST_NODEV); st.Flags&want != want {
			t.Errorf("its flags are %x", st.Flags)
		}
		must(t, unix.Mknod(filepath.Join(dir, "null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
		if _, err := os.Open(filepath.Join(dir, "null")); !errors.Is(err, unix.EACCES) {
			t.Errorf("a device opens: %v", err)
		}
	}
}

// After a killed server, the next has no mount too many, no device too
// many, and every file.
func TestAfterAKill(t *testing.T) {
	s, id := one(t, 24)
	other := cay.NewVolumeID()
	must(t, s.Create(t.Context(), other, 24))
	dir := attached(t, s, id)
	// A sandbox has it bound where it outlives the server.
	elsewhere := t.TempDir()
	must(t, unix.Mount(dir, elsewhere, "", unix.MS_BIND, ""))
	t.Cleanup(func() { _ = detach(elsewhere) })
	must(t, os.WriteFile(filepath.Join(elsewhere, "file"), []byte("of a sandbox"), 0o644))
	attached(t, s, other)
	// Killed in the middle of a Clone, of a Create and of a Delete.
	d, err := os.Open(dir)
	must(t, err)
	must(t, freeze(d))
	must(t, d.Close())
	must(t, os.MkdirAll(s.path(cay.NewVolumeID())+newSuffix, 0o700))
	half := s.path(cay.NewVolumeID()) + newSuffix
	must(t, os.MkdirAll(filepath.Join(half, rootName), 0o700))
	must(t, unix.Mount(s.path(other, rootName), filepath.Join(half, rootName), "", unix.MS_BIND, ""))
	must(t, os.MkdirAll(s.path(cay.NewVolumeID())+oldSuffix, 0o700))

	next := opened(t, s.dir)
	if n := mounts(t, s.dir); n != 0 {
		t.Errorf("%d mounts are left", n)
	}
	got, err := next.List(t.Context())
	must(t, err)
	left, err := os.ReadDir(s.dir)
	must(t, err)
	if len(got) != 2 || len(left) != 2 {
		t.Errorf("there are %v: %v", got, left)
	}
	must(t, os.WriteFile(filepath.Join(elsewhere, "more"), []byte("not held any more"), 0o644))
	again := attached(t, next, id)
	if text, err := os.ReadFile(filepath.Join(again, "more")); err != nil || string(text) != "not held any more" {
		t.Errorf("beside a sandbox's, it is another file system: %q, %v", text, err)
	}
	if n := devices(t, next, id); n != 1 {
		t.Errorf("%d devices are one file", n)
	}
}

// devices counts the devices that the file of a volume is.
func devices(t *testing.T, s *Storage, id cay.VolumeID) int {
	t.Helper()
	file, _, err := s.file(id)
	must(t, err)
	n := 0
	found, err := filepath.Glob(filepath.Join(loopdev.SysBlock, "loop*", "loop", "backing_file"))
	must(t, err)
	for _, path := range found {
		if text, err := os.ReadFile(path); err == nil && strings.TrimSpace(string(text)) == file {
			n++
		}
	}
	return n
}

// A crash between the two steps of a Resize leaves a file system that is smaller
// than its file.
func TestResizeBrokenOff(t *testing.T) {
	for _, size := range []int{24, xfsTest} {
		s, id := one(t, size)
		file, _, err := s.file(id)
		must(t, err)
		before, err := s.Usage(t.Context(), id)
		must(t, err)
		must(t, s.Close())
		must(t, os.Truncate(file, before.Size*2))
		after, err := s.Usage(t.Context(), id)
		must(t, err)
		if more := (after.Size - after.Used) - (before.Size - before.Used); more < before.Size*8/10 {
			t.Errorf("its room grew by %d bytes of %d", more, before.Size)
		}
	}
}

func TestIdleVolumesAreUnmounted(t *testing.T) {
	s, id := one(t, leastMB)
	attached(t, s, id)
	s.Detach(id)
	if n := mounts(t, s.dir); n != 1 {
		t.Errorf("just used, it is mounted %d times", n)
	}
	busy := cay.NewVolumeID()
	must(t, s.Create(t.Context(), busy, leastMB))
	attached(t, s, busy)
	for range mostIdle {
		other := cay.NewVolumeID()
		must(t, s.Clone(t.Context(), busy, other))
		attached(t, s, other)
		s.Detach(other)
	}
	if n := mounts(t, s.dir); n != mostIdle+1 {
		t.Errorf("%d are mounted, want %d", n, mostIdle+1)
	}
	if n := mounts(t, s.path(id)); n != 0 {
		t.Error("the one that is idle longest is mounted yet")
	}
	must(t, s.Close())
	if n := mounts(t, s.dir); n != 1 {
		t.Errorf("after the end %d are mounted", n)
	}
}

// The disk has back the room of removed files.
func TestRoomIsGivenBack(t *testing.T) {
	for _, size := range []int{64, xfsTest} {
		s, id := one(t, size)
		dir := attached(t, s, id)
		path := filepath.Join(dir, "much")
		must(t, os.WriteFile(path, bytes.Repeat([]byte{1}, 32<<20), 0o644))
		stored := func() int64 {
			unix.Sync()
			u, err := s.Usage(t.Context(), id)
			must(t, err)
			return u.Stored
		}
		full := stored()
		must(t, os.Remove(path))
		must(t, s.with(t.Context(), id, func(root string) error { // a freeze waits for what a commit frees
			return s.all[id].still(t.Context(), root, s.dir, func() error { return nil })
		}))
		must(t, s.unmountNow(id))
		if now := stored(); now > full-24<<20 {
			t.Errorf("%d bytes are stored, of %d", now, full)
		}
	}
}

// unmountNow ends the use of a volume, and unmounts it.
func (s *Storage) unmountNow(id cay.VolumeID) error {
	s.Detach(id)
	return s.settle(id)
}

func TestMakingItNeedsTools(t *testing.T) {
	able(t)
	s := opened(t, t.TempDir())
	t.Setenv("PATH", t.TempDir())
	err := s.Create(context.Background(), cay.NewVolumeID(), 24)
	var ours *cay.Error
	if !errors.As(err, &ours) || ours.Kind != cay.Unsupported || !strings.Contains(ours.Hint, "e2fsprogs") {
		t.Errorf("without tools: %v", err)
	}
	if left, err := os.ReadDir(s.dir); err != nil || len(left) > 0 {
		t.Errorf("there are %v: %v", left, err)
	}
}

// BenchmarkStorage says what a volume of 1 GB costs those that wait for it.
func BenchmarkStorage(b *testing.B) {
	s, id := one(b, 1024)
	dir := attached(b, s, id)
	must(b, os.WriteFile(filepath.Join(dir, "data"), bytes.Repeat([]byte{7}, 200<<20), 0o644))
	s.Detach(id)
	must(b, s.settle(id))
	b.Run("create", func(b *testing.B) {
		for b.Loop() {
			made := cay.NewVolumeID()
			must(b, s.Create(b.Context(), made, 1024))
			must(b, s.Delete(b.Context(), made))
		}
	})
	b.Run("attach first", func(b *testing.B) {
		for b.Loop() {
			attached(b, s, id)
			must(b, s.unmountNow(id))
		}
	})
	b.Run("attach again", func(b *testing.B) {
		for b.Loop() {
			attached(b, s, id)
			s.Detach(id)
		}
	})
	b.Run("clone 200 MB", func(b *testing.B) {
		for b.Loop() {
			made := cay.NewVolumeID()
			must(b, s.Clone(b.Context(), id, made))
			must(b, s.Delete(b.Context(), made))
		}
	})
}
