package oci

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/disk"
)

const (
	whiteout = ".wh."
	opaque   = ".wh..wh..opq"
	reserved = ".wh..wh." // what else begins like this is another tool's own

	paxXattr   = "SCHILY.xattr."
	pathMost   = 4096
	depthMost  = 512 // directories above an entry; more is an attack
	linkMost   = 4095
	holeBlock  = 4096
	extraModes = unix.S_ISUID | unix.S_ISGID | unix.S_ISVTX
)

// unpacker applies the layers of one image to a tree.
type unpacker struct {
	tree *tree
	left Limits
	grow *growth
}

// latest is the newest time that image files can hold; a newer one is from a wrong
// clock.
var latest = time.Unix(4102444800, 0)

// layer is what is known while one layer is applied.
type layer struct {
	*unpacker
	// mine holds the paths that this layer brought, without links: a
	// whiteout hides lower layers only.
	mine map[string]bool
	// above holds the directories that mine are in.
	above map[string]bool
	// dirs get their times when nothing in them changes any more.
	dirs map[string]unix.Timespec
}

// apply unpacks one layer, an uncompressed tar, over those before it.
func (u *unpacker) apply(ctx context.Context, r io.Reader) error {
	l := &layer{unpacker: u, mine: map[string]bool{}, above: map[string]bool{}, dirs: map[string]unix.Timespec{}}
	in := tar.NewReader(r)
	for {
		if err := ctx.Err(); err != nil {
			return cay.Wrap(cay.Unavailable, err, "unpacking was cancelled")
		}
		h, err := in.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return cay.Wrap(cay.Invalid, err, "a layer is not a good tar: %v", err)
		}
		if u.left.Entries--; u.left.Entries < 0 {
			return cay.Errorf(cay.Exhausted, "the image has too many files")
		}
		if err := l.entry(h, in); err != nil {
			return entryError(h.Name, err)
		}
	}
	// Bytes behind the end of the archive are part of the layer's checksum.
	if _, err := io.Copy(io.Discard, r); err != nil {
		return cay.Wrap(cay.Invalid, err, "a layer ends early: %v", err)
	}
	return l.setTimes()
}

// entryError names the entry that failed. An error of the disk is not the image's
// fault; every other one is.
func entryError(name string, err error) error {
	var ours *cay.Error
	switch {
	case errors.As(err, &ours):
		return err
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return cay.Wrap(cay.NoSpace, err, "no space left to unpack the image")
	case errors.Is(err, syscall.EIO), errors.Is(err, syscall.EROFS), errors.Is(err, syscall.EMFILE):
		return disk.Error(err, "unpack %.200q", name)
	}
	return cay.Wrap(cay.Invalid, err, "the image's entry %.200q cannot be unpacked: %v", name, err)
}

func (l *layer) entry(h *tar.Header, body io.Reader) error {
	name := strings.TrimPrefix(path.Clean("/"+h.Name), "/")
	if len(name) > pathMost || strings.Count(name, "/") > depthMost || strings.ContainsRune(name, 0) {
		return errors.New("its path is too long")
	}
	if name == "" { // the root itself
		if h.Typeflag != tar.TypeDir {
			return errors.New("the root of an image is a directory")
		}
		return l.finish(h, place{fd: int(l.tree.root.Fd())}, ".")
	}
	parent, base := path.Split(name)
	dir, err := l.tree.dir(strings.TrimSuffix(parent, "/"))
	if err != nil {
		return err
	}
	if hidden, ok := strings.CutPrefix(base, whiteout); ok {
		return l.hide(dir, base, hidden)
	}
	if err := l.make(h, dir, base, body); err != nil {
		return err
	}
	l.materialize(path.Join(dir.path, base))
	return nil
}

func (l *layer) materialize(full string) {
	l.mine[full] = true
	for dir := path.Dir(full); dir != "." && !l.above[dir]; dir = path.Dir(dir) {
		l.above[dir] = true
	}
}

// brought reports whether this layer has the path or something below it.
func (l *layer) brought(full string) bool { return l.mine[full] || l.above[full] }

