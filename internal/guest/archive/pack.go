package archive

import (
	"archive/tar"
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"syscall"
	"time"
)

// Packer says how trees are packed.
type Packer struct {
	// User and Group name owners; nil leaves them to their numbers.
	User, Group func(id uint32) string
	// Strict fails at sockets, FIFOs and devices, which are left out
	// otherwise.
	Strict bool
}

// inode tells hard links to one file.
type inode struct{ dev, ino uint64 }

type packing struct {
	Packer
	tw    *tar.Writer
	buf   []byte
	links map[inode]string
}

// Pack writes a tar of what is at root to w. Its entries are named name and
// name/…; with name "." a directory's own entry is left out and those inside
// are relative to it. Files that vanish meanwhile are left out, one that
// shrinks is filled with zeros.
func (o Packer) Pack(w io.Writer, root, name string) error {
	out := bufio.NewWriterSize(w, bufSize)
	p := &packing{Packer: o, tw: tar.NewWriter(out), buf: make([]byte, bufSize), links: map[inode]string{}}
	if err := p.add(root, name); err != nil {
		return err
	}
	if err := p.tw.Close(); err != nil {
		return err
	}
	return out.Flush()
}

func (p *packing) add(file, name string) error {
	st, err := os.Lstat(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	switch mode := st.Mode(); {
	case mode.IsRegular():
		return p.file(file, name)
	case mode.IsDir():
		return p.dir(file, name, st)
	case mode&fs.ModeSymlink != 0:
		target, err := os.Readlink(file)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		h := p.header(name, st)
		h.Typeflag, h.Linkname = tar.TypeSymlink, target
		return p.tw.WriteHeader(h)
	case p.Strict:
		return fmt.Errorf("%s is a socket, a FIFO or a device: %w", file, syscall.EXDEV)
	}
	return nil
}

func (p *packing) dir(file, name string, st fs.FileInfo) error {
	if name != "." {
		h := p.header(name+"/", st)
		h.Typeflag, h.PAXRecords = tar.TypeDir, userXattrs(file)
		if err := p.tw.WriteHeader(h); err != nil {
			return err
		}
	}
	items, err := os.ReadDir(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, item := range items {
		if err := p.add(filepath.Join(file, item.Name()), path.Join(name, item.Name())); err != nil {
			return err
		}
	}
	return nil
}

func (p *packing) file(file, name string) error {
	// A file of a moment ago may be anything now.
	f, err := os.OpenFile(file, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ELOOP) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil || !st.Mode().IsRegular() {
		return err
	}
	return p.content(f, st, name)
}

// content adds a file that is open.
func (p *packing) content(f *os.File, st fs.FileInfo, name string) error {
	h := p.header(name, st)
	if first, ok := p.linked(st, name); ok {
		h.Typeflag, h.Linkname = tar.TypeLink, first
		return p.tw.WriteHeader(h)
	}
	h.Typeflag, h.Size, h.PAXRecords = tar.TypeReg, st.Size(), xattrsOf(f)
	if err := p.tw.WriteHeader(h); err != nil {
		return err
	}
	n, err := io.CopyBuffer(struct{ io.Writer }{p.tw}, io.LimitReader(f, h.Size), p.buf)
	if err != nil {
		return err
	}
	return p.fill(h.Size - n)
}

// fill writes n zeros.
func (p *packing) fill(n int64) error {
	if n <= 0 {
		return nil
	}
	clear(p.buf)
	for n > 0 {
		k, err := p.tw.Write(p.buf[:min(n, int64(len(p.buf)))])
		if err != nil {
			return err
		}
		n -= int64(k)
	}
	return nil
}

// linked returns the name under which a file with several links was packed
// before.
func (p *packing) linked(st fs.FileInfo, name string) (string, bool) {
	sys, ok := st.Sys().(*syscall.Stat_t)
	if !ok || sys.Nlink < 2 {
		return "", false
	}
	key := inode{dev: uint64(sys.Dev), ino: sys.Ino}
	if first, ok := p.links[key]; ok {
		return first, true
	}
	if len(p.links) < maxEntries {
		p.links[key] = name
	}
	return "", false
}

func (p *packing) header(name string, st fs.FileInfo) *tar.Header {
	h := &tar.Header{Format: tar.FormatPAX, Name: name, Mode: int64(st.Mode().Perm()), ModTime: clampTime(st.ModTime())}
	sys, ok := st.Sys().(*syscall.Stat_t)
	if !ok {
		return h
	}
	h.Mode = int64(sys.Mode & 0o7777)
	h.Uid, h.Gid = int(sys.Uid), int(sys.Gid)
	if p.User != nil {
		h.Uname = p.User(sys.Uid)
	}
	if p.Group != nil {
		h.Gname = p.Group(sys.Gid)
	}
	return h
}

// clampTime keeps to times that a header can say.
func clampTime(t time.Time) time.Time {
	if t.Year() < 1 || t.Year() > 9999 {
		return time.Unix(0, 0)
	}
	return t
}
