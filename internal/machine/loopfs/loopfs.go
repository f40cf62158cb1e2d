// Package loopfs gives a data directory a file system of its own, where the
// disk's cannot share blocks between files: an XFS in one file, mounted over
// the directory that it lies in (docs/adr/0025).
//
//	<data>/storage.xfs   the file system; seen exactly while it is not mounted
//
// All of the file is allocated, and stays so, so that a full disk around it
// never breaks a write inside. A process that makes, mounts or grows it holds a
// lock on the file. The next mount removes the leftovers of a crash.
package loopfs

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/loopdev"
	"github.com/cay-run/cay/internal/spawn"
)

const (
	fileName  = "storage.xfs"
	newName   = "storage.new"   // one that is being made
	workName  = "storage.work"  // where it is mounted meanwhile
	movedName = "storage.moved" // says that what lies beside the file is in it already

	least       = 320 << 20 // XFS makes none below 300 MB
	packageHint = "apt-get install -y xfsprogs"

	pollEvery = 50 * time.Millisecond
	busyTime  = 10 * time.Second // that the last user of a mount may take to go
)

// Waiting reports whether a data directory has storage that is not mounted. The
// caller must not read or write in the directory then.
func Waiting(dir string) bool {
	_, err := os.Lstat(filepath.Join(dir, fileName))
	return err == nil
}

// Shares tries whether two files in a directory can have the same blocks of
// the disk. An error for which Cannot is true says that they cannot.
func Shares(dir string) error {
	from, err := unnamed(dir)
	if err != nil {
		return err
	}
	defer from.Close()
	if _, err := from.Write(make([]byte, 4096)); err != nil {
		return err
	}
	to, err := unnamed(dir)
	if err != nil {
		return err
	}
	defer to.Close()
	return unix.IoctlFileClone(int(to.Fd()), int(from.Fd()))
}

// Cannot reports whether an error of Shares is the file system's answer.
func Cannot(err error) bool {
	return errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOTTY) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EXDEV)
}

// unnamed makes a file that goes when it is closed.
func unnamed(dir string) (*os.File, error) {
	f, err := os.CreateTemp(dir, ".cay-shares-")
	if err != nil {
		return nil, err
	}
	return f, os.Remove(f.Name())
}

// Mount mounts the storage of a data directory, if there is any and it is not
// mounted yet. It fails where the directory's file system is down.
func Mount(ctx context.Context, dir string) error {
	if err := Down(dir); err != nil {
		return err
	}
	removeUnfinished(dir)
	f, size, err := open(ctx, dir)
	if f == nil {
		return err
	}
	defer f.Close()
	if !Waiting(dir) { // another was quicker
		return nil
	}
	if work, err := removeWork(dir); err != nil {
		return failed(err, "unmount %s", work)
	}
	if err := removeMoved(dir); err != nil {
		return failed(err, "remove what is in the storage of %s already", dir)
	}
	if _, err := os.Lstat(filepath.Join(dir, "cay.db")); err == nil {
		return cay.Errorf(cay.Conflict, "%s has the data of a server beside its storage, %s", dir, fileName).
			WithHint("move one of them to another directory: a server can use one only")
	}
	if err := allocate(f, size); err != nil {
		return failed(err, "keep room on the disk for all of the storage of %s", dir)
	}
	return attachNew(ctx, f.Name(), dir)
}

// Unmount takes the storage of a data directory away, if it is mounted there. No
// process may use the directory any more.
func Unmount(ctx context.Context, dir string) error {
	if _, mounted := device(dir); !mounted {
		return nil
	}
	if d, err := os.Open(dir); err == nil {
		_ = unix.Syncfs(int(d.Fd())) // another namespace may have it mounted yet
		d.Close()
	}
	err := unmount(ctx, dir)
	if errors.Is(err, unix.EBUSY) {
		return cay.Wrap(cay.Conflict, err, "%s is still in use, and stays mounted", dir).
			WithHint("`fuser -vm %s` says by whom; `cay down` again when they have gone", dir)
	}
	if err != nil {
		return failed(err, "unmount %s", dir)
	}
	return nil
}

