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
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Owner is the account that owns all unpacked files.
type Owner struct{ UID, GID int }

// Stats counts what was unpacked.
type Stats struct {
	Entries int64 `json:"entries"`
	Bytes   int64 `json:"bytes"`
}

// Unpacker says how archives are unpacked.
type Unpacker struct {
	// Owner owns all that is made; without one, files keep the archive's owners and
	// set-id bits.
	Owner *Owner
	// Strict fails at FIFOs and devices, which are left out otherwise.
	Strict bool
	// Endless unpacks any number of entries, as long as their directories can be
	// remembered.
	Endless bool
}

type unpacking struct {
	Unpacker
	root  *os.Root
	open  []level // the directories down to the one that the last entry is in
	buf   []byte
	dirs  []*tar.Header // whose modes and times are set last
	stats Stats
}

// level is an open directory on the way to an entry.
type level struct {
	name string // from the root
	dir  *os.Root
}

// Unpack reads a tar into the directory dir, which must exist. All that it
// makes belongs to owner; without one, files keep the archive's owners and
// set-id bits. Sockets, FIFOs and devices are left out. The error is
// *FormatError where the archive is at fault. Files unpacked before an error
// stay, but no part of a file does.
func Unpack(ctx context.Context, r io.Reader, dir string, owner *Owner) (Stats, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return Stats{}, err
	}
	defer root.Close()
	return Unpacker{Owner: owner}.Into(ctx, root, r)
}

// Into reads a tar into the directory root, as Unpack does. Another process may
// change what is below meanwhile, and leads nothing outside.
func (o Unpacker) Into(ctx context.Context, root *os.Root, r io.Reader) (Stats, error) {
	u := &unpacking{Unpacker: o, root: root, buf: make([]byte, bufSize)}
	defer u.leave(0)
	tr := tar.NewReader(bufio.NewReaderSize(r, bufSize))
	content := lasting{ctx, tr}
	for {
		if err := ctx.Err(); err != nil {
			return u.stats, err
		}
		h, err := tr.Next()
		if err == io.EOF {
			return u.stats, u.finish(ctx)
		}
		if err != nil {
			return u.stats, readError(err)
		}
		u.stats.Entries++
		if err := u.bounded(); err != nil {
			return u.stats, err
		}
		if err := u.entry(h, content); err != nil {
			return u.stats, err
		}
	}
}

// lasting ends a reader with its context: the holes of a sparse file are read
// from nowhere.
type lasting struct {
	ctx context.Context
	io.Reader
}

func (l lasting) Read(p []byte) (int, error) {
	if err := l.ctx.Err(); err != nil {
		return 0, err
	}
	return l.Reader.Read(p)
}

// bounded refuses to remember more of an archive than there is room for.
func (u *unpacking) bounded() error {
	switch {
	case u.Endless && len(u.dirs) > maxEntries/2:
		return &FormatError{fmt.Sprintf("the archive has more than %d directories", maxEntries/2)}
	case !u.Endless && u.stats.Entries > maxEntries:
		return &FormatError{fmt.Sprintf("the archive has more than %d entries", maxEntries)}
	}
	return nil
}

// readError tells a bad archive from a reader that failed.
func readError(err error) error {
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF):
		return &FormatError{"the archive ends too early"}
	case errors.Is(err, tar.ErrHeader), errors.Is(err, tar.ErrFieldTooLong):
		return &FormatError{"the archive is not a tar that can be read"}
	}
	return err
}

// Deep reports whether a path has more bytes or levels than an archive's may.
// Without a bound, a few bytes of an archive make work that grows with their square.
func Deep(name string) bool {
	return len(name) > maxName || strings.Count(name, "/") >= maxLevels
}

// local cleans a name of the archive and refuses one that leads out.
func local(name string) (string, error) {
	clean := path.Clean(name)
	switch {
	case name == "" || strings.ContainsRune(name, 0) || path.IsAbs(clean) || clean == ".." || strings.HasPrefix(clean, "../"):
		return "", &FormatError{fmt.Sprintf("the archive's entry %.200q does not stay in the directory", name)}
	case Deep(clean):
		return "", &FormatError{fmt.Sprintf("the archive's entry %.200q has a path of more than %d bytes or %d levels", name, maxName, maxLevels)}
	}
	return clean, nil
}

