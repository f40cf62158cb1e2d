package image

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/disk"
	"github.com/cay-run/cay/internal/spawn"
)

const tempPrefix = ".tmp-"

// Images is where finished images go.
type Images interface {
	// AddImage moves a file to the name that its content gives it.
	AddImage(path string) (digest string, err error)
}

// Builder makes images below one data directory. Builds of several processes
// wait for each other.
type Builder struct {
	trees  string
	images Images
}

// NewBuilder returns a builder that keeps its trees in dataDir.
func NewBuilder(dataDir string, images Images) *Builder {
	return &Builder{trees: filepath.Join(dataDir, "trees"), images: images}
}

// Build makes the image of a recipe with files put over its tree, and returns
// the image's digest. The tree is made only when it is not there yet.
func (b *Builder) Build(ctx context.Context, r Recipe, files []File, p Progress) (digest string, err error) {
	unlock, err := b.begin(ctx, p)
	if err != nil {
		return "", err
	}
	defer unlock()
	tree, err := b.tree(ctx, r, p)
	if err != nil {
		return "", err
	}
	p(r.Name+": writing the image", 97)
	if err := personalise(ctx, tree, files); err != nil {
		return "", err
	}
	tmp := filepath.Join(b.trees, tempPrefix+"image")
	defer os.Remove(tmp)
	if err := makeImage(ctx, tree, tmp); err != nil {
		return "", err
	}
	return b.images.AddImage(tmp)
}

// Prepare makes the tree of a recipe, which Build then finds. It needs neither
// agent nor engine, and takes most of the time.
func (b *Builder) Prepare(ctx context.Context, r Recipe, p Progress) error {
	unlock, err := b.begin(ctx, p)
	if err != nil {
		return err
	}
	defer unlock()
	_, err = b.tree(ctx, r, p)
	return err
}

// begin takes the trees for one build and removes what a killed one left.
func (b *Builder) begin(ctx context.Context, p Progress) (unlock func(), err error) {
	if os.Geteuid() != 0 {
		return nil, cay.Errorf(cay.Denied, "building an image needs root").WithHint("run it with sudo")
	}
	if err := os.MkdirAll(b.trees, 0o755); err != nil {
		return nil, disk.Error(err, "make %s", b.trees)
	}
	if unlock, err = b.lock(ctx, p); err != nil {
		return nil, err
	}
	if err := b.removeLeftovers(); err != nil {
		unlock()
		return nil, disk.Error(err, "remove what an earlier build left")
	}
	return unlock, nil
}

// Prune removes the trees of all recipes but those given and those that they
// begin with, or with dry only tells which it would.
func (b *Builder) Prune(ctx context.Context, dry bool, keep ...Recipe) ([]cay.Garbage, error) {
	kept := map[string]bool{}
	for _, r := range keep {
		for from := &r; from != nil; from = from.From {
			kept[from.Digest()] = true
		}
	}
	unlock, err := b.lock(ctx, func(string, int) {})
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // nothing was ever built
	}
	if err != nil {
		return nil, err
	}
	defer unlock()
	entries, err := os.ReadDir(b.trees)
	if err != nil {
		return nil, disk.Error(err, "list %s", b.trees)
	}
	var out []cay.Garbage
	for _, e := range entries {
		if !e.IsDir() || kept[e.Name()] {
			continue
		}
		dir := filepath.Join(b.trees, e.Name())
		out = append(out, cay.Garbage{Kind: "tree", Name: e.Name(), Bytes: disk.Use(dir)})
		if dry {
			continue
		}
		if err := os.RemoveAll(dir); err != nil {
			return out, disk.Error(err, "remove the tree %s", e.Name())
		}
	}
	return out, nil
}

// tree returns the path of a recipe's tree, made now if need be.
func (b *Builder) tree(ctx context.Context, r Recipe, p Progress) (string, error) {
	final := filepath.Join(b.trees, r.Digest())
	if _, err := os.Lstat(final); err == nil {
		return final, nil
	}
	named := func(step string, percent int) { p(r.Name+": "+step, percent) }
	from := ""
	if r.From != nil {
		var err error
		if from, err = b.tree(ctx, *r.From, p); err != nil {
			return "", err
		}
	}
	work, err := os.MkdirTemp(b.trees, tempPrefix)
	if err != nil {
		return "", disk.Error(err, "make a directory in %s", b.trees)
	}
	defer os.RemoveAll(work)
	if err := os.Chmod(work, 0o755); err != nil { // apt downloads as a user of its own
		return "", disk.Error(err, "open %s", work)
	}
	tree := filepath.Join(work, "tree")
	if err := grow(ctx, r, from, tree, work, named); err != nil {
		return "", err
	}
	if err := os.Rename(tree, final); err != nil {
		return "", disk.Error(err, "name the tree of %s", r.Name)
	}
	return final, nil
}

