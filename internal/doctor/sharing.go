package doctor

import (
	"context"
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// sharing tries whether two files in the data directory can have the same
// blocks of the disk. A template that is built from another then takes what is
// new in it; else it takes its whole size.
func sharing(_ context.Context, h host) Check {
	const hint = "sandboxes run as well, but every template takes its whole size: put the data directory on XFS or btrfs (docs/templates.md, Disk, has the commands)"
	err := share(existing(h.cfg.Data))
	switch {
	case err == nil:
		return ok("templates share blocks on the disk")
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOTTY), errors.Is(err, unix.EINVAL), errors.Is(err, unix.EXDEV):
		return warn("the file system of "+h.cfg.Data+" cannot share blocks between files", hint)
	}
	return warn("whether files can share blocks is not known: "+err.Error(), hint)
}

// share makes a file that is a clone of another, and removes both.
func share(dir string) error {
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

// unnamed makes a file that goes when it is closed.
func unnamed(dir string) (*os.File, error) {
	f, err := os.CreateTemp(dir, ".cay-doctor-")
	if err != nil {
		return nil, err
	}
	return f, os.Remove(f.Name())
}
