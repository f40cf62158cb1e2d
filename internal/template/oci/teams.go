package oci

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/disk"
)

// Teams keeps a Store for each team, below one directory. No other team can name
// an image that a team pulled with its credentials, or imported.
type Teams struct {
	dir  string
	opts Options

	mu     sync.Mutex
	stores map[cay.TeamID]*Store
}

// NewTeams returns the stores below a directory, which are made when they are
// asked for.
func NewTeams(dir string, opts Options) *Teams {
	return &Teams{dir: dir, opts: opts, stores: map[cay.TeamID]*Store{}}
}

// Of returns a team's store.
func (t *Teams) Of(team cay.TeamID) (*Store, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.stores[team]; s != nil {
		return s, nil
	}
	name := string(team)
	if name == "" || name != filepath.Base(name) || name[0] == '.' {
		return nil, cay.Errorf(cay.Internal, "%q is not the id of a team", name)
	}
	s, err := Open(filepath.Join(t.dir, name), t.opts)
	if err != nil {
		return nil, err
	}
	t.stores[team] = s
	return s, nil
}

// Collect removes the images of all teams that were pulled and not used since
// a time, or with dry only tells which. Imported ones stay: no registry
// has them.
func (t *Teams) Collect(before time.Time, dry bool) ([]cay.Garbage, error) {
	entries, err := os.ReadDir(t.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, disk.Error(err, "list images")
	}
	var out []cay.Garbage
	var errs []error
	for _, e := range entries {
		s, err := t.Of(cay.TeamID(e.Name()))
		if err != nil {
			errs = append(errs, err)
			continue
		}
		gone, err := s.collect(before, dry)
		out, errs = append(out, gone...), append(errs, err)
	}
	return out, errors.Join(errs...)
}

func (s *Store) collect(before time.Time, dry bool) ([]cay.Garbage, error) {
	var out []cay.Garbage
	for _, img := range s.List() {
		dir := filepath.Join(s.dir, hexOf(img.Digest))
		st, err := os.Stat(filepath.Join(dir, recordName))
		if err != nil || img.Imported || !st.ModTime().Before(before) {
			continue
		}
		out = append(out, cay.Garbage{Kind: "image", Name: strings.Join(append(slices.Clone(img.Names), img.Digest), " "), Bytes: disk.Use(dir)})
		if dry {
			continue
		}
		if err := s.Remove(img.Digest); err != nil && cay.KindOf(err) != cay.NotFound {
			return out, err
		}
	}
	return out, nil
}

// used keeps an image from being collected for a while.
func (s *Store) used(digest string) {
	now := time.Now()
	_ = os.Chtimes(filepath.Join(s.dir, hexOf(digest), recordName), now, now) // it goes sooner then, nothing worse
}