func (u *unpacking) entry(h *tar.Header, r io.Reader) error {
	if h.Typeflag == tar.TypeXGlobalHeader {
		return nil
	}
	name, err := local(h.Name)
	if err != nil {
		return err
	}
	if name == "." { // the directory itself stays as it is
		return nil
	}
	h.Name = name
	in, err := u.enter(path.Dir(name), u.mkdir)
	if err != nil {
		return u.outside(name, err)
	}
	switch h.Typeflag {
	case tar.TypeDir:
		err = u.dir(in, h)
	case tar.TypeReg, tar.TypeGNUSparse:
		err = u.file(in, h, r)
	case tar.TypeSymlink:
		err = u.symlink(in, h)
	case tar.TypeLink:
		err = u.link(h)
	default:
		if u.Strict {
			err = &FormatError{fmt.Sprintf("the archive's entry %.200q is a FIFO, a device or of a kind that is not known", name)}
		}
	}
	return u.outside(name, err)
}

// outside names the entry in errors of os.Root that have no errno: its answer
// to a link that leads out.
func (u *unpacking) outside(name string, err error) error {
	var errno syscall.Errno
	var pe *fs.PathError
	var le *os.LinkError
	if err == nil || errors.As(err, &errno) || !errors.As(err, &pe) && !errors.As(err, &le) {
		return err
	}
	return &FormatError{fmt.Sprintf("the archive's entry %.200q does not stay in the directory", name)}
}

// enter opens the directory that an entry is in, from the nearest one on the way
// that is open. Each step is prepared before it is taken.
func (u *unpacking) enter(dir string, prepare func(in *os.Root, name string) error) (*os.Root, error) {
	keep := len(u.open)
	for keep > 0 && !within(dir, u.open[keep-1].name) {
		keep--
	}
	u.leave(keep)
	in, at := u.root, "."
	if keep > 0 {
		in, at = u.open[keep-1].dir, u.open[keep-1].name
	}
	if dir == at {
		return in, nil
	}
	rest := dir
	if at != "." {
		rest = dir[len(at)+1:]
	}
	for part := range strings.SplitSeq(rest, "/") {
		at = path.Join(at, part)
		if err := prepare(in, at); err != nil {
			return nil, err
		}
		next, err := in.OpenRoot(part)
		if err != nil {
			return nil, err
		}
		u.open = append(u.open, level{at, next})
		in = next
	}
	return in, nil
}

// within reports whether a path is a directory or below it.
func within(name, dir string) bool {
	return strings.HasPrefix(name, dir) && (len(name) == len(dir) || name[len(dir)] == '/')
}

// leave closes all but so many of the open directories.
func (u *unpacking) leave(keep int) {
	for _, l := range u.open[keep:] {
		_ = l.dir.Close()
	}
	u.open = u.open[:keep]
}

// mkdir makes a directory, which the archive may not have named, unless it is there.
func (u *unpacking) mkdir(in *os.Root, name string) error { return u.mkdirAs(in, name, nil) }

// mkdirAs makes a directory unless it is there. A link in its place is neither
// followed nor taken away.
//
// The check of every directory on the way to an entry keeps an archive inside.
// os.Root alone does not, where this runs: it opens directories
// with O_DIRECTORY|O_NOFOLLOW, and gVisor follows links all the same.
func (u *unpacking) mkdirAs(in *os.Root, name string, h *tar.Header) error {
	last := path.Base(name)
	st, err := in.Lstat(last)
	switch {
	case err == nil && st.IsDir():
		return nil
	case err == nil && st.Mode()&fs.ModeSymlink != 0:
		return &FormatError{fmt.Sprintf("the archive's directory %.200q is a link here, which is not followed", name)}
	}
	if err := replace(in, name); err != nil {
		return err
	}
	if err := in.Mkdir(last, 0o755); err != nil {
		return err
	}
	return u.chown(in, last, h)
}

func (u *unpacking) dir(in *os.Root, h *tar.Header) error {
	if err := u.mkdirAs(in, h.Name, h); err != nil {
		return err
	}
	u.dirs = append(u.dirs, h)
	return nil
}

// replace takes a file or link out of the way. A directory stays, and is an
// error.
func replace(in *os.Root, name string) error {
	last := path.Base(name)
	st, err := in.Lstat(last)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if st.IsDir() {
		return &FormatError{fmt.Sprintf("a directory is in the way of the archive's entry %.200q", name)}
	}
	return in.Remove(last)
}

func (u *unpacking) file(in *os.Root, h *tar.Header, r io.Reader) error {
	if err := u.room(h.Size); err != nil {
		return err
	}
	const flags = os.O_WRONLY | os.O_CREATE | os.O_EXCL
	last := path.Base(h.Name)
	f, err := in.OpenFile(last, flags, 0o600)
	if errors.Is(err, fs.ErrExist) {
		if err := replace(in, h.Name); err != nil {
			return err
		}
		f, err = in.OpenFile(last, flags, 0o600)
	}
	if err != nil {
		return err
	}
	n, err := io.CopyBuffer(struct{ io.Writer }{f}, struct{ io.Reader }{r}, u.buf)
	if err != nil {
		err = readError(err)
	} else {
		err = u.seal(f, h)
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		_ = in.Remove(last) // no part of a file stays
		return err
	}
	u.stats.Bytes += n
	_ = in.Chtimes(last, time.Time{}, clampTime(h.ModTime)) // a time that cannot be set is no loss
	return nil
}

