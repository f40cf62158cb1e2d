// Package dirs keeps each volume as a plain directory, for tests of what stands
// on volumes: it needs no root, and bounds nothing but what it tells.
//
//	<dir>/<id>/root   the files
//	<dir>/<id>/size   how many MB it may hold
package dirs

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/disk"
	"github.com/cay-run/cay/internal/machine/volume"
)

const (
	rootName  = "root"
	sizeName  = "size"
	newSuffix = ".new"
)

// Storage keeps volumes in a directory.
type Storage struct {
	dir string

	mu    sync.Mutex
	users map[cay.VolumeID]int
}

var _ volume.Storage = (*Storage)(nil)

// Open opens the storage in a directory, which it makes if need be.
func Open(dir string) (*Storage, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, disk.Error(err, "make the directory of volumes")
	}
	unfinished, _ := filepath.Glob(filepath.Join(dir, "*"+newSuffix))
	for _, path := range unfinished {
		if err := os.RemoveAll(path); err != nil {
			return nil, disk.Error(err, "remove an unfinished volume")
		}
	}
	return &Storage{dir: dir, users: map[cay.VolumeID]int{}}, nil
}

// Close has nothing to end.
func (s *Storage) Close() error { return nil }

// Teardown has nothing to remove.
func (s *Storage) Teardown() error { return nil }

func (s *Storage) path(id cay.VolumeID, more ...string) string {
	return filepath.Join(append([]string{s.dir, string(id)}, more...)...)
}

// sizeMB is the bound of a volume, which says that it is there.
func (s *Storage) sizeMB(id cay.VolumeID) (int, error) {
	text, err := os.ReadFile(s.path(id, sizeName))
	if errors.Is(err, fs.ErrNotExist) || id == "" || strings.ContainsAny(string(id), "/.") {
		return 0, cay.Errorf(cay.NotFound, "there is no volume %s", id)
	}
	if err != nil {
		return 0, disk.Error(err, "look at volume %s", id)
	}
	return strconv.Atoi(string(text))
}

// Create makes a directory.
func (s *Storage) Create(ctx context.Context, id cay.VolumeID, sizeMB int) error {
	if sizeMB < 1 {
		return cay.Errorf(cay.Invalid, "%d MB are too few for a volume", sizeMB)
	}
	return s.make(ctx, id, sizeMB, func(root string) error {
		err := os.Mkdir(root, 0o755)
		if os.Geteuid() == 0 && err == nil {
			err = os.Chown(root, 1000, 1000)
		}
		return err
	})
}

// Clone copies the files.
func (s *Storage) Clone(ctx context.Context, from, id cay.VolumeID) error {
	size, err := s.sizeMB(from)
	if err != nil {
		return err
	}
	return s.make(ctx, id, size, func(root string) error {
		return copyTree(s.path(from, rootName), root)
	})
}

// Replace copies the files.
func (s *Storage) Replace(_ context.Context, from, id cay.VolumeID) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	size, err := s.sizeMB(from)
	if err != nil {
		return err
	}
	if _, err := s.sizeMB(id); err != nil {
		return err
	}
	if s.users[id] > 0 || from == id {
		return cay.Errorf(cay.Conflict, "volume %s is in use", id)
	}
	root := s.path(id, rootName)
	err = os.RemoveAll(root)
	if err == nil {
		err = copyTree(s.path(from, rootName), root)
	}
	if err == nil {
		err = os.WriteFile(s.path(id, sizeName), []byte(strconv.Itoa(size)), 0o600)
	}
	if err != nil {
		return disk.Error(err, "replace volume %s", id)
	}
	return nil
}

func (s *Storage) make(ctx context.Context, id cay.VolumeID, sizeMB int, fill func(root string) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := s.sizeMB(id); err == nil {
		return cay.Errorf(cay.Conflict, "there is a volume %s already", id)
	}
	dir := s.path(id) + newSuffix
	err := os.Mkdir(dir, 0o700)
	if err == nil {
		err = fill(filepath.Join(dir, rootName))
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, sizeName), []byte(strconv.Itoa(sizeMB)), 0o600)
	}
	if err == nil {
		err = ctx.Err()
	}
	if err == nil {
		err = os.Rename(dir, s.path(id))
	}
	if err != nil {
		return errors.Join(disk.Error(err, "make volume %s", id), os.RemoveAll(dir))
	}
	return nil
}

