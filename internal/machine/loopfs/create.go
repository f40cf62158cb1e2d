package loopfs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/disk"
	"github.com/cay-run/cay/internal/machine/loopdev"
)

// ours are names that are no data.
var ours = []string{fileName, newName, workName, movedName, "lost+found"}

// Create gives a data directory storage of a size, and moves the directory's
// contents into it. The size 0 stands for half of the disk's free room above
// those contents. The caller keeps other processes away from the directory. The
// storage is not mounted afterwards. An error leaves the directory as it was.
func Create(ctx context.Context, dir string, size int64) error {
	if os.Geteuid() != 0 {
		return cay.Errorf(cay.Denied, "making a file system needs root").WithHint("run it with sudo")
	}
	if _, mounted := device(dir); mounted || Waiting(dir) {
		return cay.Errorf(cay.Conflict, "%s has storage already", dir).WithHint("`cay storage grow` makes it larger")
	}
	if err := Shares(dir); err == nil {
		return cay.Errorf(cay.Conflict, "files in %s can share blocks as it is", dir).WithHint("there is nothing to do")
	} else if !Cannot(err) {
		return failed(err, "try whether files in %s can share blocks", dir)
	}
	if err := needs("mkfs.xfs"); err != nil {
		return err
	}
	removeUnfinished(dir)
	size, err := room(dir, size)
	if err != nil {
		return err
	}
	f, err := makeFile(ctx, dir, size)
	if err != nil {
		removeUnfinished(dir)
		return err
	}
	defer f.Close()
	if err := fill(ctx, f.Name(), dir); err != nil {
		f.Close()
		removeUnfinished(dir)
		return err
	}
	return take(dir)
}

// room says how large the storage becomes.
func room(dir string, size int64) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, failed(err, "ask how full the disk of %s is", dir)
	}
	used, free := disk.Use(dir), int64(st.Bavail)*st.Bsize
	if size == 0 {
		size = used + max(0, free-used)/2
	}
	size = size / (1 << 20) << 20
	need := used + used/10 + least
	switch {
	case size < need && free < need:
		return 0, cay.Errorf(cay.NoSpace, "moving what is in %s takes %d MB more for a while, and its disk has %d MB free", dir, need>>20, free>>20).
			WithHint("free space there, or remove unneeded files (cay gc)")
	case size < need:
		return 0, cay.Errorf(cay.Invalid, "%d MB are too few: the data in %s takes %d MB, and the least is %d", size>>20, dir, used>>20, (need+1<<20-1)>>20)
	case size > free-free/50:
		return 0, cay.Errorf(cay.NoSpace, "the disk of %s has %d MB free, too few for storage of %d MB", dir, free>>20, size>>20).
			WithHint("take less: --size")
	}
	return size, nil
}

// makeFile makes an empty file system in a file that is locked, and has all the
// room that it will need.
func makeFile(ctx context.Context, dir string, size int64) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, newName), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, failed(err, "make the storage of %s", dir)
	}
	err = errors.Join(syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB), f.Truncate(size))
	if err == nil {
		err = tool(ctx, "/", "mkfs.xfs", "-q", "-f", "-s", fmt.Sprintf("size=%d", loopdev.Sector), "-m", "reflink=1", f.Name())
	}
	if err == nil {
		err = allocate(f, size)
	}
	if err != nil {
		f.Close()
		return nil, failed(err, "make the storage of %s", dir)
	}
	return f, nil
}

// fill copies what is in the directory into the file system in a file.
func fill(ctx context.Context, file, dir string) error {
	return aside(file, dir, func(work string) error {
		info, err := os.Stat(dir)
		if err != nil {
			return failed(err, "look at %s", dir)
		}
		owner := info.Sys().(*syscall.Stat_t)
		if err := errors.Join(os.Chown(work, int(owner.Uid), int(owner.Gid)), os.Chmod(work, info.Mode().Perm())); err != nil {
			return failed(err, "make the storage of %s", dir)
		}
		names, err := data(dir)
		if err != nil {
			return failed(err, "list %s", dir)
		}
		if len(names) > 0 {
			args := append([]string{"--archive", "--target-directory=" + work, "--"}, names...)
			if err := tool(ctx, dir, "cp", args...); err != nil {
				return err
			}
		}
		d, err := os.Open(work)
		if err != nil {
			return failed(err, "sync the storage of %s", dir)
		}
		defer d.Close()
		if err := unix.Syncfs(int(d.Fd())); err != nil {
			return failed(err, "sync the storage of %s", dir)
		}
		return nil
	})
}

