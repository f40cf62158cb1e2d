package fs

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/cay-run/cay/internal/guest/archive"
	"github.com/cay-run/cay/internal/inside/agent/user"
)

// errNotDir matches the error of a path that goes through a file.
const errNotDir = syscall.ENOTDIR

// move renames from to to, making the parents of to for u. Between file
// systems it copies and removes.
func move(from, to string, u user.User) error {
	if _, err := os.Lstat(from); err != nil {
		return lookFault(from, err)
	}
	if _, err := makeDirs(filepath.Dir(to), u); err != nil {
		return err
	}
	err := os.Rename(from, to)
	if errors.Is(err, syscall.EXDEV) {
		err = moveAcross(from, to)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return lookFault(from, err)
	}
	if err != nil {
		return pathFault(to, err)
	}
	return nil
}

// moveAcross copies a tree to another file system and removes it. The copy
// grows beside its place, so that to is either what it was or whole.
func moveAcross(from, to string) error {
	tmp, err := os.MkdirTemp(filepath.Dir(to), ".move-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	if err := archive.Copy(from, tmp); err != nil {
		return err
	}
	if err := os.Rename(filepath.Join(tmp, filepath.Base(from)), to); err != nil {
		return err
	}
	return os.RemoveAll(from)
}
