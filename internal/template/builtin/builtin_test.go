package builtin

import (
	"crypto/sha256"
	"encoding/hex"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/engine"
	"github.com/cay-run/cay/internal/machine/snapshot"
	"github.com/cay-run/cay/internal/template/image"
)

// verdict is a node that lends nothing.
type verdict struct {
	Node
	hash   string
	refuse error
}

func (v *verdict) EngineHash() string            { return v.hash }
func (v *verdict) CanRestore(cay.Snapshot) error { return v.refuse }

// world is a builder over a real data directory.
type world struct {
	*Builder
	t      *testing.T
	data   string
	dir    *snapshot.Dir
	engine *verdict
}

func newWorld(t *testing.T) world {
	t.Helper()
	data := t.TempDir()
	dir, err := snapshot.Open(data)
	if err != nil {
		t.Fatal(err)
	}
	e := &verdict{hash: "engine1"}
	return world{New(Config{
		Data: data, Node: e, Snapshots: dir, AgentDigest: "agent1", Log: slog.New(slog.DiscardHandler),
	}), t, data, dir, e}
}

// image adds a root image and returns its digest.
func (w world) image(content string) string {
	w.t.Helper()
	path := filepath.Join(w.data, "new")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		w.t.Fatal(err)
	}
	digest, err := w.dir.AddImage(path)
	if err != nil {
		w.t.Fatal(err)
	}
	return digest
}

// commit adds a snapshot that stands on an image.
func (w world) commit(root string) cay.SnapshotID {
	w.t.Helper()
	tmp, err := w.dir.Begin()
	if err != nil {
		w.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(tmp, "memory"), []byte("m"), 0o600); err != nil {
		w.t.Fatal(err)
	}
	sum := sha256.Sum256([]byte("m"))
	s := cay.Snapshot{
		Format: cay.SnapshotFormat, ID: cay.NewSnapshotID(), Root: root, CreatedAt: time.Now(),
		Files: []cay.SnapFile{{Name: "memory", Size: 1, SHA256: hex.EncodeToString(sum[:])}},
	}
	if err := w.dir.Commit(tmp, s); err != nil {
		w.t.Fatal(err)
	}
	return s.ID
}

// built pretends that a template was built: it commits a snapshot and records
// it under the present key.
func (w world) built(name string) (cay.SnapshotID, string) {
	w.t.Helper()
	root := w.image("root of " + name + w.engine.hash)
	id := w.commit(root)
	def, files, err := w.plan(name)
	if err != nil {
		w.t.Fatal(err)
	}
	unlock, err := w.lock(w.t.Context(), func(string, int) {})
	if err != nil {
		w.t.Fatal(err)
	}
	defer unlock()
	if err := w.record(w.key(def, files), id); err != nil {
		w.t.Fatal(err)
	}
	return id, root
}

func wantKind(t *testing.T, err error, kind cay.Kind) {
	t.Helper()
	if cay.KindOf(err) != kind {
		t.Fatalf("got error %v of kind %q, want %q", err, cay.KindOf(err), kind)
	}
}

func TestTheHostNameResolves(t *testing.T) {
	if image.Hostname != engine.Hostname {
		t.Errorf("images resolve %q, instances are called %q", image.Hostname, engine.Hostname)
	}
}

func TestKeyNamesWhatASnapshotDependsOn(t *testing.T) {
	def, err := lookup(Base)
	if err != nil {
		t.Fatal(err)
	}
	files := []image.File{{Path: "/etc/a", Data: []byte("a")}}
	one := def.key(files, "agent", "", "engine")
	if one != def.key(files, "agent", "", "engine") {
		t.Error("equal inputs have two keys")
	}
	interp, err := lookup(CodeInterpreter)
	if err != nil {
		t.Fatal(err)
	}
	bigger, docker := def, def
	bigger.limits.MemoryMB++
	docker.docker = true
	for what, key := range map[string]string{
		"recipe":  interp.key(files, "agent", "", "engine"),
		"files":   def.key(nil, "agent", "", "engine"),
		"agent":   def.key(files, "agent2", "", "engine"),
		"engine":  def.key(files, "agent", "", "engine2"),
		"gateway": def.key(files, "agent", "gateway", "engine"),
		"limits":  bigger.key(files, "agent", "", "engine"),
		"docker":  docker.key(files, "agent", "", "engine"),
	} {
		if key == one {
			t.Errorf("the key does not name the %s", what)
		}
	}
}

func TestBuildFindsWhatIsBuilt(t *testing.T) {
	w := newWorld(t)
	_, err := w.Current(Base)
	wantKind(t, err, cay.NotFound)
	id, _ := w.built(Base)
	r, err := w.Build(t.Context(), Base, nil)
	if err != nil || !r.Cached || r.Snapshot.ID != id || r.Limits.MemoryMB != 1024 || r.RecipeDigest == "" {
		t.Fatalf("got %+v, %v", r, err)
	}
	_, err = w.Build(t.Context(), "none", nil)
	wantKind(t, err, cay.NotFound)
}

