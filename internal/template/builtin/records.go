package builtin

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/disk"
	"github.com/cay-run/cay/internal/template/image"
)

const (
	workName     = "work" // of the builds under way, below the builds' directory
	recordSuffix = ".json"

	// lockWithin is how long Collect waits for a build to end: others wait for
	// Collect, and it is called again.
	lockWithin = 2 * time.Second
)

// record is what <data>/builds/<key>.json holds.
type record struct {
	Snapshot cay.SnapshotID `json:"snapshot"`
}

// find returns the finished build of a key, or NotFound. One whose snapshot
// is gone, damaged, or not for this host any more counts as none.
func (b *Builder) find(name string, def definition, key string) (Result, error) {
	none := cay.Errorf(cay.NotFound, "template %s is not built yet", name)
	r, err := readRecord(b.recordPath(key))
	if errors.Is(err, fs.ErrNotExist) {
		return Result{}, none
	}
	if err != nil {
		return Result{}, disk.Error(err, "read the record of template %s", name)
	}
	_, s, err := b.cfg.Snapshots.Get(r.Snapshot)
	if err != nil {
		return Result{}, none
	}
	if _, err := b.cfg.Snapshots.Image(s.Root); err != nil {
		return Result{}, none
	}
	if err := b.cfg.Node.CanRestore(s); err != nil {
		b.cfg.Log.Info("template must be built again", "template", name, "snapshot", s.ID, "err", err)
		return Result{}, none
	}
	return Result{Name: name, Snapshot: s, Limits: def.limits, RecipeDigest: key, Setup: def.setup(), Cached: true}, nil
}

// record remembers the snapshot of a key. It replaces the file as a whole; a
// crash before costs a build, nothing more.
func (b *Builder) record(key string, id cay.SnapshotID) error {
	text, err := json.Marshal(record{Snapshot: id})
	if err != nil {
		return cay.Wrap(cay.Internal, err, "encode a build's record")
	}
	tmp := filepath.Join(b.dir, workName, key)
	if err := os.WriteFile(tmp, append(text, '\n'), 0o600); err != nil {
		return disk.Error(err, "write a build's record")
	}
	if err := os.Rename(tmp, b.recordPath(key)); err != nil {
		return disk.Error(err, "name a build's record")
	}
	return nil
}

func (b *Builder) recordPath(key string) string {
	return filepath.Join(b.dir, key+recordSuffix)
}

// readRecord treats a torn file, which a crash of the machine can leave, as
// none.
func readRecord(path string) (record, error) {
	var r record
	text, err := os.ReadFile(path)
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(text, &r); err != nil || r.Snapshot == "" {
		return r, fs.ErrNotExist
	}
	return r, nil
}

// lock waits until no other build works in this data directory, then removes
// what killed builds left.
func (b *Builder) lock(ctx context.Context, p image.Progress) (unlock func(), err error) {
	if err := os.MkdirAll(b.dir, 0o700); err != nil {
		return nil, disk.Error(err, "make %s", b.dir)
	}
	if unlock, err = disk.Lock(ctx, b.dir, func() { p("waiting for another build", -1) }); err != nil {
		return nil, err
	}
	if err := b.removeLeftovers(); err != nil {
		unlock()
		return nil, disk.Error(err, "remove what an earlier build left")
	}
	return unlock, nil
}

// removeLeftovers empties the work directory. The node has ended the instances
// of builds that were killed.
func (b *Builder) removeLeftovers() error {
	work := filepath.Join(b.dir, workName)
	return errors.Join(os.RemoveAll(work), os.Mkdir(work, 0o755))
}

// Needs says what must be kept.
type Needs struct {
	// Snapshot reports whether a template in the store, a sandbox or a running
	// instance names a snapshot. Its image stays with it.
	Snapshot func(cay.SnapshotID) bool
	// Images are root images that are kept without a snapshot, by digest.
	Images map[string]bool
	// Gone are snapshots that are on their way out: nothing stays for them.
	Gone map[cay.SnapshotID]bool
}

