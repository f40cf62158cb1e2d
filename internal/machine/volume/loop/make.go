package loop

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/disk"
)

// Create makes an empty volume.
func (s *Storage) Create(ctx context.Context, id cay.VolumeID, sizeMB int) error {
	if sizeMB < leastMB {
		return cay.Errorf(cay.Invalid, "%d MB are too few for a volume; the least is %d", sizeMB, leastMB)
	}
	if err := s.disk.Room("a new volume", 0); err != nil {
		return err
	}
	return s.make(ctx, id, func(dir string) error {
		k := s.kindFor(sizeMB)
		file := filepath.Join(dir, k.file)
		f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return disk.Error(err, "make volume %s", id)
		}
		err = f.Truncate(int64(sizeMB) << 20)
		if err := errors.Join(err, f.Close()); err != nil {
			return disk.Error(err, "make volume %s", id)
		}
		if err := k.format(ctx, file); err != nil {
			return err
		}
		root := filepath.Join(dir, rootName)
		if err := k.mount(ctx, file, root); err != nil {
			return err
		}
		return errors.Join(furnish(root), detach(root))
	})
}

// furnish gives the root directory of an empty file system to the default user.
func furnish(root string) error {
	err := os.Remove(filepath.Join(root, "lost+found"))
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	err = errors.Join(err, os.Chown(root, defaultUser, defaultUser), os.Chmod(root, 0o755))
	if err != nil {
		return disk.Error(err, "give the root of a volume to its user")
	}
	return nil
}

// defaultUser is the number of the user and the group that own a new volume: the
// default user of E2B's templates and of ours.
const defaultUser = 1000

// make makes the directory of a volume under another name, has it filled, and
// gives it its own: a crash leaves a whole volume or none.
func (s *Storage) make(ctx context.Context, id cay.VolumeID, fill func(dir string) error) (err error) {
	if !valid(id) {
		return cay.Errorf(cay.Invalid, "%q is no id of a volume", id)
	}
	v := s.lock(id)
	defer s.unlock(id, v)
	if _, _, err := s.file(id); cay.KindOf(err) != cay.NotFound {
		if err == nil {
			err = cay.Errorf(cay.Conflict, "there is a volume %s already", id)
		}
		return err
	}
	dir := s.path(id) + newSuffix
	if err := os.RemoveAll(dir); err != nil {
		return disk.Error(err, "make volume %s", id)
	}
	if err := os.MkdirAll(filepath.Join(dir, rootName), 0o700); err != nil {
		return disk.Error(err, "make volume %s", id)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(dir))
		}
	}()
	if err := fill(dir); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return cay.Wrap(cay.Unavailable, err, "make volume %s", id)
	}
	if err := errors.Join(syncAll(dir), os.Rename(dir, s.path(id)), disk.Sync(s.dir)); err != nil {
		return disk.Error(err, "make volume %s", id)
	}
	return nil
}

