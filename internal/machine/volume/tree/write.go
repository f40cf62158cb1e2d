package tree

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/volume"
)

// Write writes a file, which has its name when it is whole: a write that is
// broken off leaves what was there. The name gets a new file: a process that has
// the old one open keeps it, as do its other names, and a link is replaced, not
// followed. Owner and mode are those of the file that was there, else the
// defaults. size is how long the content is, -1 where that is not known; force
// makes the directories above. The error of the content itself is returned as it
// is.
func (t *Tree) Write(ctx context.Context, name string, content io.Reader, size int64, force bool, meta Meta) (Entry, error) {
	parts, err := split(name)
	if err != nil {
		return Entry{}, err
	}
	if len(parts) == 0 {
		return Entry{}, t.failed(unix.EISDIR, parts)
	}
	if err := t.room(size); err != nil {
		return Entry{}, err
	}
	dir, last, err := t.home(parts, force)
	if err != nil {
		return Entry{}, t.failed(err, parts)
	}
	defer dir.Close()
	before, err := look(dir, last, parts)
	switch {
	case errors.Is(err, unix.ENOENT):
	case err != nil:
		return Entry{}, t.failed(err, parts)
	case before.Type == Directory:
		return Entry{}, t.failed(unix.EISDIR, parts)
	case before.Type == File:
		mode := before.Mode & 0o777
		meta = Meta{UID: orElse(meta.UID, &before.UID), GID: orElse(meta.GID, &before.GID), Mode: orElse(meta.Mode, &mode)}
	}
	f, err := unnamed(dir)
	if err != nil {
		return Entry{}, t.failed(err, parts)
	}
	defer f.Close()
	if err := fill(ctx, f, content); err != nil {
		var theirs contentError
		if errors.As(err, &theirs) {
			return Entry{}, theirs.error
		}
		return Entry{}, t.failed(err, parts)
	}
	err = set(f, or(meta, defaultFile))
	if err == nil {
		err = f.Sync()
	}
	if err == nil {
		err = give(f, dir, last)
	}
	if err != nil {
		return Entry{}, t.failed(err, parts)
	}
	return t.entryOf(f, parts)
}

// room fails before a write that the volume has no room for.
func (t *Tree) room(size int64) error {
	has, err := t.Room()
	if err == nil && size > has {
		err = volume.Full(cay.Errorf(cay.NoSpace, "%d bytes are to be written, and %d are free", size, has))
	}
	return err
}

// home opens the directory that a path ends in.
func (t *Tree) home(parts []string, force bool) (*os.File, string, error) {
	dir, last, err := t.parent(parts)
	if errors.Is(err, unix.ENOENT) && force {
		dir, err = t.makeAll(parts[:len(parts)-1], Meta{})
	}
	return dir, last, err
}

// unnamed makes a file without a name: it is gone when this process is.
func unnamed(dir *os.File) (*os.File, error) {
	fd, err := unix.Openat(int(dir.Fd()), ".", unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "content"), nil
}

// contentError is an error of what is written.
type contentError struct{ error }

const copyAtOnce = 1 << 20

var buffers = sync.Pool{New: func() any { b := make([]byte, copyAtOnce); return &b }}

// fill writes a file, a whole buffer at once.
func fill(ctx context.Context, f *os.File, content io.Reader) error {
	buffer := buffers.Get().(*[]byte)
	defer buffers.Put(buffer)
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := 0, error(nil)
		for n < copyAtOnce && err == nil {
			var more int
			more, err = content.Read((*buffer)[n:])
			n += more
		}
		if _, err := f.Write((*buffer)[:n]); err != nil {
			return err
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return contentError{err}
		}
	}
}

// give gives a file without a name the name of what was there.
func give(f, dir *os.File, name string) error {
	from, to := self(f), int(dir.Fd())
	err := unix.Linkat(unix.AT_FDCWD, from, to, name, unix.AT_SYMLINK_FOLLOW)
	if !errors.Is(err, unix.EEXIST) {
		return err
	}
	passing := temporary()
	if err := unix.Linkat(unix.AT_FDCWD, from, to, passing, unix.AT_SYMLINK_FOLLOW); err != nil {
		return err
	}
	if err := unix.Renameat(to, passing, to, name); err != nil {
		return errors.Join(err, unix.Unlinkat(to, passing, 0))
	}
	return nil
}
