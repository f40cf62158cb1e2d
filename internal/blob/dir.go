package blob

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/cay-run/cay"
)

// parts is the directory of what is being written. No object's name begins so.
const parts = ".parts"

// partAge is longer than an object takes to be written.
const partAge = 24 * time.Hour

// directory is a bucket in a directory, which several machines may share that see
// links and renames as one.
type directory struct{ root string }

// OpenDir opens a bucket in a directory, which is made where it lacks.
func OpenDir(path string) (*Bucket, error) {
	if !filepath.IsAbs(path) {
		return nil, cay.Errorf(cay.Invalid, "%.200q names no bucket", path).WithHint("say s3://BUCKET/PREFIX, or the absolute path of a directory")
	}
	d := directory{filepath.Clean(path)}
	if err := os.MkdirAll(filepath.Join(d.root, parts), 0o700); err != nil {
		return nil, d.explain(err, "")
	}
	entries, err := os.ReadDir(filepath.Join(d.root, parts))
	if err != nil {
		return nil, d.explain(err, "")
	}
	for _, e := range entries { // of writers that were killed
		if info, err := e.Info(); err == nil && time.Since(info.ModTime()) > partAge {
			_ = os.Remove(filepath.Join(d.root, parts, e.Name()))
		}
	}
	return newBucket(d), nil
}

func (d directory) path(name string) string { return filepath.Join(d.root, filepath.FromSlash(name)) }

func (d directory) put(_ context.Context, name string, content []byte, absent bool) error {
	return d.explain(d.write(d.path(name), content, absent), name)
}

func (d directory) write(final string, content []byte, absent bool) error {
	f, err := os.CreateTemp(filepath.Join(d.root, parts), "*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(content)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	name := os.Rename
	if absent {
		name = os.Link
	}
	for range 3 { // a directory that its last object left is removed by another
		if err = os.MkdirAll(filepath.Dir(final), 0o700); err != nil {
			return err
		}
		if err = name(f.Name(), final); !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	if err != nil {
		return err
	}
	return d.sync(filepath.Dir(final))
}

// sync has the names of a directory and of those above it outlive a power cut.
func (d directory) sync(dir string) error {
	for {
		f, err := os.Open(dir)
		if errors.Is(err, fs.ErrNotExist) { // its objects are removed already
			return nil
		}
		if err != nil {
			return err
		}
		if err := errors.Join(f.Sync(), f.Close()); err != nil || dir == d.root {
			return err
		}
		dir = filepath.Dir(dir)
	}
}

func (d directory) get(_ context.Context, name string, from, n int64) (io.ReadCloser, error) {
	f, err := os.Open(d.path(name))
	if err != nil {
		return nil, d.explain(err, name)
	}
	info, err := f.Stat()
	if err == nil && info.IsDir() {
		err = fs.ErrNotExist
	}
	if err != nil {
		f.Close()
		return nil, d.explain(err, name)
	}
	if n < 0 {
		n = MaxObject + sumSize + 1
	}
	return section{io.NewSectionReader(f, from, n), f, d, name}, nil
}

// section is a part of a file.
type section struct {
	in   *io.SectionReader
	f    *os.File
	of   directory
	name string
}

func (s section) Read(p []byte) (int, error) {
	n, err := s.in.Read(p)
	if err != nil && err != io.EOF {
		err = s.of.explain(err, s.name)
	}
	return n, err
}

func (s section) Close() error { return s.f.Close() }

func (d directory) remove(_ context.Context, name string) error {
	path := d.path(name)
	if info, err := os.Lstat(path); err == nil && info.IsDir() { // a part of other names
		return nil
	}
	err := os.Remove(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR) {
		return d.explain(err, name)
	}
	for dir := filepath.Dir(path); dir != d.root && syscall.Rmdir(dir) == nil; dir = filepath.Dir(dir) {
	}
	return nil
}

func (d directory) list(ctx context.Context, prefix, after string, yield func(Object) bool) error {
	var all []Object
	err := filepath.WalkDir(d.root, func(path string, e fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist): // removed this moment
			return nil
		case err != nil:
			return err
		case ctx.Err() != nil:
			return ctx.Err()
		case e.IsDir() && path == filepath.Join(d.root, parts):
			return fs.SkipDir
		case e.IsDir():
			return nil
		}
		name := filepath.ToSlash(strings.TrimPrefix(path, d.root+string(filepath.Separator)))
		if !strings.HasPrefix(name, prefix) || name <= after {
			return nil
		}
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil {
			all = append(all, Object{name, info.Size(), info.ModTime()})
		}
		return err
	})
	if err != nil {
		return d.explain(err, prefix)
	}
	slices.SortFunc(all, func(a, b Object) int { return strings.Compare(a.Name, b.Name) })
	for _, o := range all {
		if !yield(o) {
			return nil
		}
	}
	return nil
}

func (d directory) explain(err error, name string) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fs.ErrExist):
		return cay.Wrap(cay.Conflict, errors.Join(ErrExists, err), "the object %s is there already", name)
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		return missing(name, err)
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		return cay.Wrap(cay.Denied, errors.Join(ErrCredentials, err), "the directory %s cannot be used", d.root)
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return cay.Wrap(cay.NoSpace, errors.Join(ErrFull, err), "no space is left in %s", d.root)
	case errors.Is(err, syscall.EIO), errors.Is(err, syscall.ESTALE), errors.Is(err, syscall.ETIMEDOUT):
		return cay.Wrap(cay.Unavailable, errors.Join(ErrUnreachable, err), "the directory %s does not answer", d.root)
	}
	return cay.Wrap(cay.Unavailable, err, "the directory %s", d.root)
}

func missing(name string, cause error) error {
	return cay.Wrap(cay.NotFound, errors.Join(ErrMissing, cause), "the bucket has no object %s", name)
}