// copyTree copies files, directories and links, with their modes; what else
// there is, no test asks for.
func copyTree(from, to string) error {
	return filepath.WalkDir(from, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		target := filepath.Join(to, name)
		switch {
		case e.IsDir():
			err = os.Mkdir(target, 0o700)
		case e.Type()&fs.ModeSymlink != 0:
			var text string
			if text, err = os.Readlink(path); err == nil {
				err = os.Symlink(text, target)
			}
		case e.Type().IsRegular():
			var content []byte
			if content, err = os.ReadFile(path); err == nil {
				err = os.WriteFile(target, content, 0o600)
			}
		}
		if err != nil || e.Type()&fs.ModeSymlink != 0 {
			return err
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok && os.Geteuid() == 0 {
			err = os.Chown(target, int(st.Uid), int(st.Gid))
		}
		return errors.Join(err, os.Chmod(target, info.Mode()))
	})
}

// Resize changes what is told of the bound.
func (s *Storage) Resize(ctx context.Context, id cay.VolumeID, sizeMB int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	u, err := s.usage(id)
	if err != nil {
		return err
	}
	if int64(sizeMB)<<20 < u.Used {
		return cay.Errorf(cay.Invalid, "volume %s holds more than %d MB", id, sizeMB)
	}
	if err := os.WriteFile(s.path(id, sizeName), []byte(strconv.Itoa(sizeMB)), 0o600); err != nil {
		return disk.Error(err, "resize volume %s", id)
	}
	return nil
}

// Delete removes a directory.
func (s *Storage) Delete(_ context.Context, id cay.VolumeID) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := s.sizeMB(id); err != nil {
		return nil
	}
	if s.users[id] > 0 {
		return cay.Errorf(cay.Conflict, "volume %s is in use", id)
	}
	if err := os.RemoveAll(s.path(id)); err != nil {
		return disk.Error(err, "remove volume %s", id)
	}
	return nil
}

// Attach counts.
func (s *Storage) Attach(_ context.Context, id cay.VolumeID) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := s.sizeMB(id); err != nil {
		return "", err
	}
	s.users[id]++
	return s.path(id, rootName), nil
}

// Detach counts.
func (s *Storage) Detach(id cay.VolumeID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.users[id] == 0 {
		panic("volume " + string(id) + " is detached more often than attached")
	}
	s.users[id]--
}

// Failure says what the error of a call on files of a volume means.
func (s *Storage) Failure(id cay.VolumeID, err error) *cay.Error {
	return volume.Failure(s.path(id, rootName), err)
}

// Usage counts.
func (s *Storage) Usage(_ context.Context, id cay.VolumeID) (volume.Usage, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.usage(id)
}

func (s *Storage) usage(id cay.VolumeID) (volume.Usage, error) {
	size, err := s.sizeMB(id)
	if err != nil {
		return volume.Usage{}, err
	}
	u := volume.Usage{Size: int64(size) << 20}
	err = filepath.WalkDir(s.path(id, rootName), func(path string, e fs.DirEntry, err error) error {
		if err != nil || path == s.path(id, rootName) {
			return err
		}
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil {
			u.Files++
			if info.Mode().IsRegular() {
				u.Used += info.Size()
			}
		}
		return err
	})
	u.Stored = u.Used
	if err != nil {
		return u, disk.Error(err, "look at volume %s", id)
	}
	return u, nil
}

// List lists the directories.
func (s *Storage) List(context.Context) ([]cay.VolumeID, error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, disk.Error(err, "list the volumes")
	}
	var out []cay.VolumeID
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), newSuffix) {
			out = append(out, cay.VolumeID(e.Name()))
		}
	}
	return out, nil
}
