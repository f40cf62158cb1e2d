package compare

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"io"
	"strconv"
	"unicode/utf8"

	"github.com/rogpeppe/go-internal/diff"

	"github.com/cay-run/cay"
)

// sum reads the contents of files that are in doubt, and keeps the pairs that
// differ.
func (r *run) sum() error {
	err := r.load(func(s *state, body io.Reader) error {
		h := sha256.New()
		_, err := io.Copy(h, body)
		h.Sum(s.sum[:0])
		return err
	})
	if err != nil {
		return err
	}
	kept := r.pairs[:0]
	for _, p := range r.pairs {
		if !p.doubt || p.states[0].sum != p.states[1].sum {
			kept = append(kept, p)
		}
	}
	r.pairs = kept
	return nil
}

// load reads all contents that are wanted, and then wants none.
func (r *run) load(read func(*state, io.Reader) error) error {
	checked := func(s *state, body io.Reader) error {
		if err := r.ctx.Err(); err != nil {
			return err
		}
		s.wanted = wantNothing
		return read(s, body)
	}
	for _, p := range r.pairs {
		for _, s := range p.states {
			if s != nil && s.wanted != wantNothing && s.root != nil {
				if err := checked(s, s.root.Content()); err != nil {
					return cay.Wrap(cay.Internal, err, "read a root image")
				}
			}
		}
	}
	for _, s := range r.sides {
		if err := s.load(checked); err != nil {
			return err
		}
	}
	return nil
}

// answer describes the pairs.
func (r *run) answer() (cay.Comparison, error) {
	var out cay.Comparison
	names := 0
	for _, p := range r.pairs {
		c := cay.Change{Path: shown("/" + p.path), Kind: cay.FileChanged, Before: p.states[0].public(), After: p.states[1].public()}
		switch {
		case c.Before == nil:
			c.Kind = cay.FileAdded
			out.Added++
		case c.After == nil:
			c.Kind = cay.FileRemoved
			out.Removed++
		default:
			out.Changed++
		}
		names += len(p.path)
		for _, s := range p.states {
			if s != nil {
				names += len(s.target)
			}
		}
		if names <= r.most.Shown && len(out.Changes) < r.most.Listed {
			c.NoDiff = r.wantTexts(p)
			out.Changes = append(out.Changes, c)
		}
	}
	err := r.load(func(s *state, body io.Reader) (err error) {
		s.text, err = io.ReadAll(io.LimitReader(body, s.size))
		return err
	})
	if err != nil {
		return out, err
	}
	r.texts = r.most.Texts
	for i := range out.Changes {
		if c := &out.Changes[i]; c.NoDiff == "" {
			r.diff(c, r.pairs[i])
		}
	}
	return out, nil
}

// wantTexts asks for what a diff of a pair is made of, or says why there is to
// be none.
func (r *run) wantTexts(p pair) cay.NoDiff {
	var size int64
	regular := false
	for _, s := range p.states {
		if s == nil || s.kind != tar.TypeReg {
			continue
		}
		if s.size > r.most.Text {
			return cay.NoDiffLarge
		}
		regular = true
		size += s.size
	}
	switch {
	case !regular:
		return ""
	case size > r.texts:
		return cay.NoDiffMany
	}
	r.texts -= size
	for _, s := range p.states {
		if s != nil && s.kind == tar.TypeReg {
			s.wanted = wantText
		}
	}
	return ""
}

// diff compares the texts of a pair.
func (r *run) diff(c *cay.Change, p pair) {
	was, is := p.states[0].content(), p.states[1].content()
	if bytes.Equal(was, is) {
		return
	}
	if !isText(was) || !isText(is) {
		c.NoDiff = cay.NoDiffBinary
		return
	}
	name := func(prefix string, s *state) string {
		if s == nil || s.kind != tar.TypeReg {
			return "/dev/null"
		}
		return shown(prefix + "/" + p.path)
	}
	text := diff.Diff(name("a", p.states[0]), was, name("b", p.states[1]), is)
	// The first line repeats the names for a program that Cay's users may not have.
	if _, rest, found := bytes.Cut(text, []byte("\n")); found {
		text = rest
	}
	if r.texts -= int64(len(text)); r.texts < 0 {
		c.NoDiff = cay.NoDiffMany
		return
	}
	c.Diff = string(text)
}

// content returns the part of a file that a diff shows: nothing of a file that
// is not regular.
func (s *state) content() []byte {
	if s == nil {
		return nil
	}
	return s.text
}

func isText(b []byte) bool { return utf8.Valid(b) && bytes.IndexByte(b, 0) < 0 }

// public describes a file to others.
func (s *state) public() *cay.FileState {
	if s == nil {
		return nil
	}
	out := &cay.FileState{Mode: s.mode, UID: s.uid, GID: s.gid, Size: s.size}
	switch s.kind {
	case tar.TypeReg:
		out.Type = "file"
	case tar.TypeDir:
		out.Type = "directory"
	case tar.TypeSymlink:
		out.Type, out.Target = "symlink", shown(s.target)
	case tar.TypeFifo:
		out.Type = "fifo"
	default:
		out.Type = "device"
	}
	return out
}

// shown writes a name so that it can be printed and read back.
func shown(name string) string {
	if name == "" || name[0] == '"' || !utf8.ValidString(name) {
		return strconv.Quote(name)
	}
	for _, c := range name {
		if !strconv.IsPrint(c) {
			return strconv.Quote(name)
		}
	}
	return name
}