// seal gives an open file its owner, attributes and mode, in the order in
// which one does not undo the other.
func (u *unpacking) seal(f *os.File, h *tar.Header) error {
	uid, gid := u.ids(h)
	if err := f.Chown(uid, gid); err != nil {
		return err
	}
	for key, value := range h.PAXRecords {
		name, ok := strings.CutPrefix(key, xattrPrefix)
		if !ok || !strings.HasPrefix(name, "user.") {
			continue
		}
		err := unix.Fsetxattr(int(f.Fd()), name, []byte(value), 0)
		if err != nil && !errors.Is(err, unix.EOPNOTSUPP) {
			return &fs.PathError{Op: "setxattr", Path: h.Name, Err: err}
		}
	}
	return f.Chmod(u.mode(h))
}

func (u *unpacking) symlink(in *os.Root, h *tar.Header) error {
	if err := replace(in, h.Name); err != nil {
		return err
	}
	// Where it leads does not matter: nothing here follows it out.
	last := path.Base(h.Name)
	if err := in.Symlink(h.Linkname, last); err != nil {
		return err
	}
	return u.chown(in, last, h)
}

func (u *unpacking) link(h *tar.Header) error {
	target, err := local(h.Linkname)
	if err != nil {
		return err
	}
	if target == h.Name {
		return nil
	}
	if _, err := u.enter(path.Dir(target), u.mkdir); err != nil {
		return err
	}
	in, err := u.enter(path.Dir(h.Name), u.mkdir)
	if err != nil {
		return err
	}
	if err := replace(in, h.Name); err != nil {
		return err
	}
	err = u.root.Link(target, h.Name)
	if errors.Is(err, fs.ErrNotExist) {
		return &FormatError{fmt.Sprintf("the archive links to %.200q, which is not there", target)}
	}
	return err
}

// finish sets what unpacking into a directory would have changed.
func (u *unpacking) finish(ctx context.Context) error {
	for i := len(u.dirs) - 1; i >= 0; i-- {
		if err := ctx.Err(); err != nil {
			return err
		}
		h := u.dirs[i]
		in, err := u.enter(path.Dir(h.Name), there)
		if err == nil {
			err = there(in, h.Name)
		}
		if err != nil {
			continue // something else took its place
		}
		last := path.Base(h.Name)
		if err := in.Chmod(last, u.mode(h)); err != nil {
			return err
		}
		_ = in.Chtimes(last, time.Time{}, clampTime(h.ModTime)) // as above
	}
	return nil
}

// there fails unless a name is a directory.
func there(in *os.Root, name string) error {
	st, err := in.Lstat(path.Base(name))
	if err == nil && !st.IsDir() {
		err = syscall.ENOTDIR
	}
	return err
}

func (u *unpacking) ids(h *tar.Header) (uid, gid int) {
	if u.Owner != nil {
		return u.Owner.UID, u.Owner.GID
	}
	if h == nil {
		return os.Getuid(), os.Getgid()
	}
	return h.Uid, h.Gid
}

func (u *unpacking) chown(in *os.Root, name string, h *tar.Header) error {
	uid, gid := u.ids(h)
	return in.Lchown(name, uid, gid)
}

func (u *unpacking) mode(h *tar.Header) fs.FileMode {
	m := fs.FileMode(h.Mode & 0o777)
	if u.Owner != nil {
		return m
	}
	for bit, flag := range map[int64]fs.FileMode{0o4000: fs.ModeSetuid, 0o2000: fs.ModeSetgid, 0o1000: fs.ModeSticky} {
		if h.Mode&bit != 0 {
			m |= flag
		}
	}
	return m
}

// room refuses a file that cannot fit: an archive of a few bytes can announce
// exabytes of holes.
func (u *unpacking) room(size int64) error {
	if size < 1<<20 {
		return nil
	}
	d, err := u.root.Open(".")
	if err != nil {
		return err
	}
	defer d.Close()
	var st unix.Statfs_t
	if unix.Fstatfs(int(d.Fd()), &st) != nil || st.Blocks == 0 {
		return nil // unknown: writing will tell
	}
	if free := st.Bfree; uint64(size)/uint64(st.Bsize) > free {
		return syscall.ENOSPC
	}
	return nil
}
