package oci

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// tree is a directory that is written into as if it were the root of the file
// system. The kernel resolves every path (openat2 with RESOLVE_IN_ROOT), so a
// link that an image brings leads somewhere inside the tree or nowhere.
type tree struct {
	root *os.File

	// The directory that the last entry was in: the next one is mostly in it
	// too. Every removal lets go of it.
	last      string
	lastPlace place
}

// place is an open directory of the tree.
type place struct {
	fd   int
	path string // inside the tree, without links; "" is the root
}

func openTree(dir string) (*tree, error) {
	root, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	return &tree{root: root, lastPlace: place{fd: -1}}, nil
}

func (t *tree) close() error {
	t.forget()
	return t.root.Close()
}

// forget lets go of the remembered directory.
func (t *tree) forget() {
	if t.lastPlace.fd >= 0 {
		unix.Close(t.lastPlace.fd)
	}
	t.last, t.lastPlace = "", place{fd: -1}
}

// resolve opens a path inside the tree.
func (t *tree) resolve(name string, flags int) (int, error) {
	if name == "" {
		name = "."
	}
	for {
		fd, err := unix.Openat2(int(t.root.Fd()), name, &unix.OpenHow{
			Flags:   uint64(flags | unix.O_CLOEXEC),
			Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV,
		})
		// EAGAIN: the kernel saw a rename elsewhere while it resolved.
		if err != unix.EINTR && err != unix.EAGAIN {
			return fd, err
		}
	}
}

// dir opens the directory that an entry is in, and makes it when a layer names
// files without their directories. It stays open until the next call.
func (t *tree) dir(name string) (place, error) {
	if t.lastPlace.fd >= 0 && name == t.last {
		return t.lastPlace, nil
	}
	t.forget()
	fd, err := t.resolve(name, unix.O_PATH|unix.O_DIRECTORY)
	if errors.Is(err, unix.ENOENT) {
		if err := t.makeParents(name); err != nil {
			return place{}, err
		}
		fd, err = t.resolve(name, unix.O_PATH|unix.O_DIRECTORY)
	}
	if err != nil {
		return place{}, err
	}
	real, err := t.pathOf(fd)
	if err != nil {
		unix.Close(fd)
		return place{}, err
	}
	t.last, t.lastPlace = name, place{fd: fd, path: real}
	return t.lastPlace, nil
}

// makeParents makes the missing directories of a path, as the root would.
func (t *tree) makeParents(name string) error {
	parts := strings.Split(name, "/")
	for i := range parts {
		sub := path.Join(parts[:i+1]...)
		fd, err := t.resolve(sub, unix.O_PATH|unix.O_DIRECTORY)
		if err == nil {
			unix.Close(fd)
			continue
		}
		if !errors.Is(err, unix.ENOENT) {
			return err
		}
		parent, err := t.resolve(path.Join(parts[:i]...), unix.O_PATH|unix.O_DIRECTORY)
		if err != nil {
			return err
		}
		err = unix.Mkdirat(parent, parts[i], 0o755)
		unix.Close(parent)
		if err != nil { // a link that leads nowhere is there
			return err
		}
	}
	return nil
}

// pathOf returns where an open directory is inside the tree.
func (t *tree) pathOf(fd int) (string, error) {
	real, err := os.Readlink(procPath(fd))
	if err != nil {
		return "", err
	}
	root, err := os.Readlink(procPath(int(t.root.Fd())))
	if err != nil {
		return "", err
	}
	if real == root {
		return "", nil
	}
	inside, ok := strings.CutPrefix(real, strings.TrimSuffix(root, "/")+"/")
	if !ok {
		return "", fs.ErrInvalid // the kernel would have to be wrong
	}
	return inside, nil
}

func procPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// below returns a path by which functions that take one reach base in an open
// directory. Only the last part may be a link, and it must not be followed.
func below(dir place, base string) string { return filepath.Join(procPath(dir.fd), base) }

// lstat looks at base in a directory; nil when there is nothing.
func lstat(dir place, base string) (*unix.Stat_t, error) {
	var st unix.Stat_t
	err := unix.Fstatat(dir.fd, base, &st, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	return &st, err
}

func isDir(st *unix.Stat_t) bool { return st.Mode&unix.S_IFMT == unix.S_IFDIR }

// remove removes base and all below it, following no link.
func (t *tree) remove(dir place, base string) error {
	err := os.RemoveAll(below(dir, base))
	if strings.HasPrefix(t.lastPlace.path+"/", path.Join(dir.path, base)+"/") {
		t.forget() // it was what has just been removed
	}
	return err
}
