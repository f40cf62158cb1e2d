package oci

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/conns/outside"
	"github.com/cay-run/cay/internal/machine/disk"
)

const (
	tempPrefix = ".tmp-"
	recordName = "image.json"
	treeName   = "tree"
)

// Options are what an operator decides about images.
type Options struct {
	// Allowed are registries (host:port) on private networks that may be
	// asked; PlainHTTP those that speak no TLS. Both as written in names.
	Allowed   []string
	PlainHTTP []string
	// Networks are those where all other registries are.
	Networks outside.Networks
	Limits   Limits // zero means DefaultLimits
	// Disk is the disk of the images; without a directory no share of it is bounded.
	Disk disk.Reserve
}

// Store keeps images below one directory: <dir>/<digest>/tree and, written
// last, <dir>/<digest>/image.json. One process uses it at a time.
type Store struct {
	dir    string
	opts   Options
	client *http.Client

	mu     sync.Mutex
	images map[string]*kept // by digest
	busy   map[string]chan struct{}

	growing atomic.Int64 // bytes of images that are on their way
}

// kept is an image and how many read its tree.
type kept struct {
	Image
	readers int
	gone    bool // removed while it was read
}

// Open reads what is there and removes what a crash left half made.
func Open(dir string, opts Options) (*Store, error) {
	if opts.Limits == (Limits{}) {
		opts.Limits = DefaultLimits
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, disk.Error(err, "make %s", dir)
	}
	s := &Store{
		dir: dir, opts: opts,
		client: newClient(append(slices.Clone(opts.Allowed), opts.PlainHTTP...), opts.Networks),
		images: map[string]*kept{}, busy: map[string]chan struct{}{},
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, disk.Error(err, "list %s", dir)
	}
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join(dir, e.Name(), recordName))
		var img Image
		if err == nil {
			err = json.Unmarshal(text, &img)
		}
		if err != nil || strings.HasPrefix(e.Name(), tempPrefix) || hexOf(img.Digest) != e.Name() {
			if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
				return nil, disk.Error(err, "remove %s, which is no image", e.Name())
			}
			continue
		}
		s.images[img.Digest] = &kept{Image: img}
	}
	return s, nil
}

func hexOf(digest string) string { return strings.TrimPrefix(digest, "sha256:") }

// List returns all images, by their first name.
func (s *Store) List() []Image {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]Image, 0, len(s.images))
	for _, k := range s.images {
		out = append(out, k.Image)
	}
	slices.SortFunc(out, func(a, b Image) int {
		return strings.Compare(strings.Join(a.Names, " ")+a.Digest, strings.Join(b.Names, " ")+b.Digest)
	})
	return out
}

// Find returns the image of a reference or a digest, as far as this machine
// has it.
func (s *Store) Find(ref string) (Image, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k := s.images[ref]; k != nil {
		return k.Image, nil
	}
	parsed, err := s.parse(ref)
	if err != nil {
		return Image{}, err
	}
	if k := s.named(parsed.Name()); k != nil {
		return k.Image, nil
	}
	return Image{}, cay.Errorf(cay.NotFound, "no image %q on this machine", ref)
}

// named finds the image of a full name. The lock is held.
func (s *Store) named(full string) *kept {
	for _, k := range s.images {
		if slices.Contains(k.Names, full) {
			return k
		}
	}
	return nil
}

// Pull returns the image that a reference means now: an imported one as it is;
// else the registry's, unpacked unless it is here already. When the registry
// cannot be reached, the image that is here serves, and step is told. Two pulls of
// one image are one.
func (s *Store) Pull(ctx context.Context, ref string, creds Credentials, step func(string)) (Image, error) {
	if step == nil {
		step = func(string) {}
	}
	parsed, err := s.parse(ref)
	if err != nil {
		return Image{}, err
	}
	if img, err := s.Find(ref); err == nil && img.Imported {
		return img, nil
	}
	remote, err := s.fetch(ctx, parsed, creds)
	if cay.KindOf(err) == cay.Unavailable && ctx.Err() == nil {
		if img, ferr := s.Find(ref); ferr == nil {
			s.used(img.Digest)
			step("the registry does not answer: using the image that is here, " + img.Digest)
			return img, nil
		}
	}
	if err != nil {
		return Image{}, err
	}
	return s.add(ctx, remote, parsed, false, step)
}

