// Package tree reads and writes the files of a volume from outside of the
// sandboxes that have it, while they change whatever they like.
//
// Every path is resolved by the kernel with the volume as its root (openat2,
// RESOLVE_IN_ROOT): a link, absolute or with "..", leads to another place of the
// volume or nowhere. The end of a path is kept as a file descriptor, and
// nothing is done by path after that. Neither a FIFO nor a device is opened.
package tree

import (
	"context"
	"crypto/rand"
	"errors"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/volume"
)

const (
	// MaxPath bounds a path, in bytes, and MaxParts the names in it.
	MaxPath  = 4096
	MaxParts = 256
	// MaxDepth bounds how deep a listing goes, and MaxEntries how long it is.
	MaxDepth   = 100
	MaxEntries = 100_000
	// maxText bounds a listing's names, paths and targets, in bytes: each entry
	// has its whole path.
	maxText = 32 << 20

	// lookAgain is how often a path is resolved that changes meanwhile.
	lookAgain = 64

	inVolume = unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV
	oneStep  = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV
)

// Tree is the directory of a volume.
type Tree struct {
	root *os.File
	most int // entries of a listing
	text int // bytes of their texts
}

// Open opens a directory.
func Open(dir string) (*Tree, error) {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, cay.Wrap(cay.Internal, err, "open a volume")
	}
	return &Tree{root: os.NewFile(uintptr(fd), dir), most: MaxEntries, text: maxText}, nil
}

// Close closes the directory.
func (t *Tree) Close() error { return t.root.Close() }

// The words for entries.
type (
	Entry = cay.VolumeEntry
	Meta  = cay.VolumeMeta
)

// The types of entries.
const (
	File      = cay.VolumeFile
	Directory = cay.VolumeDirectory
	Symlink   = cay.VolumeSymlink
	Unknown   = cay.VolumeUnknown
)

const (
	defaultUser = 1000
	defaultDir  = 0o755
	defaultFile = 0o644
)

// split cleans a path: it is relative to the volume, whether it begins with a
// slash or not.
func split(name string) ([]string, error) {
	switch {
	case name == "":
		return nil, cay.Errorf(cay.Invalid, "path: must not be empty")
	case len(name) > MaxPath:
		return nil, cay.Errorf(cay.Invalid, "path: has more than %d bytes", MaxPath)
	case !utf8.ValidString(name):
		return nil, cay.Errorf(cay.Invalid, "path: is not UTF-8")
	case strings.ContainsRune(name, 0):
		return nil, cay.Errorf(cay.Invalid, "path: holds a zero byte")
	}
	clean := strings.TrimPrefix(path.Clean("/"+name), "/")
	if clean == "" {
		return nil, nil
	}
	parts := strings.Split(clean, "/")
	if len(parts) > MaxParts {
		return nil, cay.Errorf(cay.Invalid, "path: has more than %d parts", MaxParts)
	}
	return parts, nil
}

func join(parts []string) string { return "/" + strings.Join(parts, "/") }

// open opens a path as a place, which reads nothing of it.
func (t *Tree) open(parts []string, flags int) (*os.File, error) {
	return openAt(t.root, "."+join(parts), flags|unix.O_PATH, inVolume)
}

// openAt opens a path below a directory.
func openAt(dir *os.File, name string, flags int, resolve uint64) (*os.File, error) {
	how := &unix.OpenHow{Flags: uint64(flags | unix.O_CLOEXEC), Resolve: resolve}
	for try := 0; ; try++ {
		fd, err := unix.Openat2(int(dir.Fd()), name, how)
		switch {
		case err == nil:
			return os.NewFile(uintptr(fd), name), nil
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN) && try < lookAgain: // something was renamed on the way
			continue
		}
		return nil, err
	}
}

// parent opens the directory that a path ends in, and returns the last name.
func (t *Tree) parent(parts []string) (*os.File, string, error) {
	last := len(parts) - 1
	dir, err := t.open(parts[:last], unix.O_DIRECTORY)
	return dir, parts[last], err
}

// Stat looks at an entry; of a link, at the link.
func (t *Tree) Stat(name string) (Entry, error) {
	parts, err := split(name)
	if err != nil {
		return Entry{}, err
	}
	f, err := t.open(parts, unix.O_NOFOLLOW)
	if err != nil {
		return Entry{}, t.failed(err, parts)
	}
	defer f.Close()
	return t.entryOf(f, parts)
}

