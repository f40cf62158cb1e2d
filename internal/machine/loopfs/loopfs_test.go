package loopfs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/cay-run/cay"
)

const size = 340 << 20

// TestMain runs the tests where no other process sees their mounts: a sandbox that
// another test starts meanwhile would keep them, and a file system that went
// down with them.
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

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// ext4 makes a data directory on an ext4 of its own, or skips the test.
func ext4(t *testing.T) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("mounting needs root")
	}
	for name, pkg := range map[string]string{"mkfs.ext4": "e2fsprogs", "mkfs.xfs": "xfsprogs"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Skipf("there is no %s (Debian's package is %s)", name, pkg)
		}
	}
	if _, err := os.Stat("/dev/loop-control"); err != nil {
		t.Skipf("there are no loop devices: %v", err)
	}
	disk, outer := filepath.Join(t.TempDir(), "disk"), t.TempDir()
	for _, args := range [][]string{
		{"truncate", "-s", "900M", disk},
		{"mkfs.ext4", "-q", "-F", disk},
		{"mount", "-o", "loop", disk, outer},
	} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Skipf("%v: %v: %s", args, err, out)
		}
	}
	t.Cleanup(func() {
		if err := unmount(context.Background(), outer); err != nil {
			t.Error(err)
		}
	})
	dir := filepath.Join(outer, "cay")
	must(t, os.Mkdir(dir, 0o711))
	t.Cleanup(func() {
		if err := Unmount(context.Background(), dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// stored makes a data directory with storage, mounted.
func stored(t *testing.T) string {
	t.Helper()
	dir := ext4(t)
	must(t, Create(t.Context(), dir, size))
	must(t, Mount(t.Context(), dir))
	return dir
}

// listing says what is in a directory, storage's own names left out.
func listing(t *testing.T, dir string) []string {
	t.Helper()
	var out []string
	must(t, filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err != nil || slices.Contains(ours, e.Name()) {
			return err
		}
		name, _ := filepath.Rel(dir, path)
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		line := name + " " + e.Type().String()
		if e.Type().IsRegular() {
			f, err := os.Open(path)
			if err != nil {
				return err
			}
			defer f.Close()
			text := make([]byte, 9)
			_, _ = f.Read(text)
			line += fmt.Sprintf(" %s %d %d", bytes.TrimRight(text, "\x00"), st.Size, st.Nlink)
		}
		out = append(out, fmt.Sprintf("%s %o %d:%d", line, st.Mode&0o7777, st.Uid, st.Gid))
		return nil
	}))
	return out
}

// fillUp leaves nothing of a disk.
func fillUp(t *testing.T, dir string) {
	t.Helper()
	f, err := os.Create(filepath.Join(dir, "fill"))
	must(t, err)
	defer f.Close()
	for step := int64(64 << 20); step >= 4096; {
		end, err := f.Seek(0, io.SeekEnd)
		must(t, err)
		if err := unix.Fallocate(int(f.Fd()), 0, end, step); err == nil {
			continue
		} else if !errors.Is(err, unix.ENOSPC) {
			t.Fatal(err)
		}
		step /= 2
	}
	must(t, f.Sync())
}

// noise writes bytes that nothing can leave out, and has the disk take them.
func noise(path string, size int64) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	_, err = io.CopyN(f, rand.NewChaCha8([32]byte{1}), size)
	return errors.Join(err, f.Sync(), f.Close())
}