// add unpacks an image, unless it is here, and gives it a name.
func (s *Store) add(ctx context.Context, img v1.Image, ref name.Reference, imported bool, step func(string)) (Image, error) {
	hash, err := img.ConfigName()
	if err != nil {
		return Image{}, pullError(err, ref.String())
	}
	config, err := img.ConfigFile()
	if err != nil {
		return Image{}, pullError(err, "the configuration of "+ref.String())
	}
	if config.OS != "" && config.OS != "linux" {
		return Image{}, cay.Errorf(cay.Invalid, "%s is an image for %s, not for linux", ref, config.OS)
	}
	digest := hash.String()
	done, err := s.claim(ctx, digest)
	if err != nil {
		return Image{}, err
	}
	defer done()
	s.mu.Lock()
	have := s.images[digest]
	s.mu.Unlock()
	if have == nil {
		if err := s.unpack(ctx, img, config, digest, !imported, step); err != nil {
			return Image{}, err
		}
	}
	return s.name(digest, ref.Name(), imported)
}

// claim waits until no other caller unpacks an image.
func (s *Store) claim(ctx context.Context, digest string) (done func(), err error) {
	for {
		s.mu.Lock()
		other := s.busy[digest]
		if other == nil {
			mine := make(chan struct{})
			s.busy[digest] = mine
			s.mu.Unlock()
			return func() {
				s.mu.Lock()
				delete(s.busy, digest)
				s.mu.Unlock()
				close(mine)
			}, nil
		}
		s.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
			return nil, cay.Wrap(cay.Unavailable, ctx.Err(), "another pull of the image is under way")
		}
	}
}

func (s *Store) unpack(ctx context.Context, img v1.Image, config *v1.ConfigFile, digest string, pulled bool, step func(string)) error {
	tmp, err := os.MkdirTemp(s.dir, tempPrefix)
	if err != nil {
		return disk.Error(err, "make a directory in %s", s.dir)
	}
	defer os.RemoveAll(tmp)
	tree := filepath.Join(tmp, treeName)
	if err := os.Mkdir(tree, 0o755); err != nil {
		return disk.Error(err, "make %s", tree)
	}
	grow := s.grow()
	defer grow.done()
	took, err := unpack(ctx, img, config, tree, s.opts.Limits, grow, pulled, step)
	if err != nil {
		return err
	}
	record := Image{
		Digest: digest, Config: configOf(config), Size: took.bytes, Files: took.entries,
		Created: time.Now().UTC().Truncate(time.Second),
	}
	if err := writeRecord(tmp, record); err != nil {
		return err
	}
	if err := os.Rename(tmp, filepath.Join(s.dir, hexOf(digest))); err != nil {
		return disk.Error(err, "name the image %s", digest)
	}
	s.mu.Lock()
	s.images[digest] = &kept{Image: record}
	s.mu.Unlock()
	return nil
}

// growth is what one pull or import adds to the images of a team, within its share of the
// disk.
type growth struct {
	s      *Store
	ration disk.Ration
	bytes  int64
}

func (s *Store) grow() *growth {
	return &growth{s: s, ration: disk.Ration{Disk: s.opts.Disk, What: "images", Held: s.held}}
}

// take counts bytes that are written, and fails where the share ends.
func (g *growth) take(bytes int64) error {
	if g == nil { // a tree that is no team's
		return nil
	}
	g.bytes += bytes
	g.s.growing.Add(bytes)
	return g.ration.Took(bytes)
}

func (g *growth) Write(p []byte) (int, error) { return len(p), g.take(int64(len(p))) }

// done ends the growth: what came of it is an image, or gone.
func (g *growth) done() { g.s.growing.Add(-g.bytes) }