// entryOf looks at what is open.
func (t *Tree) entryOf(f *os.File, parts []string) (Entry, error) {
	e, err := look(f, "", parts)
	if err != nil {
		return Entry{}, t.failed(err, parts)
	}
	return e, nil
}

// look looks at a name in a directory, or at the open file itself.
func look(f *os.File, name string, parts []string) (Entry, error) {
	var st unix.Stat_t
	if err := unix.Fstatat(int(f.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW|unix.AT_EMPTY_PATH); err != nil {
		return Entry{}, err
	}
	e := Entry{
		Name: "/", Path: join(parts), Type: typeOf(st.Mode), Size: st.Size, Mode: st.Mode & 0o7777, UID: st.Uid, GID: st.Gid,
		Accessed: at(st.Atim), Modified: at(st.Mtim), Changed: at(st.Ctim),
	}
	if len(parts) > 0 {
		e.Name = parts[len(parts)-1]
	}
	if e.Type != Symlink {
		return e, nil
	}
	text := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(int(f.Fd()), name, text)
	if err != nil {
		return Entry{}, err
	}
	e.Target = string(text[:n])
	return e, nil
}

func at(t unix.Timespec) time.Time { return time.Unix(t.Sec, t.Nsec).UTC() }

func typeOf(mode uint32) cay.VolumeEntryType {
	switch mode & unix.S_IFMT {
	case unix.S_IFREG:
		return File
	case unix.S_IFDIR:
		return Directory
	case unix.S_IFLNK:
		return Symlink
	}
	return Unknown
}

// Mkdir makes a directory. With force it makes those above too, and takes one
// that is there as it is.
func (t *Tree) Mkdir(name string, force bool, meta Meta) (Entry, error) {
	parts, err := split(name)
	if err != nil {
		return Entry{}, err
	}
	if len(parts) == 0 {
		if !force {
			return Entry{}, t.failed(unix.EEXIST, parts)
		}
		return t.Stat(name)
	}
	var dir *os.File
	if force {
		dir, err = t.makeAll(parts, meta)
	} else {
		dir, err = t.makeOne(parts, meta)
	}
	if err != nil {
		return Entry{}, t.failed(err, parts)
	}
	defer dir.Close()
	return t.entryOf(dir, parts)
}

func (t *Tree) makeOne(parts []string, meta Meta) (*os.File, error) {
	dir, last, err := t.parent(parts)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	return makeDir(dir, last, meta)
}

// makeDir makes a directory in another and opens it.
func makeDir(in *os.File, name string, meta Meta) (*os.File, error) {
	if err := unix.Mkdirat(int(in.Fd()), name, 0o700); err != nil {
		return nil, err
	}
	dir, err := openAt(in, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW, oneStep)
	if err != nil {
		return nil, err
	}
	if err := set(dir, or(meta, defaultDir)); err != nil {
		dir.Close()
		return nil, err
	}
	return dir, nil
}

// makeAll opens a directory, and makes what lacks on the way. A guest that
// removes what was made is waited for only so often.
func (t *Tree) makeAll(parts []string, meta Meta) (*os.File, error) {
	var err error
	for range lookAgain {
		var dir *os.File
		if dir, err = t.tryAll(parts, meta); err == nil {
			return dir, nil
		}
		if !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ELOOP) {
			break
		}
	}
	return nil, err
}

func (t *Tree) tryAll(parts []string, meta Meta) (*os.File, error) {
	there := len(parts)
	var dir *os.File
	for ; ; there-- {
		var err error
		if dir, err = t.open(parts[:there], unix.O_DIRECTORY); err == nil {
			break
		}
		if !errors.Is(err, unix.ENOENT) || there == 0 {
			return nil, err
		}
	}
	for _, name := range parts[there:] {
		next, err := makeDir(dir, name, meta)
		if errors.Is(err, unix.EEXIST) { // another made it, or a link leads nowhere
			next, err = openAt(dir, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW, oneStep)
		}
		dir.Close()
		if err != nil {
			return nil, err
		}
		dir = next
	}
	return dir, nil
}