// Collect removes what only earlier builds needed: their snapshots, then root
// images below no snapshot, then trees of other recipes. With dry it only
// tells what it would remove. Unavailable while a build is under way.
func (b *Builder) Collect(ctx context.Context, needs Needs, dry bool) ([]cay.Garbage, error) {
	patience, cancel := context.WithTimeout(ctx, lockWithin)
	unlock, err := b.lock(patience, func(string, int) {})
	cancel()
	if err != nil {
		return nil, err
	}
	defer unlock()
	current, recipes, err := b.currentBuilds()
	if err != nil {
		return nil, err
	}
	out, gone, err := b.collectRecords(current, needs, dry)
	if err != nil {
		return out, err
	}
	images, err := b.collectImages(needs, gone, dry)
	out = append(out, images...)
	if err != nil {
		return out, err
	}
	trees, err := b.images.Prune(ctx, dry, recipes...)
	return append(out, trees...), err
}

// Idle runs f while no build is under way. Unavailable while one is.
func (b *Builder) Idle(ctx context.Context, f func() error) error {
	patience, cancel := context.WithTimeout(ctx, lockWithin)
	unlock, err := b.lock(patience, func(string, int) {})
	cancel()
	if err != nil {
		return err
	}
	defer unlock()
	return f()
}

// collectRecords removes the records of builds that would not be made now, with
// their snapshots, and says which snapshots are gone.
func (b *Builder) collectRecords(current map[string]bool, needs Needs, dry bool) (out []cay.Garbage, gone map[cay.SnapshotID]bool, err error) {
	gone = maps.Clone(needs.Gone)
	if gone == nil {
		gone = map[cay.SnapshotID]bool{}
	}
	entries, err := os.ReadDir(b.dir)
	if err != nil {
		return nil, nil, disk.Error(err, "list builds")
	}
	for _, e := range entries {
		key, ok := strings.CutSuffix(e.Name(), recordSuffix)
		if !ok || current[key] {
			continue
		}
		r, err := readRecord(b.recordPath(key))
		if err == nil && needs.Snapshot(r.Snapshot) {
			continue
		}
		if err == nil {
			if _, s, err := b.cfg.Snapshots.Get(r.Snapshot); err == nil {
				gone[s.ID] = true
				out = append(out, cay.Garbage{Kind: "snapshot", Name: string(s.ID), Bytes: s.Size()})
			}
		}
		if dry {
			continue
		}
		if err == nil {
			if err := b.cfg.Snapshots.Remove(r.Snapshot); err != nil {
				return out, gone, err
			}
		}
		if err := os.Remove(b.recordPath(key)); err != nil {
			return out, gone, disk.Error(err, "remove a build's record")
		}
	}
	return out, gone, nil
}

// currentBuilds returns the keys and recipes of all templates as they would
// be built now.
func (b *Builder) currentBuilds() (map[string]bool, []image.Recipe, error) {
	keys := map[string]bool{}
	var recipes []image.Recipe
	for _, name := range b.Wanted() {
		def, files, err := b.plan(name)
		if err != nil {
			return nil, nil, err
		}
		keys[b.key(def, files)] = true
		recipes = append(recipes, def.recipe)
	}
	return keys, recipes, nil
}

// collectImages removes the images that no snapshot stands on and no caller wants
// without. It needs to know them all: a damaged snapshot stops it.
func (b *Builder) collectImages(needs Needs, gone map[cay.SnapshotID]bool, dry bool) ([]cay.Garbage, error) {
	all, err := b.cfg.Snapshots.List()
	if err != nil {
		return nil, err
	}
	used := maps.Clone(needs.Images)
	if used == nil {
		used = map[string]bool{}
	}
	for _, s := range all {
		if !gone[s.ID] {
			used[s.Root] = true
		}
	}
	digests, err := b.cfg.Snapshots.Images()
	if err != nil {
		return nil, err
	}
	var out []cay.Garbage
	for _, digest := range digests {
		if used[digest] {
			continue
		}
		path, err := b.cfg.Snapshots.Image(digest)
		if err != nil {
			continue // just removed
		}
		bytes, goes := disk.Use(path), dry
		if !dry {
			if goes, err = b.cfg.Snapshots.RemoveSpareImage(digest); err != nil {
				return out, err
			}
		}
		if goes {
			out = append(out, cay.Garbage{Kind: "root image", Name: digest, Bytes: bytes})
		}
	}
	return out, nil
}
