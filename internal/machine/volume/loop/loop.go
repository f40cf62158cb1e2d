// Package loop keeps each volume as a file system in a sparse file of the data
// storage (docs/adr/0053).
//
//	<dir>/<id>/fs.xfs   the file; fs.ext4 where XFS cannot be
//	<dir>/<id>/root     where it is mounted, with nosuid and nodev
//	<dir>/<id>.new      a volume that is being made
//	<dir>/<id>.old      one that is being removed
//
// A volume stays mounted for a while after its last Detach, because a sandbox
// with it is often followed by the next. The kernel keeps what was synced:
// nothing of this process's has to end in good order. Open takes away what a
// killed process left.
package loop

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/disk"
	"github.com/cay-run/cay/internal/machine/volume"
)

const (
	rootName  = "root"
	newSuffix = ".new"
	oldSuffix = ".old"

	// leastMB is the smallest volume: below it names take most of the room.
	leastMB = 8

	// mostIdle is how many volumes stay mounted that no caller uses.
	mostIdle = 32
)

// Storage keeps volumes in a directory.
type Storage struct {
	dir  string
	disk disk.Reserve // of the disk that has it
	log  *slog.Logger

	xfsFrom int // MB, from which a new volume is XFS

	mu   sync.Mutex
	all  map[cay.VolumeID]*vol
	idle []cay.VolumeID // mounted and used by no caller, the longest so first
}

var _ volume.Storage = (*Storage)(nil)

// vol is a volume of which this process knows. Its lock is held while it is
// mounted, unmounted, resized or removed; Storage's may be taken inside.
type vol struct {
	mu      sync.Mutex
	mounted bool
	frozen  turn // of the one that copies it

	users int // guarded by Storage.mu
}

// Open opens the storage in a directory, which it makes if need be. It unmounts
// the mounts of an earlier process: a process that uses a volume still, through a
// mount of its own, keeps its file system, and the next Attach finds that one. A
// reserve of the disk is left to work of another kind.
func Open(ctx context.Context, dir string, reserve disk.Reserve, log *slog.Logger) (*Storage, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, disk.Error(err, "make the directory of volumes")
	}
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return nil, disk.Error(err, "look at the directory of volumes")
	}
	if err := Release(dir); err != nil {
		return nil, cay.Wrap(cay.Internal, err, "unmount the volumes that an earlier server left")
	}
	names, err := os.ReadDir(dir)
	if err != nil {
		return nil, disk.Error(err, "list the volumes")
	}
	for _, e := range names {
		if !strings.HasSuffix(e.Name(), newSuffix) && !strings.HasSuffix(e.Name(), oldSuffix) {
			continue
		}
		if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
			return nil, disk.Error(err, "remove an unfinished volume")
		}
		log.InfoContext(ctx, "removed an unfinished volume", "name", e.Name())
	}
	return &Storage{dir: dir, disk: reserve, log: log, xfsFrom: xfsFrom, all: map[cay.VolumeID]*vol{}}, nil
}

// Close unmounts what no caller uses.
func (s *Storage) Close() error {
	s.mu.Lock()
	idle := s.idle
	s.idle = nil
	s.mu.Unlock()
	var errs []error
	for _, id := range idle {
		errs = append(errs, s.settle(id))
	}
	return errors.Join(errs...)
}

// Teardown unmounts every volume of a directory, for a machine from which all
// is removed.
func (s *Storage) Teardown() error { return Release(s.dir) }

func (s *Storage) path(id cay.VolumeID, more ...string) string {
	return filepath.Join(append([]string{s.dir, string(id)}, more...)...)
}

// file returns the file of a volume and its kind of file system.
func (s *Storage) file(id cay.VolumeID) (path string, k *kind, err error) {
	if !valid(id) {
		return "", nil, missing(id)
	}
	for _, k := range kinds {
		path := s.path(id, k.file)
		if _, err := os.Lstat(path); err == nil {
			return path, k, nil
		} else if !errors.Is(err, fs.ErrNotExist) {
			return "", nil, disk.Error(err, "look for volume %s", id)
		}
	}
	return "", nil, missing(id)
}

// valid reports whether an id can be the name of a file here. It is a UUID; what
// is none is of no volume.
func valid(id cay.VolumeID) bool {
	return len(id) == 36 && strings.Trim(string(id), "0123456789abcdef-") == ""
}

func missing(id cay.VolumeID) error {
	return cay.Errorf(cay.NotFound, "there is no volume %s", id)
}

// lock locks a volume.
func (s *Storage) lock(id cay.VolumeID) *vol {
	for {
		s.mu.Lock()
		v := s.all[id]
		if v == nil {
			v = &vol{frozen: newTurn()}
			s.all[id] = v
		}
		s.mu.Unlock()
		v.mu.Lock()
		s.mu.Lock()
		same := s.all[id] == v
		s.mu.Unlock()
		if same {
			return v
		}
		v.mu.Unlock() // it was forgotten meanwhile
	}
}