// or fills what is not said with the defaults.
func or(m Meta, mode uint32) Meta {
	user := uint32(defaultUser)
	if os.Geteuid() != 0 { // a test's files are its user's
		return Meta{UID: m.UID, GID: m.GID, Mode: orElse(m.Mode, &mode)}
	}
	return Meta{UID: orElse(m.UID, &user), GID: orElse(m.GID, &user), Mode: orElse(m.Mode, &mode)}
}

func orElse(v, other *uint32) *uint32 {
	if v != nil {
		return v
	}
	return other
}

// set gives what is open its owner and its mode. The owner comes first: a change
// of it takes bits of the mode away.
func set(f *os.File, m Meta) error {
	uid, gid := -1, -1
	if m.UID != nil {
		uid = int(*m.UID)
	}
	if m.GID != nil {
		gid = int(*m.GID)
	}
	if uid >= 0 || gid >= 0 {
		if err := unix.Fchownat(int(f.Fd()), "", uid, gid, unix.AT_EMPTY_PATH); err != nil {
			return err
		}
	}
	if m.Mode == nil {
		return nil
	}
	return unix.Chmod(self(f), *m.Mode)
}

// self is a path to what is open, which leads there wherever it is moved. It
// needs no rights on the way.
func self(f *os.File) string { return "/proc/self/fd/" + strconv.Itoa(int(f.Fd())) }

// SetMeta changes owner and mode of an entry; of a link, those of what it leads
// to.
func (t *Tree) SetMeta(name string, meta Meta) (Entry, error) {
	parts, err := split(name)
	if err != nil {
		return Entry{}, err
	}
	f, err := t.open(parts, 0)
	if err != nil {
		return Entry{}, t.failed(err, parts)
	}
	defer f.Close()
	if err := set(f, meta); err != nil {
		return Entry{}, t.failed(err, parts)
	}
	return t.entryOf(f, parts)
}

// Read opens a file for reading. It is a regular one, or the call fails.
func (t *Tree) Read(name string) (*os.File, Entry, error) {
	parts, err := split(name)
	if err != nil {
		return nil, Entry{}, err
	}
	place, err := t.open(parts, 0)
	if err != nil {
		return nil, Entry{}, t.failed(err, parts)
	}
	defer place.Close()
	e, err := t.entryOf(place, parts)
	if err != nil {
		return nil, Entry{}, err
	}
	if e.Type != File {
		return nil, Entry{}, cay.Errorf(cay.Invalid, "%s is a %s, and no file", e.Path, e.Type)
	}
	f, err := os.OpenFile(self(place), os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, Entry{}, t.failed(err, parts)
	}
	return f, e, nil
}

// Room is how many bytes more the volume takes.
func (t *Tree) Room() (int64, error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(t.root.Fd()), &st); err != nil {
		return 0, cay.Wrap(cay.Internal, err, "ask how full the volume is")
	}
	return int64(st.Bavail) * st.Bsize, nil
}

// List lists what is in a directory, and in those below it to a depth, each
// directory before what is in it.
func (t *Tree) List(ctx context.Context, name string, depth int) ([]Entry, error) {
	if depth < 1 || depth > MaxDepth {
		return nil, cay.Errorf(cay.Invalid, "depth: must be 1 to %d", MaxDepth).WithCode(cay.CodeDepth)
	}
	parts, err := split(name)
	if err != nil {
		return nil, err
	}
	place, err := t.open(parts, unix.O_DIRECTORY)
	if err != nil {
		return nil, t.failed(err, parts)
	}
	defer place.Close()
	out := listing{entries: []Entry{}}
	if err := t.list(ctx, place, parts, depth, &out); err != nil {
		return nil, t.failed(err, parts)
	}
	return out.entries, nil
}

// listing is what is listed so far.
type listing struct {
	entries []Entry
	text    int // bytes
}

func (t *Tree) list(ctx context.Context, place *os.File, parts []string, depth int, out *listing) error {
	names, err := t.names(ctx, place, len(out.entries))
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := ctx.Err(); err != nil {
			return err
		}
		below := append(parts[:len(parts):len(parts)], name)
		e, err := look(place, name, below)
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL) { // it was removed, or replaced
			continue
		}
		if err != nil {
			return err
		}
		if out.text += len(e.Path) + len(e.Target); out.text > t.text {
			return tooLong("the listing's paths have more than %d bytes", t.text)
		}
		out.entries = append(out.entries, e)
		if e.Type != Directory || depth == 1 {
			continue
		}
		dir, err := openAt(place, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW, oneStep)
		if err != nil {
			continue // the same
		}
		err = t.list(ctx, dir, below, depth-1, out)
		dir.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// Remove removes an entry, and what is in it; of a link, the link.
