package loop

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/disk"
)

// Replace copies the file of a volume beside that of another and exchanges the
// two directories: a crash leaves the files of before or those of after.
func (s *Storage) Replace(ctx context.Context, from, id cay.VolumeID) error {
	if from == id {
		return cay.Errorf(cay.Conflict, "a volume cannot take the place of itself")
	}
	return s.copying(ctx, from, func(copyTo func(dir string) error) error {
		v := s.lock(id)
		defer s.unlock(id, v)
		if _, _, err := s.file(id); err != nil {
			return err
		}
		if s.used(v) {
			return cay.Errorf(cay.Conflict, "volume %s is in use", id)
		}
		dir := s.path(id) + newSuffix
		if err := os.RemoveAll(dir); err != nil {
			return disk.Error(err, "replace volume %s", id)
		}
		return errors.Join(s.exchange(ctx, id, v, dir, copyTo), os.RemoveAll(dir))
	})
}

// exchange fills a directory and has it be that of a volume, whose lock the
// caller holds; the volume's own has its place then.
func (s *Storage) exchange(ctx context.Context, id cay.VolumeID, v *vol, dir string, fill func(dir string) error) error {
	if err := os.MkdirAll(filepath.Join(dir, rootName), 0o700); err != nil {
		return disk.Error(err, "replace volume %s", id)
	}
	if err := fill(dir); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return cay.Wrap(cay.Unavailable, err, "replace volume %s", id)
	}
	if err := s.unmount(id, v); err != nil {
		return err
	}
	err := syncAll(dir)
	if err == nil {
		err = unix.Renameat2(unix.AT_FDCWD, dir, unix.AT_FDCWD, s.path(id), unix.RENAME_EXCHANGE)
	}
	if err == nil {
		err = disk.Sync(s.dir)
	}
	if err != nil {
		return disk.Error(err, "replace volume %s", id)
	}
	return nil
}
