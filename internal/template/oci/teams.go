package oci

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/disk"
	"github.com/cay-run/cay/internal/shares"
)

// Teams keeps a Store for each team, below one directory. No other team can name
// an image that a team pulled with its credentials, or imported.
type Teams struct {
	dir  string
	opts Options

	places *shares.Bound[cay.TeamID] // of pulls and imports at once

	mu     sync.Mutex
	stores map[cay.TeamID]*Store
}

// takenAtOnce is how many images are pulled or imported at once; others wait.
const takenAtOnce = 16

// NewTeams returns the stores below a directory, which are made when they are
// asked for.
func NewTeams(dir string, opts Options) *Teams {
	return &Teams{dir: dir, opts: opts, places: shares.New[cay.TeamID](takenAtOnce, 0), stores: map[cay.TeamID]*Store{}}
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

// Images lists a team's images, as Store.List does.
func (t *Teams) Images(team cay.TeamID) ([]Image, error) {
	s, err := t.Of(team)
	if err != nil {
		return nil, err
	}
	return s.List(), nil
}

// Image finds a team's image, as Store.Find does.
func (t *Teams) Image(team cay.TeamID, ref string) (Image, error) {
	s, err := t.Of(team)
	if err != nil {
		return Image{}, err
	}
	return s.Find(ref)
}

// Pull fetches an image for a team, as Store.Pull does.
func (t *Teams) Pull(ctx context.Context, team cay.TeamID, ref string, a *cay.RegistryAuth, step func(string)) (Image, error) {
	s, err := t.Of(team)
	if err != nil {
		return Image{}, err
	}
	if err := t.wait(ctx, team); err != nil {
		return Image{}, err
	}
	defer t.places.Give(team, 1)
	return s.Pull(ctx, ref, CredentialsOf(a), step)
}

// Import takes an image from an archive for a team, as Store.Import does.
func (t *Teams) Import(ctx context.Context, team cay.TeamID, archive io.Reader, as string, step func(string)) (Image, error) {
	s, err := t.Of(team)
	if err != nil {
		return Image{}, err
	}
	if err := t.wait(ctx, team); err != nil {
		return Image{}, err
	}
	defer t.places.Give(team, 1)
	return s.Import(ctx, archive, as, step)
}

// wait waits for a place.
func (t *Teams) wait(ctx context.Context, team cay.TeamID) error {
	if err := t.places.Wait(ctx, team, 1); err != nil {
		return cay.Wrap(cay.Unavailable, err, "many images are pulled on this server")
	}
	return nil
}

// Remove forgets a team's image, as Store.Remove does.
func (t *Teams) Remove(team cay.TeamID, ref string) error {
	s, err := t.Of(team)
	if err != nil {
		return err
	}
	return s.Remove(ref)
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