// unlock unlocks a volume, and forgets it when there is nothing to remember.
func (s *Storage) unlock(id cay.VolumeID, v *vol) {
	s.mu.Lock()
	if !v.mounted && v.users == 0 {
		delete(s.all, id)
	}
	s.mu.Unlock()
	v.mu.Unlock()
}

// Attach mounts a volume, if it is not mounted yet.
func (s *Storage) Attach(ctx context.Context, id cay.VolumeID) (string, error) {
	v := s.lock(id)
	defer s.unlock(id, v)
	if err := ctx.Err(); err != nil {
		return "", cay.Wrap(cay.Unavailable, err, "mount volume %s", id)
	}
	// While the disk is full a new mount may fail; the old one can still be read.
	if v.mounted && !s.used(v) && disk.Full(s.dir) == "" && ended(s.path(id, rootName)) {
		s.log.WarnContext(ctx, "the file system of a volume failed, and is mounted anew", "volume", id)
		if err := s.unmount(id, v); err != nil {
			return "", err
		}
	}
	if !v.mounted {
		file, k, err := s.file(id)
		if err != nil {
			return "", err
		}
		if err := k.mount(ctx, file, s.path(id, rootName)); err != nil {
			return "", err
		}
		v.mounted = true
	}
	s.mu.Lock()
	v.users++
	s.idle = slices.DeleteFunc(s.idle, func(o cay.VolumeID) bool { return o == id })
	s.mu.Unlock()
	return s.path(id, rootName), nil
}

// ended reports whether a mounted file system takes no writes any more, as one
// does to which the disk refused a write of its journal or its tables.
func ended(root string) bool {
	fd, err := unix.Open(root, unix.O_TMPFILE|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
	if err == nil {
		err = unix.Close(fd)
	}
	return errors.Is(err, unix.EIO) || errors.Is(err, unix.EROFS) || errors.Is(err, unix.EUCLEAN)
}

// Detach counts a user less. The volume stays mounted until others are idle for
// a shorter time.
func (s *Storage) Detach(id cay.VolumeID) {
	s.mu.Lock()
	v := s.all[id]
	if v == nil || v.users == 0 {
		s.mu.Unlock()
		s.log.Error("a volume was detached more often than attached", "volume", id)
		return
	}
	v.users--
	var longest cay.VolumeID
	if v.users == 0 {
		s.idle = append(s.idle, id)
		if len(s.idle) > mostIdle {
			longest, s.idle = s.idle[0], s.idle[1:]
		}
	}
	s.mu.Unlock()
	if longest == "" {
		return
	}
	if err := s.settle(longest); err != nil {
		s.log.Warn("an idle volume stays mounted", "volume", longest, "err", err)
	}
}

// settle unmounts a volume that no caller uses.
func (s *Storage) settle(id cay.VolumeID) error {
	v := s.lock(id)
	defer s.unlock(id, v)
	if s.used(v) {
		return nil
	}
	return s.unmount(id, v)
}

func (s *Storage) used(v *vol) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return v.users > 0
}

// unmount unmounts a volume whose lock the caller holds.
func (s *Storage) unmount(id cay.VolumeID, v *vol) error {
	if !v.mounted {
		return nil
	}
	if err := detach(s.path(id, rootName)); err != nil {
		return cay.Wrap(cay.Internal, err, "unmount volume %s", id)
	}
	v.mounted = false
	s.mu.Lock()
	s.idle = slices.DeleteFunc(s.idle, func(o cay.VolumeID) bool { return o == id })
	s.mu.Unlock()
	return nil
}

// with calls do while a volume is mounted.
func (s *Storage) with(ctx context.Context, id cay.VolumeID, do func(root string) error) error {
	root, err := s.Attach(ctx, id)
	if err != nil {
		return err
	}
	defer s.Detach(id)
	return do(root)
}

// Failure says what the error of a call on files of a volume means.
func (s *Storage) Failure(id cay.VolumeID, err error) *cay.Error {
	return volume.Failure(s.path(id, rootName), err)
}

// Usage asks the file system.
func (s *Storage) Usage(ctx context.Context, id cay.VolumeID) (volume.Usage, error) {
	var u volume.Usage
	err := s.with(ctx, id, func(root string) error {
		file, k, err := s.file(id)
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(file, &st); err != nil {
			return disk.Error(err, "look at volume %s", id)
		}
		var has unix.Statfs_t
		if err := unix.Statfs(root, &has); err != nil {
			return disk.Error(err, "ask how full volume %s is", id)
		}
		free := int64(has.Bavail) * has.Bsize
		u = volume.Usage{
			Used: st.Size - free, Size: st.Size, Stored: st.Blocks * 512,
			Files: max(0, int64(has.Files-has.Ffree)-k.inodes),
		}
		return nil
	})
	return u, err
}

// List lists the volumes.
func (s *Storage) List(context.Context) ([]cay.VolumeID, error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, disk.Error(err, "list the volumes")
	}
	var out []cay.VolumeID
	for _, e := range entries {
		if id := cay.VolumeID(e.Name()); e.IsDir() && valid(id) {
			out = append(out, id)
		}
	}
	return out, nil
}
