// Package compare tells which files differ between two states of a sandbox.
//
// Both states stand on one root image and list their changes of it, as tars in
// OCI's form do. The host lays out no file of them: it walks the two sets of
// changes and the image side by side in memory, reads contents only where they
// decide something, and bounds everything that a guest can make large: the
// number of files, the bytes read, the bytes shown.
package compare

import (
	"archive/tar"
	"context"
	"io"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/erofs"
)

// Files visits what a state changed of its root image: removed files are named
// as OCI's whiteouts, bodies are of regular files and need not be read. It is
// called several times and must say the same each time.
type Files func(visit func(h *tar.Header, body io.Reader) error) error

// Limits bound a comparison.
type Limits struct {
	Files  int   // that a state may have changed
	Listed int   // changes in the answer
	Sum    int64 // bytes of a file that is compared by content, else by its time
	Sums   int64 // bytes of all of them
	Text   int64 // bytes of a file that is shown as a diff
	Texts  int64 // bytes of all of them, and of the diffs
	Name   int   // bytes of a path, or of where a link leads
	Names  int   // bytes of all of them
	Shown  int   // bytes of those in the answer
}

// Default is what a server allows.
var Default = Limits{
	Files: 200_000, Listed: 5000,
	Sum: 256 << 20, Sums: 4 << 30,
	Text: 512 << 10, Texts: 8 << 20,
	Name: 4096, Names: 64 << 20, Shown: 4 << 20,
}

// Trees compares two states that stand on a root image.
func Trees(ctx context.Context, root *erofs.Tree, before, after Files, most Limits) (cay.Comparison, error) {
	r := &run{ctx: ctx, most: most, sums: most.Sums, texts: most.Texts}
	var err error
	if r.sides[0], err = r.read(before); err != nil {
		return cay.Comparison{}, err
	}
	if r.sides[1], err = r.read(after); err != nil {
		return cay.Comparison{}, err
	}
	top := root.Lookup("")
	if err := r.walk("", spot{r.sides[0].top, top}, spot{r.sides[1].top, top}); err != nil {
		return cay.Comparison{}, err
	}
	if err := r.sum(); err != nil {
		return cay.Comparison{}, err
	}
	return r.answer()
}

// run is one comparison.
type run struct {
	ctx         context.Context
	most        Limits
	sides       [2]*side
	sums, texts int64 // bytes that may still be read
	pairs       []pair
}

// pair is a path with a state on either side; nil for none.
type pair struct {
	path   string
	states [2]*state
	// doubt says that only the contents can tell whether they are the same.
	doubt bool
}

// spot is a path in a side: the side's own entry, and the image's file that
// shows through where there is none.
type spot struct {
	said *node
	root *erofs.Node
}

// state returns what is there, or nil.
func (s spot) state() *state {
	switch {
	case s.said != nil && s.said.state != nil:
		return s.said.state
	case s.said != nil && s.said.gone, s.root == nil:
		return nil
	}
	return rootState(s.root)
}

// enter returns the place of a name below.
func (s spot) enter(name string) spot {
	var next spot
	if s.said != nil {
		next.said = s.said.children[name]
	}
	if s.shows() {
		next.root = s.root.Child(name)
	}
	return next
}

// shows reports whether the image's directory of that name can be seen into.
func (s spot) shows() bool {
	if s.root == nil || !s.root.IsDir() {
		return false
	}
	return s.said == nil || !s.said.gone && !s.said.cleared && (s.said.state == nil || s.said.state.kind == tar.TypeDir)
}

// walk compares what is below a place on both sides.
func (r *run) walk(path string, before, after spot) error {
	if err := r.ctx.Err(); err != nil {
		return err
	}
	for _, name := range names(before, after) {
		next := path + name
		if elsewhere[next] {
			continue
		}
		b, a := before.enter(name), after.enter(name)
		if b.said == nil && a.said == nil && b.root == a.root {
			continue
		}
		was, is := b.state(), a.state()
		if different, doubt := r.differ(was, is); different || doubt {
			r.pairs = append(r.pairs, pair{path: next, states: [2]*state{was, is}, doubt: doubt})
		}
		if err := r.walk(next+"/", b, a); err != nil {
			return err
		}
	}
	return nil
}

// differ compares what is known of two files without their contents.
func (r *run) differ(was, is *state) (different, doubt bool) {
	if was == nil || is == nil {
		return was != is, false
	}
	if was.kind != is.kind || was.mode != is.mode || was.uid != is.uid || was.gid != is.gid ||
		was.size != is.size || was.target != is.target || was.rdev != is.rdev {
		return true, false
	}
	if was.kind != tar.TypeReg || was.size == 0 || was == is {
		return false, false
	}
	if was.size > r.most.Sum || 2*was.size > r.sums {
		return was.time != is.time, false
	}
	r.sums -= 2 * was.size
	was.wanted, is.wanted = wantSum, wantSum
	return false, true
}