// An extra is built when it is asked for, and kept until it is not any more.
func TestExtras(t *testing.T) {
	w := newWorld(t)
	if got := w.Wanted(); !slices.Equal(got, Names()) {
		t.Errorf("a new server wants %v", got)
	}
	id, root := w.built(Desktop)
	unused := Needs{Snapshot: func(cay.SnapshotID) bool { return false }}
	for range 2 { // asked for again, nothing happens
		if r, err := w.Build(t.Context(), Desktop, nil); err != nil || r.Snapshot.ID != id {
			t.Fatalf("got %+v, %v", r, err)
		}
	}
	if got := w.Wanted(); !slices.Equal(got, append(Names(), Desktop)) {
		t.Errorf("then it wants %v", got)
	}
	if found, err := w.Collect(t.Context(), unused, false); err != nil || len(found) > 0 {
		t.Errorf("removed %v, %v", found, err)
	}
	for range 2 {
		if err := w.Forget(Desktop); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.Collect(t.Context(), unused, false); err != nil {
		t.Fatal(err)
	}
	if _, err := w.dir.Image(root); err == nil || !slices.Equal(w.Wanted(), Names()) {
		t.Errorf("its image is kept: %v; wanted %v", err == nil, w.Wanted())
	}
}

func TestWhatIsBuiltMustStillServe(t *testing.T) {
	for name, spoil := range map[string]func(w world, id cay.SnapshotID, root string) error{
		"snapshot gone": func(w world, id cay.SnapshotID, _ string) error { return w.dir.Remove(id) },
		"image gone":    func(w world, _ cay.SnapshotID, root string) error { return w.dir.RemoveImage(root) },
		"engine withdrawn": func(w world, _ cay.SnapshotID, _ string) error {
			w.engine.refuse = cay.Errorf(cay.Conflict, "withdrawn")
			return nil
		},
		"another engine": func(w world, _ cay.SnapshotID, _ string) error { w.engine.hash = "engine2"; return nil },
		"torn record": func(w world, _ cay.SnapshotID, _ string) error {
			all, err := filepath.Glob(filepath.Join(w.Builder.dir, "*"+recordSuffix))
			if err != nil {
				return err
			}
			return os.Truncate(all[0], 3)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			id, root := w.built(Base)
			if err := spoil(w, id, root); err != nil {
				t.Fatal(err)
			}
			_, err := w.Current(Base)
			wantKind(t, err, cay.NotFound)
		})
	}
}

func TestCollect(t *testing.T) {
	w := newWorld(t)
	oldBase, oldRoot := w.built(Base)
	oldInterp, usedRoot := w.built(CodeInterpreter)
	w.engine.hash = "engine2"
	newBase, newRoot := w.built(Base)
	paused := w.commit(newRoot) // no template's: a sandbox's own
	orphan := w.image("of a build that was killed")
	wanted := w.image("of a registry's image, which builds begin with")

	needs := Needs{
		Snapshot: func(id cay.SnapshotID) bool { return id == oldInterp },
		Images:   map[string]bool{wanted: true},
	}
	dry, err := w.Collect(t.Context(), needs, true)
	if _, _, gone := w.dir.Get(oldBase); err != nil || gone != nil {
		t.Fatalf("a dry run removes: %v, %v", gone, err)
	}
	for i := range 2 { // the second time finds nothing to do
		found, err := w.Collect(t.Context(), needs, false)
		if err != nil || i == 0 && !slices.Equal(found, dry) || i == 1 && len(found) > 0 {
			t.Fatalf("removed %v, a dry run said %v: %v", found, dry, err)
		}
		for id, kept := range map[cay.SnapshotID]bool{oldBase: false, oldInterp: true, newBase: true, paused: true} {
			if _, _, err := w.dir.Get(id); (err == nil) != kept {
				t.Errorf("snapshot %s is kept: %v, want %v", id, err == nil, kept)
			}
		}
		for digest, kept := range map[string]bool{oldRoot: false, usedRoot: true, newRoot: true, orphan: false, wanted: true} {
			if _, err := w.dir.Image(digest); (err == nil) != kept {
				t.Errorf("image %.8s is kept: %v, want %v", digest, err == nil, kept)
			}
		}
	}
	if r, err := w.Current(Base); err != nil || r.Snapshot.ID != newBase {
		t.Errorf("the present build is %v, %v", r, err)
	}
}

func TestALockedBuilderRemovesWhatKilledBuildsLeft(t *testing.T) {
	w := newWorld(t)
	left := filepath.Join(w.Builder.dir, workName, "n0", "reserved")
	if err := os.MkdirAll(left, 0o755); err != nil {
		t.Fatal(err)
	}
	unlock, err := w.lock(t.Context(), func(string, int) {})
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	if _, err := os.Lstat(left); !os.IsNotExist(err) {
		t.Error("it is still there")
	}
}
