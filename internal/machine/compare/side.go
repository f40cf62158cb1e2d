package compare

import (
	"archive/tar"
	"io"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/erofs"
)

const (
	whiteout = ".wh."
	opaque   = ".wh..wh..opq"
)

// elsewhere are places that are no part of what a sandbox's user did: mounts,
// and what Cay tells each sandbox of itself.
var elsewhere = map[string]bool{
	"dev": true, "proc": true, "sys": true, ".cay": true,
	".e2b": true, "run/e2b": true, "run/cay": true, "etc/machine-id": true,
}

// side is one of the two states: its changes as a tree, and by their names.
type side struct {
	files Files
	top   *node
	named map[string]*state // regular files, by the name that has the body
}

// node is a name in what a state changed.
type node struct {
	state    *state // nil for a directory that only what is in it was changed
	gone     bool   // removed, with all below it
	cleared  bool   // a directory that hides the image's one
	children map[string]*node
}

// want is what is to be read of a content.
type want int

const (
	wantNothing want = iota
	wantSum
	wantText
)

// state is a file. One with two names is one state.
type state struct {
	kind           byte   // as in a tar
	mode           uint32 // permissions and set-id bits
	uid, gid, rdev uint32
	size, time     int64 // time in seconds: a saved file has no finer one
	target         string

	root   *erofs.Node // that has the content; nil for a changed file
	wanted want
	sum    [32]byte
	text   []byte
}

// permissions are the mode's bits that chmod sets.
const permissions = 0o7777

// kinds are the types of files by the image's modes.
var kinds = map[uint32]byte{
	0x8000: tar.TypeReg, 0x4000: tar.TypeDir, 0xa000: tar.TypeSymlink,
	0x2000: tar.TypeChar, 0x6000: tar.TypeBlock, 0x1000: tar.TypeFifo,
}

// rootState describes a file of the image.
func rootState(n *erofs.Node) *state {
	s := &state{
		kind: kinds[n.Mode&0xf000], mode: n.Mode & permissions, uid: n.UID, gid: n.GID, rdev: n.Rdev,
		time: n.Mtime.Unix(), target: n.Target, root: n,
	}
	if n.IsRegular() {
		s.size = n.Size
	}
	return s
}

// read takes in what a state changed, without contents.
func (r *run) read(files Files) (*side, error) {
	s := &side{files: files, top: new(node), named: map[string]*state{}}
	n, bytes := 0, 0
	err := files(func(h *tar.Header, _ io.Reader) error {
		n++
		bytes += len(h.Name) + len(h.Linkname)
		if n > r.most.Files || bytes > r.most.Names {
			return cay.Errorf(cay.Exhausted, "more files were changed than can be compared: the most is %d", r.most.Files)
		}
		if len(h.Name) > r.most.Name || len(h.Linkname) > r.most.Name {
			return cay.Errorf(cay.Exhausted, "a changed file has a name of more than %d bytes", r.most.Name)
		}
		s.add(h)
		return r.ctx.Err()
	})
	return s, err
}

// clean is a name as it is kept: relative, without dots.
func clean(name string) string { return strings.TrimPrefix(path.Clean("/"+name), "/") }

// add takes in a header. An entry of an unknown form is left out.
func (s *side) add(h *tar.Header) {
	name := clean(h.Name)
	dir, base := path.Split(name)
	if hidden, found := strings.CutPrefix(base, whiteout); found {
		if base == opaque {
			s.at(clean(dir)).cleared = true
			return
		}
		n := s.at(dir + hidden)
		*n = node{gone: true}
		return
	}
	if h.Typeflag == tar.TypeLink {
		if target := s.named[clean(h.Linkname)]; target != nil {
			s.at(name).state = target
			s.named[name] = target
		}
		return
	}
	next := &state{
		kind: h.Typeflag, mode: uint32(h.Mode) & permissions, uid: uint32(h.Uid), gid: uint32(h.Gid), time: h.ModTime.Unix(),
	}
	switch h.Typeflag {
	case tar.TypeReg:
		next.size = h.Size
	case tar.TypeSymlink:
		next.target = h.Linkname
	case tar.TypeChar, tar.TypeBlock: // as Linux encodes it for disks
		next.rdev = uint32(h.Devmajor)&0xfff<<8 | uint32(h.Devminor)&0xff | uint32(h.Devminor)&^0xff<<12
	case tar.TypeDir, tar.TypeFifo:
	default:
		return
	}
	if h.Typeflag != tar.TypeDir { // any of these can have a second name
		s.named[name] = next
	}
	n := s.at(name)
	n.state, n.gone = next, false
}

// at finds or makes the node of a name.
func (s *side) at(name string) *node {
	n := s.top
	for part := range strings.SplitSeq(name, "/") {
		if part == "" {
			continue
		}
		next := n.children[part]
		if next == nil {
			next = new(node)
			if n.children == nil {
				n.children = map[string]*node{}
			}
			n.children[part] = next
		}
		n = next
	}
	return n
}

// names returns, sorted, all names that can differ below a place.
func names(before, after spot) []string {
	all := map[string]bool{}
	for _, s := range []spot{before, after} {
		if s.said != nil {
			for name := range s.said.children {
				all[name] = true
			}
		}
	}
	if b, a := before.shows(), after.shows(); b != a || b && before.root != after.root {
		for _, s := range []spot{before, after} {
			if s.shows() {
				for name := range s.root.Names() {
					all[name] = true
				}
			}
		}
	}
	return slices.Sorted(maps.Keys(all))
}

// load reads the contents that are wanted on a side.
func (s *side) load(read func(*state, io.Reader) error) error {
	left := map[*state]bool{}
	for _, f := range s.named {
		if f.wanted != wantNothing {
			left[f] = true
		}
	}
	if len(left) == 0 {
		return nil
	}
	return s.files(func(h *tar.Header, body io.Reader) error {
		if h.Typeflag != tar.TypeReg {
			return nil
		}
		f := s.named[clean(h.Name)]
		if !left[f] || f.size != h.Size {
			return nil
		}
		delete(left, f)
		return read(f, body)
	})
}