func (t *Tree) Remove(ctx context.Context, name string) error {
	parts, err := split(name)
	if err != nil {
		return err
	}
	if len(parts) == 0 {
		return cay.Errorf(cay.Invalid, "the root of a volume cannot be removed").WithCode(cay.CodeVolumeRoot)
	}
	dir, last, err := t.parent(parts)
	if err != nil {
		return t.failed(err, parts)
	}
	defer dir.Close()
	if err := remove(ctx, dir, last, 0); err != nil {
		return t.failed(err, parts)
	}
	return nil
}

const (
	// deepest bounds how many directories are open at once by one removal.
	deepest = 512
	// removeAgain is how often a directory is emptied that a guest fills
	// meanwhile.
	removeAgain = 16
)

func remove(ctx context.Context, in *os.File, name string, depth int) error {
	err := unix.Unlinkat(int(in.Fd()), name, 0)
	for again := 0; errors.Is(err, unix.EISDIR); again++ {
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case depth > deepest:
			return cay.Errorf(cay.Conflict, "directories are nested deeper than %d", deepest).WithHint("remove those inside first")
		case again > removeAgain:
			return cay.Errorf(cay.Conflict, "a directory is filled while it is removed").WithHint("end what writes there, and try again")
		}
		if err = empty(ctx, in, name, depth); err != nil {
			break
		}
		if err = unix.Unlinkat(int(in.Fd()), name, unix.AT_REMOVEDIR); errors.Is(err, unix.ENOTEMPTY) {
			err = unix.EISDIR
		}
	}
	if errors.Is(err, unix.ENOTDIR) { // it was replaced meanwhile
		err = unix.Unlinkat(int(in.Fd()), name, 0)
	}
	if errors.Is(err, unix.ENOENT) && depth > 0 {
		return nil
	}
	return err
}

// empty removes what is in a directory.
func empty(ctx context.Context, in *os.File, name string, depth int) error {
	dir, err := openAt(in, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, oneStep)
	if errors.Is(err, unix.ELOOP) {
		return unix.ENOTDIR
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		names, err := dir.Readdirnames(nameBatch)
		for _, name := range names {
			if err := remove(ctx, dir, name, depth+1); err != nil {
				return err
			}
		}
		if len(names) == 0 {
			return end(err)
		}
		// A removal may have moved other names, which are not passed over.
		if _, err := dir.Seek(0, 0); err != nil {
			return err
		}
	}
}

// failed says what failed with a path.
func (t *Tree) failed(err error, parts []string) error {
	var ours *cay.Error
	name := join(parts)
	switch {
	case errors.As(err, &ours):
		return err
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return cay.Wrap(cay.Unavailable, err, "the work on %.200q was called off", name)
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
		return cay.Wrap(cay.NotFound, err, "path %.200q not found", name).WithCode(cay.CodePathNotFound)
	case errors.Is(err, unix.EEXIST):
		return cay.Wrap(cay.Conflict, err, "path %.200q already exists", name).WithCode(cay.CodePathExists)
	case errors.Is(err, unix.EISDIR):
		return cay.Wrap(cay.Conflict, err, "path %.200q is a directory", name).WithCode(cay.CodePathExists)
	case errors.Is(err, unix.ENAMETOOLONG):
		return cay.Wrap(cay.Invalid, err, "path: %.200q has a name that is too long", name)
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.EXDEV), errors.Is(err, fs.ErrInvalid):
		return cay.Wrap(cay.Invalid, err, "path: %.200q leads to no place of the volume", name)
	case errors.Is(err, unix.EAGAIN):
		return cay.Wrap(cay.Unavailable, err, "path %.200q changes all the time", name)
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return cay.Wrap(cay.Denied, err, "path %.200q cannot be changed or read", name)
	}
	if failure := volume.Failure(t.root.Name(), err); failure != nil {
		return failure
	}
	return cay.Wrap(cay.Internal, err, "work on %.200q", name)
}

// temporary is a name that no guest knows.
func temporary() string { return ".cay-" + rand.Text() }
