package archive

import (
	"archive/tar"
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"syscall"

	"golang.org/x/sys/unix"
)

// listing is how many names of a directory are read at once.
const listing = 1024

// PackRoot writes a tar of what is at file in the directory root, as Pack does,
// while another process that is not trusted may change any of it: no link is
// followed, no FIFO waited for, nothing outside read. A file that is larger than
// the file system that it is on, which holes make possible, is a *FormatError.
func (o Packer) PackRoot(ctx context.Context, w io.Writer, root *os.Root, file, name string) error {
	out := bufio.NewWriterSize(w, bufSize)
	p := &packing{Packer: o, tw: tar.NewWriter(out), buf: make([]byte, bufSize), links: map[inode]string{}}
	parent := root
	if dir := path.Dir(file); dir != "." {
		opened, err := root.OpenRoot(dir)
		if err != nil {
			return err
		}
		defer opened.Close()
		parent = opened
	}
	if err := p.addAt(ctx, parent, path.Base(file), name, 0); err != nil {
		return err
	}
	if err := p.tw.Close(); err != nil {
		return err
	}
	return out.Flush()
}

// addAt adds what is at base, a single name, in the directory dir.
func (p *packing) addAt(ctx context.Context, dir *os.Root, base, name string, depth int) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	st, err := dir.Lstat(base)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	switch mode := st.Mode(); {
	case mode.IsRegular():
		return p.fileAt(dir, base, name)
	case mode.IsDir():
		return p.dirAt(ctx, dir, base, name, st, depth)
	case mode&fs.ModeSymlink != 0:
		target, err := dir.Readlink(base)
		if err != nil {
			return gone(err)
		}
		h := p.header(name, st)
		h.Typeflag, h.Linkname = tar.TypeSymlink, target
		return p.tw.WriteHeader(h)
	case p.Strict:
		return fmt.Errorf("%s is a socket, a FIFO or a device: %w", name, syscall.EXDEV)
	}
	return nil
}

// gone forgives what another process did since the file was looked at: it is no
// more, or something else.
func gone(err error) error {
	var errno syscall.Errno
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ELOOP), errors.Is(err, syscall.ENOTDIR),
		errors.Is(err, syscall.EINVAL), errors.Is(err, syscall.ENXIO):
		return nil
	case !errors.As(err, &errno): // os.Root's answer to a link that leads out
		return nil
	}
	return err
}

func (p *packing) dirAt(ctx context.Context, parent *os.Root, base, name string, st fs.FileInfo, depth int) error {
	if depth >= maxLevels {
		return &FormatError{fmt.Sprintf("%.200q nests deeper than %d levels", name, maxLevels)}
	}
	dir, err := parent.OpenRoot(base)
	if err != nil {
		return gone(err)
	}
	defer dir.Close()
	list, err := dir.Open(".")
	if err != nil {
		return err
	}
	defer list.Close()
	if now, err := list.Stat(); err != nil || !os.SameFile(st, now) {
		return err
	}
	if name != "." {
		h := p.header(name+"/", st)
		h.Typeflag, h.PAXRecords = tar.TypeDir, xattrsOf(list)
		if err := p.tw.WriteHeader(h); err != nil {
			return err
		}
	}
	for {
		names, err := list.Readdirnames(listing)
		for _, item := range names {
			if err := p.addAt(ctx, dir, item, path.Join(name, item), depth+1); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return gone(err)
		}
	}
}

func (p *packing) fileAt(dir *os.Root, base, name string) error {
	f, err := dir.OpenFile(base, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return gone(err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil || !st.Mode().IsRegular() {
		return err
	}
	if err := possible(f, st.Size()); err != nil {
		return &FormatError{fmt.Sprintf("%.200q %v", name, err)}
	}
	return p.content(f, st, name)
}

// possible refuses a file that is nothing but holes for the most part: writing
// those out could take years.
func possible(f *os.File, size int64) error {
	if size < 1<<20 {
		return nil
	}
	var st unix.Statfs_t
	if unix.Fstatfs(int(f.Fd()), &st) != nil || st.Blocks == 0 {
		return nil
	}
	if uint64(size)/uint64(st.Bsize) > st.Blocks {
		return fmt.Errorf("has %d MB, more than its file system: it is sparse, and cannot be packed", size>>20)
	}
	return nil
}