// grow makes one recipe's tree, from nothing or a copy of another.
func grow(ctx context.Context, r Recipe, from, tree, work string, p Progress) error {
	if from != "" {
		p("copying "+r.From.Name, 2)
		if err := run(ctx, nil, "/", spawn.Env(), "cp", "--archive", "--reflink=auto", from, tree); err != nil {
			return err
		}
	} else {
		if err := room(work, debianRoom); err != nil {
			return err
		}
		if err := debian(ctx, r, tree, work, partOf(p, 0, 70)); err != nil {
			return err
		}
	}
	if r.Node != "" {
		p("fetching node", 72)
		if err := node(ctx, r, tree, work); err != nil {
			return err
		}
	}
	if _, err := write(tree, r.Files); err != nil {
		return err
	}
	host, err := HostFiles()
	if err != nil {
		return err
	}
	if err := personalise(ctx, tree, host); err != nil { // pip must reach its index
		return err
	}
	if from != "" && len(r.Packages) > 0 {
		if err := packages(ctx, r, tree, partOf(p, 3, 30)); err != nil {
			return err
		}
	}
	if len(r.Python) > 0 {
		if err := room(work, pythonRoom); err != nil {
			return err
		}
		if err := python(ctx, r, tree, partOf(p, 30, 70)); err != nil {
			return err
		}
	}
	for i, step := range r.Steps {
		p(step.Name, 80+15*i/len(r.Steps))
		if err := inTree(ctx, tree, step.Script, nil); err != nil {
			return err
		}
	}
	return nil
}

// python installs wheels for all users. They are compiled by a later step,
// which uses all cores; pip would use one.
func python(ctx context.Context, r Recipe, tree string, p Progress) error {
	script := "pip install --no-compile --no-cache-dir --only-binary=:all: --progress-bar=off"
	for _, req := range r.Python {
		script += " '" + strings.ReplaceAll(req, "'", `'\''`) + "'"
	}
	percent := 0
	p("fetching Python wheels", percent)
	return inTree(ctx, tree, script, func(line string) {
		if name, ok := strings.CutPrefix(line, "Collecting "); ok {
			percent = min(percent+2, 80)
			p("fetching "+strings.Fields(name)[0], percent)
		}
		if strings.HasPrefix(line, "Installing collected") {
			p("installing Python wheels", 85)
		}
	})
}

// The disk that a tree and its image may need, so that a full one is told in a
// second instead of after minutes.
const (
	debianRoom = 3 << 30
	pythonRoom = 4 << 30
)

// room refuses to begin what the disk of dir cannot hold.
func room(dir string, want uint64) error {
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		return disk.Error(err, "ask how full the disk of %s is", dir)
	}
	if free := st.Bavail * uint64(st.Bsize); free < want {
		return cay.Errorf(cay.NoSpace, "building needs %d MB on the disk of %s, which has %d MB free", want>>20, dir, free>>20).
			WithHint("free space there, or set CAY_DATA_DIR to another disk")
	}
	return nil
}

// partOf maps the progress of a part into that of the whole.
func partOf(p Progress, from, to int) Progress {
	return func(step string, percent int) {
		if percent >= 0 {
			percent = from + percent*(to-from)/100
		}
		p(step, percent)
	}
}

// lock waits until no other build works in this data directory.
func (b *Builder) lock(ctx context.Context, p Progress) (unlock func(), err error) {
	return disk.Lock(ctx, b.trees, func() { p("waiting for another build", -1) })
}

// removeLeftovers removes what builds left that were killed. The lock is held.
func (b *Builder) removeLeftovers() error {
	entries, err := os.ReadDir(b.trees)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), tempPrefix) {
			if err := os.RemoveAll(filepath.Join(b.trees, e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}
