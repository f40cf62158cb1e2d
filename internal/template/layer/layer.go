// Package layer keeps the files that the steps of builds made.
//
//	<data>/layers/<digest>/index.json  what a layer holds, named by its SHA-256
//	<data>/layers/packs/<digest>       contents of files
//	<data>/layers/keys/<key>.json      the layer of a step
//
// A layer lists how the files of one moment differ from those below it: from
// a root image, or from another layer. Contents are shared: one that an
// earlier step of the same build stored is referred to.
//
// Everything is immutable once it has its name; keys are replaced as a whole.
// Work in progress is below tmp and removed by the next Open. Layers are a
// cache: a damaged or missing one is built again.
package layer

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/disk"
	"github.com/cay-run/cay/internal/machine/erofs"
)

// chainMost bounds how many layers stand on each other.
const chainMost = 1000

// Store is the layers of one data directory. Its methods may be called at the
// same time.
type Store struct{ dir string }

// Layer is a set of changes to the files below it.
type Layer struct {
	Digest string
	Below  string // digest of the layer that this one stands on; empty for a root image
	// Capable are files that had capabilities, which no layer keeps. Only the
	// maker of a layer knows them.
	Capable []string
	packs   []string
	files   []file
}

// index is a layer on disk.
type index struct {
	Below string   `json:"below,omitempty"`
	Packs []string `json:"packs,omitempty"`
	Files []file   `json:"files"`
}

// file is a change: something that is there now, or is gone.
type file struct {
	Name  string `json:"n"`
	Kind  kind   `json:"k"`
	Mode  uint32 `json:"m,omitempty"` // Linux's st_mode
	UID   uint32 `json:"u,omitempty"`
	GID   uint32 `json:"g,omitempty"`
	Sec   int64  `json:"t,omitempty"`
	Nsec  int64  `json:"tn,omitempty"`
	Rdev  uint32 `json:"r,omitempty"`
	Link  string `json:"l,omitempty"` // of a link of either sort
	Size  int64  `json:"s,omitempty"`
	Pack  int    `json:"p,omitempty"` // number of the pack, from 0
	Start int64  `json:"o,omitempty"` // of the content in the pack
	Sum   string `json:"h,omitempty"` // SHA-256 of the content
}

type kind string

const (
	present kind = ""
	link    kind = "link"   // a second name
	gone    kind = "gone"   // was below and is not there
	cleared kind = "opaque" // a directory of which nothing below shows
)

// Open makes the directories and removes what a crash left.
func Open(dataDir string) (*Store, error) {
	s := &Store{dir: filepath.Join(dataDir, "layers")}
	if err := os.RemoveAll(s.tmp()); err != nil {
		return nil, disk.Error(err, "remove unfinished layers")
	}
	for _, dir := range []string{s.dir, s.tmp(), s.packs(), s.keys()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, disk.Error(err, "make %s", dir)
		}
	}
	return s, nil
}

func (s *Store) tmp() string   { return filepath.Join(s.dir, "tmp") }
func (s *Store) packs() string { return filepath.Join(s.dir, "packs") }
func (s *Store) keys() string  { return filepath.Join(s.dir, "keys") }

func (s *Store) path(digest string) string { return filepath.Join(s.dir, digest, "index.json") }
func (s *Store) pack(digest string) string { return filepath.Join(s.packs(), digest) }

// Load reads a layer. NotFound when it, or a part of it, is not there.
func (s *Store) Load(digest string) (*Layer, error) {
	if !validDigest(digest) {
		return nil, cay.Errorf(cay.NotFound, "no layer %.80q", digest)
	}
	text, err := os.ReadFile(s.path(digest))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, cay.Errorf(cay.NotFound, "no layer %s", digest)
	}
	if err != nil {
		return nil, disk.Error(err, "read layer %s", digest)
	}
	if sum := sha256.Sum256(text); hex.EncodeToString(sum[:]) != digest {
		return nil, cay.Errorf(cay.NotFound, "layer %s is damaged", digest)
	}
	var in index
	if err := json.Unmarshal(text, &in); err != nil {
		return nil, cay.Wrap(cay.NotFound, err, "layer %s is damaged", digest)
	}
	for _, p := range in.Packs {
		if _, err := os.Stat(s.pack(p)); err != nil {
			return nil, cay.Wrap(cay.NotFound, err, "layer %s has lost a part", digest)
		}
	}
	return &Layer{Digest: digest, Below: in.Below, packs: in.Packs, files: in.Files}, nil
}

// Adds reports whether a layer, or one that it stands on, has a file whose name
// is meant. Names have no slash before them.
func (s *Store) Adds(digest string, meant func(name string) bool) (bool, error) {
	for n := 0; digest != "" && n <= chainMost; n++ {
		l, err := s.Load(digest)
		if err != nil {
			return false, err
		}
		for _, f := range l.files {
			if (f.Kind == present || f.Kind == link) && f.Mode&0xf000 != modes[tar.TypeDir] && meant(f.Name) {
				return true, nil
			}
		}
		digest = l.Below
	}
	return false, nil
}

// Apply changes a tree by a layer and those that it stands on, the lowest
// first. The tree refers to the layers' contents until it is closed.
func (s *Store) Apply(tree *erofs.Tree, digest string) error {
	var chain []*Layer
	for digest != "" {
		l, err := s.Load(digest)
		if err != nil {
			return err
		}
		if chain = append(chain, l); len(chain) > chainMost {
			return cay.Errorf(cay.Internal, "layer %s stands on more than %d others", digest, chainMost)
		}
		digest = l.Below
	}
	for i := len(chain) - 1; i >= 0; i-- {
		if err := s.apply(tree, chain[i]); err != nil {
			return disk.Error(err, "apply layer %s", chain[i].Digest)
		}
	}
	return nil
}

// ApplyOne changes a tree by a layer whose lower ones are in it.
func (s *Store) ApplyOne(tree *erofs.Tree, digest string) error {
	l, err := s.Load(digest)
	if err != nil {
		return err
	}
	if err := s.apply(tree, l); err != nil {
		return disk.Error(err, "apply layer %s", digest)
	}
	return nil
}

func (s *Store) apply(tree *erofs.Tree, l *Layer) error {
	packs := make([]*os.File, len(l.packs))
	for i, digest := range l.packs {
		f, err := os.Open(s.pack(digest))
		if err != nil {
			return err
		}
		tree.Own(f)
		packs[i] = f
	}
	// Removed files lie below this layer: they go before its own files come.
	for _, f := range l.files {
		switch f.Kind {
		case gone:
			tree.Remove(f.Name)
		case cleared:
			tree.Clear(f.Name)
		}
	}
	for _, f := range l.files {
		var err error
		switch f.Kind {
		case present:
			err = tree.Put(f.Name, f.node(packs))
		case link:
			err = tree.Link(f.Name, f.Link)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (f file) node(packs []*os.File) erofs.Node {
	n := erofs.Node{
		Mode: f.Mode, UID: f.UID, GID: f.GID, Mtime: time.Unix(f.Sec, f.Nsec),
		Size: f.Size, Target: f.Link, Rdev: f.Rdev,
	}
	if f.Size > 0 && f.Pack < len(packs) {
		n.File, n.Offset, n.Padded = packs[f.Pack], f.Start, true
	}
	return n
}

func validDigest(s string) bool {
	return len(s) == 64 && strings.Trim(s, "0123456789abcdef") == ""
}