// aside mounts the file system in a file out of sight of other processes and runs
// do on it.
func aside(file, dir string, do func(work string) error) error {
	work, release, err := mountAside(file, dir)
	if err != nil {
		return err
	}
	return errors.Join(do(work), release())
}

// mountAside mounts the file system in a file where only its maker looks.
func mountAside(file, dir string) (work string, release func() error, err error) {
	if work, err = removeWork(dir); err != nil {
		return "", nil, failed(err, "unmount %s", work)
	}
	if err := os.Mkdir(work, 0o700); err != nil {
		return "", nil, failed(err, "make %s", work)
	}
	if err := attach(file, work); err != nil {
		return "", nil, errors.Join(err, os.Remove(work))
	}
	return work, func() error {
		err := unmount(context.Background(), work)
		if err != nil {
			return failed(err, "unmount %s", work)
		}
		return os.Remove(work)
	}, nil
}

// data lists what in a directory is to be moved.
func data(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if !slices.Contains(ours, e.Name()) {
			names = append(names, "./"+e.Name())
		}
	}
	return names, nil
}

// take gives the finished storage its name: from then on it is the directory.
func take(dir string) error {
	moved, err := os.Create(filepath.Join(dir, movedName))
	if err == nil {
		err = errors.Join(moved.Sync(), moved.Close())
	}
	if err == nil {
		err = os.Rename(filepath.Join(dir, newName), filepath.Join(dir, fileName))
	}
	if err == nil {
		err = disk.Sync(dir)
	}
	if err == nil {
		err = removeMoved(dir)
	}
	if err != nil {
		return failed(err, "take the new storage of %s", dir)
	}
	return nil
}

// removeMoved removes what the storage was made of, if that is still there.
func removeMoved(dir string) error {
	mark := filepath.Join(dir, movedName)
	if _, err := os.Lstat(mark); err != nil {
		return nil
	}
	names, err := data(dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	if err := disk.Sync(dir); err != nil { // nothing may come back without its mark
		return err
	}
	return os.Remove(mark)
}

// removeUnfinished removes a file system that a process that is gone was making.
func removeUnfinished(dir string) {
	name := filepath.Join(dir, newName)
	f, err := os.Open(name)
	if err != nil {
		return
	}
	defer f.Close()
	if syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
		return // at work
	}
	if _, err := removeWork(dir); err != nil {
		return
	}
	if !Waiting(dir) {
		os.Remove(filepath.Join(dir, movedName))
	}
	os.Remove(name)
}

// removeWork removes the mount that a killed Create left.
func removeWork(dir string) (work string, err error) {
	work = filepath.Join(dir, workName)
	if err := unix.Unmount(work, 0); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return work, err
	}
	if err := os.Remove(work); err != nil && !errors.Is(err, os.ErrNotExist) {
		return work, err
	}
	return work, nil
}

// Grow makes storage that is not mounted larger.
func Grow(ctx context.Context, dir string, size int64) error {
	if _, mounted := device(dir); mounted {
		return cay.Errorf(cay.Conflict, "the storage of %s is in use", dir).WithHint("end the server and its sandboxes first: cay down")
	}
	if err := needs("xfs_growfs"); err != nil {
		return err
	}
	f, has, err := open(ctx, dir)
	if err != nil {
		return err
	}
	if f == nil {
		return cay.Errorf(cay.NotFound, "%s has no storage of its own", dir).WithHint("`cay storage create` makes one")
	}
	defer f.Close()
	size = size / (1 << 20) << 20
	if size <= has {
		return cay.Errorf(cay.Invalid, "the storage of %s has %d MB; it can only become larger", dir, has>>20)
	}
	if err := allocate(f, size); err != nil {
		// The room is given back: a larger file would be in the way.
		return errors.Join(failed(err, "make the storage of %s larger", dir), f.Truncate(has))
	}
	return aside(f.Name(), dir, func(work string) error {
		return tool(ctx, "/", "xfs_growfs", work)
	})
}