func TestDataMovesIntoStorage(t *testing.T) {
	dir := ext4(t)
	must(t, os.MkdirAll(filepath.Join(dir, "trees", "one"), 0o755))
	file := filepath.Join(dir, "trees", "one", "file")
	must(t, os.WriteFile(file, []byte("content"), 0o640))
	must(t, os.Chown(file, 5, 5))
	must(t, os.Link(file, filepath.Join(dir, "trees", "second")))
	must(t, os.Symlink("../nowhere", filepath.Join(dir, "link")))
	must(t, os.WriteFile(filepath.Join(dir, "-n"), nil, 0o600)) // cp takes it for no option
	hole := filepath.Join(dir, "hole")
	must(t, os.WriteFile(hole, []byte("start"), 0o600))
	must(t, os.Truncate(hole, 1<<30)) // more than the storage has
	before := listing(t, dir)

	if err := Shares(dir); !Cannot(err) {
		t.Fatalf("ext4 shares blocks: %v", err)
	}
	must(t, Create(t.Context(), dir, size))
	if left, err := data(dir); err != nil || len(left) > 0 || !Waiting(dir) {
		t.Fatalf("after the move, %v lie beside the storage: %v", left, err)
	}
	must(t, Mount(t.Context(), dir))
	must(t, Mount(t.Context(), dir))
	if after := listing(t, dir); !slices.Equal(before, after) {
		t.Errorf("there was\n%s\nthere is\n%s", strings.Join(before, "\n"), strings.Join(after, "\n"))
	}
	if Waiting(dir) {
		t.Error("mounted storage waits to be")
	}
	must(t, Shares(dir))
	s, err := Look(dir)
	if err != nil || !s.Exists || !s.Mounted || s.Bytes < size*8/10 || s.Free > s.Bytes {
		t.Errorf("it is %+v: %v", s, err)
	}
	if cay.KindOf(Create(t.Context(), dir, size)) != cay.Conflict {
		t.Error("there is a second one")
	}
	must(t, Unmount(t.Context(), dir))
	must(t, Unmount(t.Context(), dir))
	if s, err := Look(dir); err != nil || !s.Exists || s.Mounted || s.Bytes != size {
		t.Errorf("not mounted it is %+v: %v", s, err)
	}
}

// The room that the disk around gave away is the storage's for good.
func TestAFullDiskAroundBreaksNothing(t *testing.T) {
	dir := stored(t)
	inside := filepath.Join(dir, "inside")
	must(t, noise(inside, 30<<20))
	must(t, os.Remove(inside))
	_ = exec.Command("fstrim", dir).Run() // must give nothing back
	fillUp(t, filepath.Dir(dir))
	must(t, noise(inside, 60<<20))
	fillUp(t, dir)
	if err := noise(filepath.Join(dir, "more"), 1<<20); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("a full storage says %v", err)
	}
	must(t, Unmount(t.Context(), dir))
	must(t, Mount(t.Context(), dir))
	got, err := os.ReadFile(inside)
	must(t, err)
	want := make([]byte, 60<<20)
	rand.NewChaCha8([32]byte{1}).Read(want)
	if !bytes.Equal(got, want) {
		t.Error("what was written is not what is read")
	}
}

// shutDown has the file system of a directory do what it does when the disk
// below loses a write of its log, as it would without power.
func shutDown(t *testing.T, dir string) {
	t.Helper()
	d, err := os.Open(dir)
	must(t, err)
	defer d.Close()
	const goingDown, withoutLog = 0x8004587d, 2 // XFS_IOC_GOINGDOWN
	how := uint32(withoutLog)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, d.Fd(), goingDown, uintptr(unsafe.Pointer(&how))); errno != 0 {
		t.Fatal(errno)
	}
}