// held is how many bytes the images have, with those that are on their way.
func (s *Store) held() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	sum := s.growing.Load()
	for _, k := range s.images {
		sum += k.Size
	}
	return sum
}

func configOf(c *v1.ConfigFile) Config {
	out := Config{
		Env: c.Config.Env, User: c.Config.User, WorkingDir: c.Config.WorkingDir,
		Entrypoint: c.Config.Entrypoint, Cmd: c.Config.Cmd, Shell: c.Config.Shell,
		OnBuild: c.Config.OnBuild, StopSignal: c.Config.StopSignal,
	}
	if h := c.Config.Healthcheck; h != nil {
		out.Healthcheck = h.Test
	}
	return out
}

// name gives an image a name, which another may lose by that.
func (s *Store) name(digest, full string, imported bool) (Image, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if old := s.named(full); old != nil && old.Digest != digest {
		next := old.Image
		next.Names = slices.DeleteFunc(slices.Clone(next.Names), func(n string) bool { return n == full })
		if err := s.keep(old, next); err != nil {
			return Image{}, err
		}
	}
	k := s.images[digest]
	if k == nil {
		return Image{}, cay.Errorf(cay.Conflict, "the image %s has just been removed", digest)
	}
	next := k.Image
	next.Imported = next.Imported || imported
	if !slices.Contains(next.Names, full) {
		next.Names = append(slices.Clone(next.Names), full)
		slices.Sort(next.Names)
	}
	if err := s.keep(k, next); err != nil {
		return Image{}, err
	}
	return next, nil
}

// keep records an image that changed. The lock is held.
func (s *Store) keep(k *kept, next Image) error {
	if err := writeRecord(filepath.Join(s.dir, hexOf(next.Digest)), next); err != nil {
		return err
	}
	k.Image = next
	return nil
}

func writeRecord(dir string, img Image) error {
	text, err := json.MarshalIndent(img, "", "\t")
	if err != nil {
		return disk.Error(err, "write down the image %s", img.Digest)
	}
	path := filepath.Join(dir, recordName)
	if err := os.WriteFile(path+".new", text, 0o600); err != nil {
		return disk.Error(err, "write %s", path)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return disk.Error(err, "write %s", path)
	}
	return nil
}

// Tree returns the directory of an image's files, which must not be changed,
// and what to call when it is no longer read: until then it stays, even if the
// image is removed.
func (s *Store) Tree(digest string) (dir string, release func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.images[digest]
	if k == nil {
		return "", nil, cay.Errorf(cay.NotFound, "no image %s on this machine", digest)
	}
	k.readers++
	var once sync.Once
	return filepath.Join(s.dir, hexOf(digest), treeName), func() {
		once.Do(func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			if k.readers--; k.readers == 0 && k.gone {
				os.RemoveAll(s.aside(digest))
			}
		})
	}, nil
}

// Remove forgets a name, or with a digest all names, and the files of an image
// that has no name left.
func (s *Store) Remove(ref string) error {
	img, err := s.Find(ref)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.images[img.Digest]
	if k == nil {
		return nil
	}
	if ref != img.Digest {
		parsed, err := s.parse(ref)
		if err != nil {
			return err
		}
		next := k.Image
		next.Names = slices.DeleteFunc(slices.Clone(next.Names), func(n string) bool { return n == parsed.Name() })
		if len(next.Names) > 0 {
			return s.keep(k, next)
		}
	}
	// Renamed first: a crash in the middle must not leave half an image.
	if err := os.Rename(filepath.Join(s.dir, hexOf(img.Digest)), s.aside(img.Digest)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return disk.Error(err, "remove the image %s", img.Digest)
	}
	delete(s.images, img.Digest)
	if k.gone = true; k.readers > 0 {
		return nil
	}
	if err := os.RemoveAll(s.aside(img.Digest)); err != nil {
		return disk.Error(err, "remove the image %s", img.Digest)
	}
	return nil
}

// aside is where an image goes that is being removed.
func (s *Store) aside(digest string) string {
	return filepath.Join(s.dir, tempPrefix+"gone-"+hexOf(digest))
}