// unmount waits for the last user.
func unmount(ctx context.Context, dir string) error {
	for begun := time.Now(); ; {
		err := unix.Unmount(dir, 0)
		if !errors.Is(err, unix.EBUSY) || time.Since(begun) > busyTime || ctx.Err() != nil {
			return err
		}
		time.Sleep(pollEvery)
	}
}

// Status is what there is.
type Status struct {
	Exists  bool   `json:"exists"`  // the directory has storage
	Mounted bool   `json:"mounted"` // and it is mounted
	Down    bool   `json:"down"`    // and has shut itself down
	Device  string `json:"device,omitempty"`
	Direct  bool   `json:"direct"` // the disk's pages are not kept in memory a second time
	Bytes   int64  `json:"bytes"`  // all that it can hold
	Free    int64  `json:"free"`   // known while it is mounted
}

// Look says what storage a data directory has.
func Look(dir string) (Status, error) {
	if info, err := os.Lstat(filepath.Join(dir, fileName)); err == nil {
		return Status{Exists: true, Bytes: info.Size()}, nil
	}
	name, mounted := device(dir)
	if !mounted {
		return Status{}, nil
	}
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return Status{}, failed(err, "look at %s", dir)
	}
	direct, _ := os.ReadFile(filepath.Join(loopdev.SysBlock, name, "loop", "dio"))
	return Status{
		Exists: true, Mounted: true, Down: Down(dir) != nil, Device: "/dev/" + name, Direct: strings.TrimSpace(string(direct)) == "1",
		Bytes: int64(st.Blocks) * st.Bsize, Free: int64(st.Bavail) * st.Bsize,
	}, nil
}

// open opens the storage of a data directory when no other process holds it, and
// says how large it is; nil where there is none.
func open(ctx context.Context, dir string) (f *os.File, size int64, err error) {
	f, err = locked(ctx, filepath.Join(dir, fileName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, failed(err, "open the storage of %s", dir)
	}
	info, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, 0, failed(err, "look at the storage of %s", dir)
	}
	return f, info.Size(), nil
}

// locked opens a file of ours when no other process holds it.
func locked(ctx context.Context, name string) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			f.Close()
			return nil, err
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, ctx.Err()
		case <-time.After(pollEvery):
		}
	}
}

// allocate has the disk give a file all of its size; its contents stay.
func allocate(f *os.File, size int64) error {
	for {
		if err := unix.Fallocate(int(f.Fd()), 0, 0, size); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// tool runs a program of xfsprogs, or of every Linux.
func tool(ctx context.Context, dir, name string, args ...string) error {
	cmd := spawn.Command(ctx, name, args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		text := strings.TrimSpace(string(out))
		if strings.Contains(text, syscall.ENOSPC.Error()) {
			err = errors.Join(err, syscall.ENOSPC)
		}
		return failed(err, "%s: %.500s", name, text)
	}
	return nil
}

// needs says which package lacks, if one does.
func needs(name string) error {
	if _, err := exec.LookPath(name); err != nil {
		return cay.Wrap(cay.Unsupported, err, "%s is not installed", name).WithHint("%s", packageHint)
	}
	return nil
}

// failed says what failed, and tells a full disk and a lack of rights from
// the rest.
func failed(err error, format string, args ...any) error {
	var ours *cay.Error
	switch {
	case errors.As(err, &ours), errors.Is(err, context.Canceled):
		return err
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return cay.Wrap(cay.NoSpace, err, format, args...).WithHint("free space on the disk of the data directory")
	case errors.Is(err, unix.EOPNOTSUPP):
		return cay.Wrap(cay.Unsupported, err, format, args...).WithHint("the file system there cannot allocate files; ext4 can")
	case errors.Is(err, fs.ErrPermission):
		return cay.Wrap(cay.Denied, err, format, args...).WithHint("run it as root")
	}
	return cay.Wrap(cay.Internal, err, format, args...)
}