// A file system that has shut itself down says so to every caller, and is as it
// was once it is mounted anew. So does one that is damaged.
func TestItShutsItselfDown(t *testing.T) {
	dir := stored(t)
	must(t, noise(filepath.Join(dir, "synced"), 1<<20))
	must(t, Down(dir))
	must(t, Down(filepath.Join(dir, "none")))
	// A process with mounts of its own, as a sandbox of another server has them.
	keeper := exec.Command("sleep", "600")
	keeper.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	must(t, keeper.Start())
	t.Cleanup(func() { _ = keeper.Process.Kill() })
	shutDown(t, dir)
	told := func(err error) {
		t.Helper()
		var ours *cay.Error
		if !errors.As(err, &ours) || ours.Kind != cay.Internal || ours.Code != cay.CodeStorageDown {
			t.Fatalf("it says %v", err)
		}
		for _, say := range []string{"cay down", "cay up", "xfs_repair " + filepath.Join(dir, fileName)} {
			if !strings.Contains(ours.Hint, say) {
				t.Errorf("the hint does not say %q: %s", say, ours.Hint)
			}
		}
	}
	told(Down(dir))
	told(Mount(t.Context(), dir))
	if s, err := Look(dir); err != nil || !s.Mounted || !s.Down {
		t.Errorf("it is %+v: %v", s, err)
	}
	must(t, Unmount(t.Context(), dir))
	ended, end := context.WithCancel(t.Context())
	end() // the caller does not wait for the process that holds it
	if err := Mount(ended, dir); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("process %d (sleep)", keeper.Process.Pid)) {
		t.Errorf("kept by another, it says %v", err)
	}
	must(t, keeper.Process.Kill())
	_ = keeper.Wait()
	must(t, Mount(t.Context(), dir))
	must(t, Down(dir))
	if s, err := Look(dir); err != nil || s.Down {
		t.Errorf("mounted anew it is %+v: %v", s, err)
	}
	if info, err := os.Stat(filepath.Join(dir, "synced")); err != nil || info.Size() != 1<<20 {
		t.Errorf("what was synced is %v: %v", info, err)
	}

	// A file that is damaged is named.
	must(t, Unmount(t.Context(), dir))
	f, err := os.OpenFile(filepath.Join(dir, fileName), os.O_WRONLY, 0)
	must(t, err)
	_, err = f.WriteAt(make([]byte, 64), 128) // of the superblock, behind its magic number
	must(t, errors.Join(err, f.Close()))
	var ours *cay.Error
	if err := Mount(t.Context(), dir); !errors.As(err, &ours) || ours.Code != cay.CodeStorageDown || !strings.Contains(ours.Hint, "xfs_repair") {
		t.Fatalf("it says %v", err)
	}
	if !Waiting(dir) {
		t.Error("it is gone")
	}
}

// A machine that loses its power keeps what was synced.
func TestPowerIsLost(t *testing.T) {
	dir := stored(t)
	must(t, noise(filepath.Join(dir, "synced"), 1<<20))
	must(t, os.WriteFile(filepath.Join(dir, "passing"), make([]byte, 1<<20), 0o600))
	shutDown(t, dir)
	if _, err := os.ReadFile(filepath.Join(dir, "synced")); err == nil {
		t.Fatal("it has not gone down")
	}
	must(t, Unmount(t.Context(), dir))
	must(t, Mount(t.Context(), dir))
	if info, err := os.Stat(filepath.Join(dir, "synced")); err != nil || info.Size() != 1<<20 {
		t.Errorf("what was synced is %v: %v", info, err)
	}
	if out, err := exec.Command("findmnt", "-n", "-o", "FSTYPE", dir).Output(); err == nil && strings.TrimSpace(string(out)) != "xfs" {
		t.Errorf("mounted once, the directory is %q", out)
	}
}

// Whenever making it is broken off, the data is whole, here or there.
func TestMakingItIsBrokenOff(t *testing.T) {
	dir := ext4(t)
	must(t, os.WriteFile(filepath.Join(dir, "cay.db"), []byte("rows"), 0o600))
	check := func(when string) {
		t.Helper()
		must(t, Mount(t.Context(), dir))
		if got := listing(t, dir); len(got) != 2 || !strings.HasPrefix(got[1], "cay.db ---------- rows 4 1 600") {
			t.Errorf("%s, there is %q", when, got)
		}
		for _, name := range []string{newName, workName, movedName} {
			if _, err := os.Lstat(filepath.Join(dir, name)); err == nil {
				t.Errorf("%s, %s is left", when, name)
			}
		}
	}
	// Killed while it copies: the new one is mounted aside.
	f, err := makeFile(t.Context(), dir, size)
	must(t, err)
	_, _, err = mountAside(f.Name(), dir)
	must(t, err)
	must(t, Mount(t.Context(), dir)) // a server that starts meanwhile leaves it alone
	if _, err := os.Lstat(f.Name()); err != nil {
		t.Fatalf("one that is being made is gone: %v", err)
	}
	must(t, f.Close())
	check("after a kill while it copied")

	ended, end := context.WithCancel(t.Context())
	end()
	if err := Create(ended, dir, size); err == nil {
		t.Error("it was made after its caller had gone")
	}
	check("after it was called off")

	// Killed when it has its name, before the old files are gone.
	must(t, Create(t.Context(), dir, size))
	must(t, os.WriteFile(filepath.Join(dir, "cay.db"), []byte("rows"), 0o600))
	if err := Mount(t.Context(), dir); cay.KindOf(err) != cay.Conflict {
		t.Fatalf("two data directories in one: %v", err)
	}
	must(t, os.WriteFile(filepath.Join(dir, movedName), nil, 0o600))
	check("after a kill when it was moved")
	must(t, Unmount(t.Context(), dir))
	if left, err := data(dir); err != nil || len(left) > 0 {
		t.Errorf("%v lie beside the storage: %v", left, err)
	}
}

