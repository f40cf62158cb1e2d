package loop

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/disk"
	"github.com/cay-run/cay/internal/machine/disk/disktest"
	"github.com/cay-run/cay/internal/machine/volume/tree"
)

// onSmallDisk makes storage on a disk of its own of 512 MB.
func onSmallDisk(t *testing.T) (s *Storage, at string) {
	t.Helper()
	able(t)
	at = disktest.Ext4(t, 512<<20)
	s = opened(t, filepath.Join(at, "volumes"))
	t.Cleanup(func() { // a device goes a moment after its mount
		must(t, s.Teardown())
		files, _ := filepath.Glob(filepath.Join(s.dir, "*", "fs.*"))
		for _, file := range files {
			eventually(t, func() bool { return !isDevice(file) })
		}
	})
	return s, at
}

func eventually(t *testing.T, is func() bool) {
	t.Helper()
	for begun := time.Now(); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Since(begun) > 30*time.Second {
			t.Fatal("it does not come to be")
		}
	}
}

// synced writes a file of a guest and syncs it.
func synced(path string, content []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	return errors.Join(err, f.Sync(), f.Close())
}

// contentOf is what a guest writes into its file of a number.
func contentOf(i int) []byte { return bytes.Repeat(fmt.Appendf(nil, "%08d", i), 8<<10) }