// hide removes what a whiteout is about, but not what this layer brought.
func (l *layer) hide(dir place, base, hidden string) error {
	switch {
	case base == opaque:
		return l.clear(dir)
	case strings.HasPrefix(base, reserved):
		return nil // a hard link pool of aufs, and the like
	case hidden == "" || hidden == "." || hidden == "..":
		return errors.New("a whiteout must name a file")
	}
	if full := path.Join(dir.path, hidden); l.brought(full) {
		return l.clearBelow(dir, hidden, full)
	}
	return l.tree.remove(dir, hidden)
}

// clear empties a directory of what lower layers put there.
func (l *layer) clear(dir place) error {
	entries, err := os.ReadDir(procPath(dir.fd) + "/.")
	if err != nil {
		return err
	}
	for _, e := range entries {
		full := path.Join(dir.path, e.Name())
		switch {
		case !l.brought(full):
			if err := l.tree.remove(dir, e.Name()); err != nil {
				return err
			}
		case e.IsDir():
			if err := l.clearBelow(dir, e.Name(), full); err != nil {
				return err
			}
		}
	}
	return nil
}

// clearBelow empties what this layer brought, if it is a directory, of what
// lower layers have in it.
func (l *layer) clearBelow(dir place, base, full string) error {
	fd, err := unix.Openat(dir.fd, base, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return l.clear(place{fd: fd, path: full})
}

// make makes one entry. A directory that is there is kept; anything else that
// is in the way goes.
func (l *layer) make(h *tar.Header, dir place, base string, body io.Reader) error {
	st, err := lstat(dir, base)
	if err != nil {
		return err
	}
	if st != nil && !(isDir(st) && h.Typeflag == tar.TypeDir) {
		if err := l.tree.remove(dir, base); err != nil {
			return err
		}
		st = nil
	}
	switch h.Typeflag {
	case tar.TypeDir:
		if st == nil {
			if err := unix.Mkdirat(dir.fd, base, 0o755); err != nil {
				return err
			}
		}
	case tar.TypeReg:
		return l.file(h, dir, base, body)
	case tar.TypeSymlink:
		if h.Linkname == "" || len(h.Linkname) > linkMost {
			return errors.New("a symbolic link leads to an unusable name")
		}
		if err := unix.Symlinkat(h.Linkname, dir.fd, base); err != nil {
			return err
		}
	case tar.TypeLink:
		return l.link(h, dir, base)
	case tar.TypeFifo:
		if err := unix.Mknodat(dir.fd, base, unix.S_IFIFO|0o600, 0); err != nil {
			return err
		}
	case tar.TypeChar, tar.TypeBlock:
		return nil // a sandbox has devices of its own, and the host lends none
	default:
		return fmt.Errorf("it is of an unknown kind %q", h.Typeflag)
	}
	return l.finish(h, dir, base)
}

// link makes a hard link to an entry of this or a lower layer.
func (l *layer) link(h *tar.Header, dir place, base string) error {
	target := strings.TrimPrefix(path.Clean("/"+h.Linkname), "/")
	if target == "" || len(target) > pathMost {
		return errors.New("a hard link leads to an unusable name")
	}
	parent, name := path.Split(target)
	fd, err := l.tree.resolve(strings.TrimSuffix(parent, "/"), unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return fmt.Errorf("its target %.200q: %w", h.Linkname, err)
	}
	defer unix.Close(fd)
	st, err := lstat(place{fd: fd}, name)
	if err != nil {
		return err
	}
	if st == nil || isDir(st) {
		return fmt.Errorf("its target %.200q is no file of the image", h.Linkname)
	}
	return unix.Linkat(fd, name, dir.fd, base, 0)
}

// file writes a regular file. Blocks of zeros become holes.
func (l *layer) file(h *tar.Header, dir place, base string, body io.Reader) error {
	if h.Size < 0 || h.Size > l.left.Bytes {
		return cay.Errorf(cay.Exhausted, "the image is larger than allowed")
	}
	l.left.Bytes -= h.Size
	if err := l.grow.take(h.Size); err != nil {
		return err
	}
	fd, err := unix.Openat(dir.fd, base, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), base)
	if err := writeSparse(f, body, h.Size); err != nil {
		f.Close()
		return err
	}
	if err := l.owner(h, fd); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}

var zeros [holeBlock]byte