func TestManyMountItAtOnce(t *testing.T) {
	dir := stored(t)
	must(t, Unmount(t.Context(), dir))
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			if err := Mount(t.Context(), dir); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	text, err := os.ReadFile("/proc/self/mountinfo")
	must(t, err)
	if n := strings.Count(string(text), " "+dir+" "); n != 1 {
		t.Errorf("it is mounted %d times", n)
	}
	// Another mount of the same file is the same file system.
	must(t, os.WriteFile(filepath.Join(dir, "here"), []byte("x"), 0o600))
	f, err := os.Open(filepath.Join(dir, "here"))
	must(t, err)
	ctx, end := context.WithCancel(t.Context())
	end() // the caller does not wait for the last user
	if err := Unmount(ctx, dir); cay.KindOf(err) != cay.Conflict {
		t.Errorf("storage in use went: %v", err)
	}
	must(t, f.Close())
}

func TestGrow(t *testing.T) {
	dir := stored(t)
	before, err := Look(dir)
	must(t, err)
	if err := Grow(t.Context(), dir, size+64<<20); cay.KindOf(err) != cay.Conflict {
		t.Errorf("it grew in use: %v", err)
	}
	must(t, Unmount(t.Context(), dir))
	if err := Grow(t.Context(), dir, size); cay.KindOf(err) != cay.Invalid {
		t.Errorf("it grew by nothing: %v", err)
	}
	if err := Grow(t.Context(), dir, 4<<30); cay.KindOf(err) != cay.NoSpace {
		t.Errorf("it grew beyond the disk: %v", err)
	}
	must(t, Grow(t.Context(), dir, size+64<<20))
	must(t, Mount(t.Context(), dir))
	if after, err := Look(dir); err != nil || after.Bytes < before.Bytes+50<<20 {
		t.Errorf("from %d to %d bytes: %v", before.Bytes, after.Bytes, err)
	}
}

func TestCreateRefuses(t *testing.T) {
	dir := ext4(t)
	must(t, noise(filepath.Join(dir, "much"), 20<<20))
	for what, tc := range map[string]struct {
		size int64
		kind cay.Kind
	}{
		"too small": {330 << 20, cay.Invalid},
		"too large": {2 << 30, cay.NoSpace},
	} {
		if err := Create(t.Context(), dir, tc.size); cay.KindOf(err) != tc.kind {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := Grow(t.Context(), dir, 1<<30); cay.KindOf(err) != cay.NotFound {
		t.Errorf("nothing grew: %v", err)
	}
	t.Setenv("PATH", t.TempDir())
	var ours *cay.Error
	if err := Create(t.Context(), dir, size); !errors.As(err, &ours) || ours.Kind != cay.Unsupported || !strings.Contains(ours.Hint, "xfsprogs") {
		t.Errorf("without mkfs.xfs: %v", err)
	}
	if got := listing(t, dir); len(got) != 2 || Waiting(dir) {
		t.Errorf("refusing left %q", got)
	}
	var st syscall.Statfs_t
	must(t, syscall.Statfs(dir, &st))
	if taken := int64(st.Blocks-st.Bfree) * st.Bsize; taken > 200<<20 {
		t.Errorf("refusing left %d bytes on the disk", taken)
	}
}