// syncAll has the disk keep the files of a directory, and the directory.
func syncAll(dir string) error {
	for _, k := range kinds {
		if err := disk.Sync(filepath.Join(dir, k.file)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return disk.Sync(dir)
}

// Clone copies the file of a volume while its file system stands still: the
// kernel has written everything to the file then, and what guests write waits.
// Where the disk shares blocks, that is a moment.
func (s *Storage) Clone(ctx context.Context, from, id cay.VolumeID) error {
	if from == id {
		return cay.Errorf(cay.Conflict, "a volume cannot be a clone of itself")
	}
	return s.copying(ctx, from, func(copyTo func(dir string) error) error { return s.make(ctx, id, copyTo) })
}

// copying calls do with what copies the file of a volume into a directory.
func (s *Storage) copying(ctx context.Context, from cay.VolumeID, do func(copyTo func(dir string) error) error) error {
	if err := s.disk.Room("a copy of a volume", 0); err != nil {
		return err
	}
	root, err := s.Attach(ctx, from)
	if err != nil {
		return err
	}
	defer s.Detach(from)
	file, k, err := s.file(from)
	if err != nil {
		return err
	}
	s.mu.Lock()
	source := s.all[from]
	s.mu.Unlock()
	return do(func(dir string) error {
		return source.still(ctx, root, s.dir, func() error {
			err := s.copyFile(ctx, file, filepath.Join(dir, k.file))
			var refused *cay.Error
			if errors.As(err, &refused) {
				return refused
			}
			if err != nil {
				return disk.Error(&fs.PathError{Op: "copy", Path: dir, Err: err}, "copy volume %s", from)
			}
			return nil
		})
	})
}

// copyFile copies a file, sharing its blocks where the disk can, else without
// its holes.
func (s *Storage) copyFile(ctx context.Context, from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer out.Close()
	if unix.IoctlFileClone(int(out.Fd()), int(in.Fd())) == nil {
		return nil
	}
	info, err := in.Stat()
	if err != nil {
		return err
	}
	if err := s.disk.Room("a copy of the volume", blocks(info)*512); err != nil {
		return err
	}
	if err := out.Truncate(info.Size()); err != nil {
		return err
	}
	for at := int64(0); ; {
		start, err := unix.Seek(int(in.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return nil
		}
		if err != nil {
			return err
		}
		end, err := unix.Seek(int(in.Fd()), start, unix.SEEK_HOLE)
		if err != nil {
			return err
		}
		if err := copyRange(ctx, out, in, start, end); err != nil {
			return err
		}
		at = end
	}
}

const copyAtOnce = 8 << 20

func copyRange(ctx context.Context, out, in *os.File, at, end int64) error {
	for at < end {
		if err := ctx.Err(); err != nil {
			return err
		}
		from, to := at, at
		n, err := unix.CopyFileRange(int(in.Fd()), &from, int(out.Fd()), &to, int(min(end-at, copyAtOnce)), 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return err
		}
		if n == 0 {
			return io.ErrUnexpectedEOF
		}
		at += int64(n)
	}
	return nil
}

// Resize makes a volume larger. The file is larger first: a file system that a
// crash left smaller than its file grows when it is mounted again.
func (s *Storage) Resize(ctx context.Context, id cay.VolumeID, sizeMB int) error {
	root, err := s.Attach(ctx, id)
	if err != nil {
		return err
	}
	defer s.Detach(id)
	v := s.lock(id)
	defer s.unlock(id, v)
	file, k, err := s.file(id)
	if err != nil {
		return err
	}
	info, err := os.Stat(file)
	if err != nil {
		return disk.Error(err, "look at volume %s", id)
	}
	size := int64(sizeMB) << 20
	if size < info.Size() {
		return cay.Errorf(cay.Invalid, "volume %s has %d MB, and cannot become smaller", id, info.Size()>>20).
			WithHint("copy its files into a new, smaller volume")
	}
	if err := os.Truncate(file, size); err != nil {
		return disk.Error(err, "make volume %s larger", id)
	}
	err = k.grow(file, root)
	if errors.Is(err, unix.EPERM) {
		err = s.growIdle(ctx, id, v, file, k)
	}
	if err != nil {
		return errors.Join(err, os.Truncate(file, info.Size()))
	}
	return nil
}

// growIdle mounts a volume anew, whose file has grown, because it may not grow
// while it is mounted.
func (s *Storage) growIdle(ctx context.Context, id cay.VolumeID, v *vol, file string, k *kind) error {
	s.mu.Lock()
	alone := v.users == 1 // Resize itself
	s.mu.Unlock()
	if !alone {
		return cay.Errorf(cay.Conflict, "volume %s is in use, and the server may not make its file system larger meanwhile", id).
			WithHint("end the sandboxes that mount it, or give the server CAP_SYS_RESOURCE")
	}
	if err := s.unmount(id, v); err != nil {
		return err
	}
	if err := k.mount(ctx, file, s.path(id, rootName)); err != nil {
		return err
	}
	v.mounted = true
	return nil
}

// Delete removes a volume without users.
func (s *Storage) Delete(_ context.Context, id cay.VolumeID) error {
	v := s.lock(id)
	defer s.unlock(id, v)
	if _, _, err := s.file(id); err != nil {
		if cay.KindOf(err) == cay.NotFound {
			return nil
		}
		return err
	}
	if s.used(v) {
		return cay.Errorf(cay.Conflict, "volume %s is in use", id)
	}
	if err := s.unmount(id, v); err != nil {
		return err
	}
	old := s.path(id) + oldSuffix
	err := os.RemoveAll(old) // of a Delete that failed
	if err == nil {
		err = os.Rename(s.path(id), old)
	}
	if err == nil {
		err = errors.Join(disk.Sync(s.dir), os.RemoveAll(old))
	}
	if err != nil {
		return disk.Error(err, "remove volume %s", id)
	}
	return nil
}