// TestAFullDisk fills the disk under a volume that a guest writes to: what the
// guest was told to be synced is there, then and later, each call ends and names
// the disk, nothing is half made, and with room again all goes on.
func TestAFullDisk(t *testing.T) {
	for name, sizeMB := range map[string]int{"ext4": 300, "xfs": 600} {
		t.Run(name, func(t *testing.T) {
			s, at := onSmallDisk(t)
			id, kept := cay.NewVolumeID(), cay.NewVolumeID()
			must(t, s.Create(t.Context(), id, sizeMB))
			dir := attached(t, s, id)
			told := 0
			write := func() error {
				err := synced(filepath.Join(dir, fmt.Sprint(told)), contentOf(told))
				if err == nil {
					told++
				}
				return err
			}
			for range 20 {
				must(t, write())
			}
			must(t, s.Clone(t.Context(), id, kept))
			empty := disktest.Fill(t, at)
			// Directories, so that metadata also lacks a place.
			var err error
			for i := 0; err == nil && i < 50; i++ {
				err = os.MkdirAll(filepath.Join(dir, fmt.Sprintf("d%d/%s", i, strings.Repeat("x", 200))), 0o755)
			}
			for err = nil; err == nil && told < 1<<12; {
				err = write()
			}
			names := func(what string, err error) {
				t.Helper()
				if cay.KindOf(err) != cay.NoSpace || !strings.Contains(err.Error(), at) {
					t.Errorf("%s: %v, want it to name the full disk %s", what, err, at)
				}
			}
			names(fmt.Sprintf("a write inside (%v)", err), s.Failure(id, err))
			files, err := tree.Open(dir)
			must(t, err)
			defer files.Close()
			_, err = files.Write(t.Context(), "/more", io.LimitReader(zeros{}, 64<<20), -1, false, tree.Meta{})
			names("a write from outside", err)
			other := cay.NewVolumeID()
			names("a volume", s.Create(t.Context(), other, 100))
			names("a clone", s.Clone(t.Context(), id, other))
			names("a clone of one in use by none", s.Clone(t.Context(), kept, other))
			s.Detach(id)
			names("a restore", s.Replace(t.Context(), kept, id))
			if _, err := s.Usage(t.Context(), id); err != nil {
				t.Errorf("its use: %v", err)
			}
			left, err := os.ReadDir(s.dir)
			must(t, err)
			if len(left) != 2 {
				t.Errorf("there are %v", left)
			}
			there := func() {
				t.Helper()
				dir := attached(t, s, id)
				defer s.Detach(id)
				for i := range told {
					got, err := os.ReadFile(filepath.Join(dir, fmt.Sprint(i)))
					if err != nil || !bytes.Equal(got, contentOf(i)) {
						t.Fatalf("file %d of %d, which was synced: %d bytes, %v", i, told, len(got), err)
					}
				}
			}
			empty()
			there()
			dir = attached(t, s, id)
			must(t, write())
			_, err = files.Stat("/0")
			must(t, errors.Join(err, s.Clone(t.Context(), id, other)))
			s.Detach(id)
			must(t, s.settle(id))
			there() // from the disk
			must(t, s.Replace(t.Context(), kept, id))
		})
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// TestACopyDoesNotWaitForRoom: the kernel stops a file system only when the disk
// has taken all of it. A disk that is full by then holds up no caller, and
// with room again the volume goes on.
func TestACopyDoesNotWaitForRoom(t *testing.T) {
	s, at := onSmallDisk(t)
	id := cay.NewVolumeID()
	must(t, s.Create(t.Context(), id, 600))
	dir := attached(t, s, id)
	empty := disktest.Fill(t, at)
	for i := range 2000 { // of metadata that lacks a place
		if os.MkdirAll(filepath.Join(dir, fmt.Sprintf("d%d/%s", i, strings.Repeat("x", 200))), 0o755) != nil {
			break
		}
	}
	v := s.all[id]
	soon, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	roomy := t.TempDir() // of another disk: that this one is full is not seen in time
	if err := v.still(soon, dir, roomy, func() error { return nil }); cay.KindOf(err) != cay.Unavailable {
		t.Errorf("a copy: %v", err)
	}
	again, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := v.still(again, dir, roomy, func() error { return nil }); cay.KindOf(err) != cay.Unavailable {
		t.Errorf("one beside it: %v", err)
	}
	empty()
	must(t, v.still(t.Context(), dir, roomy, func() error { return nil }))
	must(t, synced(filepath.Join(dir, "after"), contentOf(1)))
	must(t, unix.Access(dir, unix.W_OK))
}

// TestAFailedFileSystem: one that takes no writes any more says so, and is
// mounted anew once no caller has it.
func TestAFailedFileSystem(t *testing.T) {
	for name, sizeMB := range map[string]int{"ext4": 24, "xfs": xfsTest} {
		t.Run(name, func(t *testing.T) {
			s, id := one(t, sizeMB)
			dir := attached(t, s, id)
			file := filepath.Join(dir, "file")
			must(t, synced(file, contentOf(1)))
			fail(t, dir)
			err := synced(filepath.Join(dir, "more"), contentOf(2))
			if got := s.Failure(id, err); got == nil || got.Kind != cay.Unavailable {
				t.Errorf("a write, %v: %v", err, got)
			}
			attached(t, s, id) // while another has it
			s.Detach(id)
			if err := synced(filepath.Join(dir, "more"), contentOf(2)); err == nil {
				t.Error("it was mounted anew under the one that has it")
			}
			s.Detach(id)
			attached(t, s, id)
			must(t, synced(filepath.Join(dir, "more"), contentOf(2)))
			if got, err := os.ReadFile(file); err != nil || !bytes.Equal(got, contentOf(1)) {
				t.Errorf("what was synced: %d bytes, %v", len(got), err)
			}
		})
	}
}

// fail has a file system end as an error of its journal does.
func fail(t *testing.T, root string) {
	t.Helper()
	const shutdown, withoutLog = 0x8004587d, 2 // FS_IOC_SHUTDOWN of the kernel's file systems
	d, err := os.Open(root)
	must(t, err)
	defer d.Close()
	flags := uint32(withoutLog)
	must(t, ioctl(d, shutdown, unsafe.Pointer(&flags)))
}

// TestTheReserve: neither a volume nor a copy of one is made of what the disk keeps
// in reserve.
func TestTheReserve(t *testing.T) {
	s, at := onSmallDisk(t)
	id := cay.NewVolumeID()
	must(t, s.Create(t.Context(), id, 64))
	must(t, synced(filepath.Join(attached(t, s, id), "file"), make([]byte, 32<<20)))
	var st unix.Statfs_t
	must(t, unix.Statfs(at, &st))
	s.disk = disk.Reserve{Dir: at, Bytes: int64(st.Bavail)*st.Bsize - 16<<20}
	if err := s.Clone(t.Context(), id, cay.NewVolumeID()); cay.KindOf(err) != cay.NoSpace || !strings.Contains(err.Error(), "may take") {
		t.Errorf("a clone that is larger than what is left: %v", err)
	}
	must(t, s.Create(t.Context(), cay.NewVolumeID(), 24))
	s.disk.Bytes = 1 << 50
	for what, err := range map[string]error{
		"a volume": s.Create(t.Context(), cay.NewVolumeID(), 24), "a clone": s.Clone(t.Context(), id, cay.NewVolumeID()),
	} {
		if cay.KindOf(err) != cay.NoSpace || !strings.Contains(err.Error(), "reserve") {
			t.Errorf("%s: %v", what, err)
		}
	}
	must(t, synced(filepath.Join(attached(t, s, id), "more"), contentOf(1)))
}