func writeSparse(f *os.File, body io.Reader, size int64) error {
	buf := make([]byte, 32*holeBlock)
	var at int64
	for at < size {
		n, err := io.ReadFull(body, buf[:min(int64(len(buf)), size-at)])
		if err != nil {
			return fmt.Errorf("its content ends early: %w", err)
		}
		if err := writeBlocks(f, buf[:n], at); err != nil {
			return err
		}
		at += int64(n)
	}
	return f.Truncate(size)
}

func writeBlocks(f *os.File, data []byte, at int64) error {
	for len(data) > 0 {
		n := min(len(data), holeBlock)
		if n < holeBlock || string(data[:n]) != string(zeros[:]) {
			// Runs of data go out in one call.
			for n < len(data) {
				next := data[n:min(n+holeBlock, len(data))]
				if len(next) == holeBlock && string(next) == string(zeros[:]) {
					break
				}
				n += len(next)
			}
			if _, err := f.WriteAt(data[:n], at); err != nil {
				return err
			}
		}
		data, at = data[n:], at+int64(n)
	}
	return nil
}

// owner gives an open file its owner, attributes, mode and time, in the order
// in which one does not undo another.
func (l *layer) owner(h *tar.Header, fd int) error {
	if err := unix.Fchown(fd, h.Uid, h.Gid); err != nil {
		return err
	}
	for name, value := range xattrs(h) {
		if err := tolerate(unix.Fsetxattr(fd, name, []byte(value), 0)); err != nil {
			return err
		}
	}
	if err := unix.Fchmod(fd, modeOf(h)); err != nil {
		return err
	}
	ts := []unix.Timespec{timeOf(h), timeOf(h)}
	return unix.UtimesNanoAt(unix.AT_FDCWD, procPath(fd), ts, 0)
}

// finish gives what is not a regular file its owner, mode and time.
func (l *layer) finish(h *tar.Header, dir place, base string) error {
	if err := unix.Fchownat(dir.fd, base, h.Uid, h.Gid, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	ts := timeOf(h)
	if h.Typeflag == tar.TypeSymlink {
		return unix.UtimesNanoAt(dir.fd, base, []unix.Timespec{ts, ts}, unix.AT_SYMLINK_NOFOLLOW)
	}
	if err := unix.Fchmodat(dir.fd, base, modeOf(h), 0); err != nil { // no link: it was made above
		return err
	}
	for name, value := range xattrs(h) {
		if err := tolerate(unix.Lsetxattr(below(dir, base), name, []byte(value), 0)); err != nil {
			return err
		}
	}
	if h.Typeflag == tar.TypeDir {
		l.dirs[path.Join(dir.path, base)] = ts
		return nil
	}
	return unix.UtimesNanoAt(dir.fd, base, []unix.Timespec{ts, ts}, unix.AT_SYMLINK_NOFOLLOW)
}

// setTimes gives directories their times, now that they are full.
func (l *layer) setTimes() error {
	l.tree.forget()
	for name, ts := range l.dirs {
		fd, err := l.tree.resolve(name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW)
		if err != nil {
			continue // this layer replaced it again
		}
		err = unix.UtimesNanoAt(unix.AT_FDCWD, procPath(fd), []unix.Timespec{ts, ts}, 0)
		unix.Close(fd)
		if err != nil {
			return entryError(name, err)
		}
	}
	return nil
}

func modeOf(h *tar.Header) uint32 {
	return uint32(h.Mode) & (uint32(fs.ModePerm) | extraModes)
}

// timeOf keeps what the image says within what every file system can hold.
func timeOf(h *tar.Header) unix.Timespec {
	t := h.ModTime
	if t.Before(time.Unix(0, 0)) || t.After(latest) {
		t = time.Unix(0, 0)
	}
	return unix.NsecToTimespec(t.UnixNano())
}

// xattrs are the attributes that mean something to a program in a sandbox.
// The rest belongs to the machine that packed the layer.
func xattrs(h *tar.Header) map[string]string {
	out := map[string]string{}
	for key, value := range h.PAXRecords {
		name, ok := strings.CutPrefix(key, paxXattr)
		if ok && len(name) <= 255 && len(value) <= 64<<10 &&
			(strings.HasPrefix(name, "user.") || name == "security.capability") {
			out[name] = value
		}
	}
	return out
}

// tolerate lets pass that a file system knows no such attribute.
func tolerate(err error) error {
	if errors.Is(err, unix.ENOTSUP) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.E2BIG) {
		return nil
	}
	return err
}
