package erofs

import (
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"os"
	"strings"
	"syscall"
	"time"
)

// Node is a file of a tree, of any type. A file with two names is one Node.
type Node struct {
	Mode   uint32 // Linux's st_mode: type, set-id bits and permissions
	UID    uint32
	GID    uint32
	Mtime  time.Time
	Size   int64  // of a regular file's content
	Target string // of a symbolic link
	Rdev   uint32 // of a device, as Linux encodes it for disks

	// File has the content of a regular file at Offset. It must stay open and
	// unchanged until the tree is written.
	File   *os.File
	Offset int64
	// Padded says that the content begins at a block, and that zeros follow it
	// up to the end of its last one.
	Padded bool

	children map[string]*Node
}

// IsDir reports whether n is a directory.
func (n *Node) IsDir() bool { return n.Mode&typeMask == typeDir }

// IsRegular reports whether n is a regular file.
func (n *Node) IsRegular() bool { return n.Mode&typeMask == typeRegular }

// IsSymlink reports whether n is a symbolic link.
func (n *Node) IsSymlink() bool { return n.Mode&typeMask == typeSymlink }

// Child finds a file in a directory by its name, or nil.
func (n *Node) Child(name string) *Node { return n.children[name] }

// Names returns the names in a directory, in no order.
func (n *Node) Names() iter.Seq[string] { return maps.Keys(n.children) }

// Content returns a reader of a regular file's content.
func (n *Node) Content() io.Reader {
	if n.File == nil {
		return strings.NewReader("")
	}
	return io.NewSectionReader(n.File, n.Offset, n.Size)
}

// Tree is a file system's files. It is not safe for concurrent use. Paths are
// relative to the root and clean; links on the way to a name are followed
// inside the tree, a link that is named itself is not.
type Tree struct {
	root  *Node
	image *os.File // that it was read from; nil for none
	close []func() error
}

// New returns a tree that has an empty root directory.
func New() *Tree {
	return &Tree{root: &Node{Mode: typeDir | 0o755, children: map[string]*Node{}}}
}

// Close lets go of the image that the tree was read from.
func (t *Tree) Close() error {
	var errs []error
	for _, f := range t.close {
		errs = append(errs, f())
	}
	t.close = nil
	return errors.Join(errs...)
}

// Own has Close close a file that nodes refer to.
func (t *Tree) Own(f *os.File) { t.close = append(t.close, f.Close) }

const linksMost = 40

// parent finds the directory that a name is in, and the name's last part.
// With make, directories that lack are made.
func (t *Tree) parent(name string, make bool) (*Node, string, error) {
	parts := strings.Split(strings.Trim(name, "/"), "/")
	at, links := []*Node{t.root}, 0
	for len(parts) > 1 {
		part := parts[0]
		parts = parts[1:]
		dir := at[len(at)-1]
		switch part {
		case "", ".":
			continue
		case "..":
			at = at[:max(1, len(at)-1)]
			continue
		}
		next := dir.children[part]
		switch {
		case next == nil && make:
			if err := checkName(part); err != nil {
				return nil, "", err
			}
			next = &Node{Mode: typeDir | 0o755, Mtime: dir.Mtime, children: map[string]*Node{}}
			dir.children[part] = next
			at = append(at, next)
		case next == nil:
			return nil, "", &os.PathError{Op: "find", Path: name, Err: syscall.ENOENT}
		case next.IsDir():
			at = append(at, next)
		case next.IsSymlink():
			if links++; links > linksMost {
				return nil, "", &os.PathError{Op: "find", Path: name, Err: syscall.ELOOP}
			}
			if strings.HasPrefix(next.Target, "/") {
				at = at[:1]
			}
			parts = append(strings.Split(strings.Trim(next.Target, "/"), "/"), parts...)
		default:
			return nil, "", &os.PathError{Op: "find", Path: name, Err: syscall.ENOTDIR}
		}
	}
	last := parts[0]
	if last == "." || last == ".." {
		return nil, "", &os.PathError{Op: "find", Path: name, Err: syscall.EINVAL}
	}
	return at[len(at)-1], last, nil
}

func checkName(s string) error {
	if s == "" || len(s) > nameMost || strings.ContainsAny(s, "/\x00") {
		return fmt.Errorf("a file cannot be called %.300q", s)
	}
	return nil
}

// Lookup finds a file, or nil.
func (t *Tree) Lookup(name string) *Node {
	if strings.Trim(name, "/") == "" {
		return t.root
	}
	dir, last, err := t.parent(name, false)
	if err != nil {
		return nil
	}
	return dir.children[last]
}

// Put adds a file in place of what has its name. A directory put over a
// directory keeps what is in there.
func (t *Tree) Put(name string, n Node) error {
	if _, ok := direntTypes[n.Mode&typeMask]; !ok || n.Mode > 0xffff {
		return fmt.Errorf("%.300q: mode %#o is of no file", name, n.Mode)
	}
	n.children = nil
	if n.IsDir() {
		n.children = map[string]*Node{}
	}
	if strings.Trim(name, "/") == "" {
		if !n.IsDir() {
			return errors.New("the root must be a directory")
		}
		n.children, t.root = t.root.children, &n
		return nil
	}
	dir, last, err := t.parent(name, true)
	if err != nil {
		return err
	}
	if err := checkName(last); err != nil {
		return err
	}
	if old := dir.children[last]; old != nil && old.IsDir() && n.IsDir() {
		n.children = old.children
		*old = n // one node may have been handed out
		return nil
	}
	dir.children[last] = &n
	return nil
}

// Link gives a file that is no directory a second name.
func (t *Tree) Link(name, target string) error {
	n := t.Lookup(target)
	if n == nil || n.IsDir() {
		return &os.LinkError{Op: "link", Old: target, New: name, Err: syscall.ENOENT}
	}
	dir, last, err := t.parent(name, true)
	if err != nil {
		return err
	}
	if err := checkName(last); err != nil {
		return err
	}
	dir.children[last] = n
	return nil
}

// Remove takes a name away, with all below it. A name that is not there is no error.
func (t *Tree) Remove(name string) {
	if dir, last, err := t.parent(name, false); err == nil {
		delete(dir.children, last)
	}
}

// Clear empties a directory. A missing directory is no error.
func (t *Tree) Clear(name string) {
	if n := t.Lookup(name); n != nil && n.IsDir() {
		clear(n.children)
	}
}
