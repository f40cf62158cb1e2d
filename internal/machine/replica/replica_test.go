package replica

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/blob"
	"github.com/cay-run/cay/internal/machine/snapshot"
)

// testPiece is the size of pieces in tests.
const testPiece = 16 << 10

// testCuts are the pieces of root images in tests: of 16 KiB in the mean.
var testCuts = bounds{1, 4, 16}

func noError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// world is a bucket in a directory, and machines with one installation's key.
type world struct {
	*testing.T
	bucket string
	key    []byte
}

func newWorld(t *testing.T) *world {
	return &world{t, t.TempDir(), newKey()}
}

func newKey() []byte { return bytes.Repeat([]byte("k"), 32) }

type machine struct {
	*Replica
	data string
	dir  *snapshot.Dir
}

func (w *world) machine(name string) machine {
	w.Helper()
	data := w.TempDir()
	dir, err := snapshot.Open(data)
	noError(w, err)
	bucket, err := blob.OpenDir(w.bucket)
	noError(w, err)
	noError(w, os.Mkdir(filepath.Join(data, "engines"), 0o755))
	r := New(bucket, dir, filepath.Join(data, "engines"), w.key, name, func(int64) error { return nil })
	r.piece, r.otherPiece, r.cuts, r.settle = testPiece, testPiece, testCuts, time.Second
	w.Cleanup(func() { _ = r.Close() })
	return machine{r, data, dir}
}

// saves makes a snapshot of files: one of several pieces, some of them alike or
// zero, one in a directory, and an empty one. Its bytes are of the seed.
func (m machine) saves(t testing.TB, seed uint64) cay.Snapshot {
	t.Helper()
	return m.savesOn(t, seed, "t", noise(seed, testPiece/2))
}

// noise is of a seed.
func noise(seed uint64, size int) []byte {
	out := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), 2}).Read(out)
	return out
}

// savesOn makes a team's snapshot on a root image.
func (m machine) savesOn(t testing.TB, seed uint64, team cay.TeamID, content []byte) cay.Snapshot {
	t.Helper()
	source := rand.NewChaCha8([32]byte{byte(seed)})
	pages := make([]byte, 4*testPiece+100)
	_, _ = source.Read(pages[:testPiece])
	copy(pages[2*testPiece:], pages[:testPiece]) // the piece between is zero
	_, _ = source.Read(pages[3*testPiece:])
	return m.savesOf(t, seed, team, content, pages)
}

// savesOf is savesOn with the bytes of the memory.
func (m machine) savesOf(t testing.TB, seed uint64, team cay.TeamID, content, pages []byte) cay.Snapshot {
	t.Helper()
	image := filepath.Join(m.data, "image")
	noError(t, os.WriteFile(image, content, 0o600))
	root, err := m.dir.AddImage(image)
	noError(t, err)
	sandbox := cay.NewSandboxID()
	if team == "" { // a template that Cay brings
		sandbox = ""
	}
	tmp, err := m.dir.Begin()
	noError(t, err)
	s := cay.Snapshot{
		Format: 1, ID: cay.NewSnapshotID(), Kind: cay.MemorySnapshot, Team: team, Sandbox: sandbox, Root: root,
		EngineHash: m.builds(t, seed), CreatedAt: time.Now(),
	}
	noError(t, os.Mkdir(filepath.Join(tmp, "files"), 0o700))
	for name, content := range map[string][]byte{"pages": pages, "files/tar": []byte("small"), "empty": nil} {
		path := filepath.Join(tmp, name)
		noError(t, os.WriteFile(path, content, 0o600))
		sum := fmt.Sprintf("%08x", crc32.Checksum(content, crc32.MakeTable(crc32.Castagnoli)))
		s.Files = append(s.Files, cay.SnapFile{Name: name, Size: int64(len(content)), CRC32C: sum})
	}
	noError(t, m.dir.Commit(tmp, s))
	return s
}

// builds makes a build of the engine, of two pieces and a bit, and returns its hash.
func (m machine) builds(t testing.TB, seed uint64) string {
	t.Helper()
	hash := fmt.Sprint("build", seed)
	for i, name := range programs(hash) {
		path := filepath.Join(m.data, name)
		noError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		text := make([]byte, 2*testPiece+100)
		_, _ = rand.NewChaCha8([32]byte{byte(seed), byte(i), 1}).Read(text)
		noError(t, os.WriteFile(path, text, 0o755))
	}
	return hash
}

func programs(hash string) []string {
	dir := filepath.Join("engines", hash)
	return []string{filepath.Join(dir, "cay-runsc"), filepath.Join(dir, "gvisor-bin", "gvisor_sentry")}
}

// same compares a snapshot on two machines.
func same(t testing.TB, one, other machine, s cay.Snapshot) {
	t.Helper()
	noError(t, other.dir.Verify(t.Context(), s.ID))
	for _, name := range slices.Concat(names(s), []string{filepath.Join("images", s.Root+".erofs")}, programs(s.EngineHash)) {
		a, err := os.ReadFile(filepath.Join(one.data, name))
		noError(t, err)
		b, err := os.ReadFile(filepath.Join(other.data, name))
		noError(t, err)
		if !bytes.Equal(a, b) {
			t.Errorf("%s differs: %d bytes, %d in the copy", name, len(a), len(b))
		}
	}
	for _, name := range programs(s.EngineHash) {
		if info, err := os.Stat(filepath.Join(other.data, name)); err != nil || info.Mode() != 0o755 {
			t.Errorf("%s cannot be run: %v, %v", name, info.Mode(), err)
		}
	}
}

func names(s cay.Snapshot) (out []string) {
	for _, f := range s.Files {
		out = append(out, filepath.Join("snapshots", string(s.ID), f.Name))
	}
	return out
}

// objects are the files of the bucket.
func (w *world) objects(below string) (out []string) {
	w.Helper()
	err := filepath.WalkDir(filepath.Join(w.bucket, below), func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			out = append(out, path)
		}
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		w.Fatal(err)
	}
	return out
}

// left checks that a fetch that failed left nothing in a data directory.
func (m machine) left(t testing.TB) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(m.data, "snapshots"))
	noError(t, err)
	if len(entries) > 0 {
		t.Errorf("%s is left of a fetch that failed", entries[0].Name())
	}
}

func TestThereAndBack(t *testing.T) {
	w := newWorld(t)
	one := w.machine("one")
	noError(t, one.Take(t.Context()))
	s := one.saves(t, 1)
	for range 2 { // the second finds it there
		noError(t, one.Push(t.Context(), s.ID))
	}
	if n := len(w.objects("snapshots")); n != 6 { // four pieces of pages, one of tar, the record
		t.Errorf("the snapshot is %d objects", n)
	}
	other := w.machine("other")
	var all sync.WaitGroup
	for range 5 { // callers at once
		all.Go(func() {
			if err := other.Fetch(t.Context(), s.ID); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	same(t, one, other, s)
	// It fetches no more than is lacking.
	noError(t, os.Remove(filepath.Join(other.data, "images", s.Root+".erofs")))
	noError(t, other.Fetch(t.Context(), s.ID))
	same(t, one, other, s)
	if err := other.Fetch(t.Context(), cay.NewSnapshotID()); cay.KindOf(err) != cay.NotFound {
		t.Errorf("one that is nowhere: %v", err)
	}
	for _, path := range w.objects("") {
		text, err := os.ReadFile(path)
		noError(t, err)
		if bytes.Contains(text, []byte("small")) || bytes.Contains(text, []byte(s.Sandbox)) {
			t.Errorf("%s is not encrypted", path)
		}
	}
}

// Every object of a copy counts: with one byte flipped, exchanged for another, or
// gone, nothing is fetched, and Push makes it whole again.
func TestDamageInTheBucket(t *testing.T) {
	w := newWorld(t)
	one := w.machine("one")
	noError(t, one.Take(t.Context()))
	s := one.saves(t, 1)
	noError(t, one.Push(t.Context(), s.ID))
	objects := slices.Concat(w.objects("snapshots"), w.objects("images"), w.objects("engines"))
	for i, path := range objects {
		whole, err := os.ReadFile(path)
		noError(t, err)
		flipped := bytes.Clone(whole)
		flipped[len(flipped)-1-i] ^= 4
		neighbour, err := os.ReadFile(objects[(i+1)%len(objects)])
		noError(t, err)
		for what, content := range map[string][]byte{"a flipped byte": flipped, "another object": neighbour, "nothing": nil} {
			if content == nil {
				noError(t, os.Remove(path))
			} else {
				noError(t, os.WriteFile(path, content, 0o600))
			}
			other := w.machine("other")
			err := other.Fetch(t.Context(), s.ID)
			gone := content == nil && strings.Contains(path, "/snapshots/") && filepath.Base(path) == recordName
			if content == nil && strings.Contains(path, "/engines/") && filepath.Base(path) == recordName {
				if err != nil { // as that of a Cay that copied no engines
					t.Errorf("without an engine: %v", err)
				}
				continue
			}
			if gone && cay.KindOf(err) != cay.NotFound || !gone && cay.CodeOf(err) != cay.CodeDamaged {
				t.Errorf("%s in the place of %s: %v", what, path, err)
			}
			if filepath.Base(filepath.Dir(filepath.Dir(path))) == "snapshots" {
				other.left(t)
			}
			made, err := os.ReadDir(filepath.Join(other.data, "engines"))
			if strings.Contains(path, "/snapshots/") { // the engine came before, and is whole
				for _, build := range made {
					if build.Name() != s.EngineHash {
						t.Errorf("%s in the place of %s: %s is left", what, path, build.Name())
					}
				}
			} else if err != nil || len(made) > 0 {
				t.Errorf("%s in the place of %s: of an engine %v is left, %v", what, path, made, err)
			}
		}
		noError(t, os.WriteFile(path, whole, 0o600))
	}
	other := w.machine("other")
	noError(t, other.Fetch(t.Context(), s.ID))
	same(t, one, other, s)
}

// A bucket that is another installation's is not written, and a machine that another
// has followed writes no more.
func TestOwners(t *testing.T) {
	w := newWorld(t)
	one := w.machine("one")
	noError(t, one.Take(t.Context()))
	noError(t, one.Take(t.Context())) // it starts again
	s := one.saves(t, 1)
	strange := *w
	strange.key = bytes.Repeat([]byte("x"), 32)
	if err := strange.machine("strange").Take(t.Context()); cay.KindOf(err) != cay.Conflict {
		t.Errorf("another installation: %v", err)
	}
	other := w.machine("other")
	noError(t, other.Take(t.Context()))
	if err := one.Push(t.Context(), s.ID); cay.KindOf(err) != cay.Conflict {
		t.Errorf("a machine that was followed: %v", err)
	}
	if n := len(w.objects("snapshots")); n != 0 {
		t.Errorf("it wrote %d objects", n)
	}
	if n := len(w.objects("probe")); n != 0 {
		t.Errorf("probes left %d objects", n)
	}
}

func TestCollect(t *testing.T) {
	w := newWorld(t)
	one := w.machine("one")
	noError(t, one.Take(t.Context()))
	kept, gone := one.saves(t, 1), one.saves(t, 2)
	for _, s := range []cay.Snapshot{kept, gone} {
		noError(t, one.Push(t.Context(), s.ID))
	}
	used := func(id cay.SnapshotID) (bool, error) { return id == kept.ID, nil }
	all := len(w.objects(""))
	if n, err := one.Collect(t.Context(), used); n != 0 || err != nil || len(w.objects("")) != all {
		t.Errorf("of what is young %d objects were removed, %v", n, err)
	}
	one.keepFor, one.condemnedFor = -1, -1
	unknown := errors.New("unknown")
	if n, err := one.Collect(t.Context(), func(cay.SnapshotID) (bool, error) { return false, unknown }); n != 0 || !errors.Is(err, unknown) {
		t.Errorf("without knowing what is needed %d objects were removed, %v", n, err)
	}
	for i, want := range []int{6, 4 + 7, 0} { // the snapshot; then its image and its engine, which were condemned
		n, err := one.Collect(t.Context(), used)
		if all -= n; err != nil || n != want || len(w.objects("")) != all {
			t.Errorf("round %d: %d objects were removed, %v", i, n, err)
		}
	}
	other := w.machine("other")
	noError(t, other.Fetch(t.Context(), kept.ID))
	same(t, one, other, kept)
	if err := other.Fetch(t.Context(), gone.ID); cay.KindOf(err) != cay.NotFound {
		t.Error(err)
	}
	// One that comes while much is removed is whole.
	var both sync.WaitGroup
	both.Go(func() {
		for range 20 {
			if _, err := one.Collect(t.Context(), used); err != nil {
				t.Error(err)
			}
		}
	})
	noError(t, os.Remove(filepath.Join(w.bucket, "snapshots", string(kept.ID), recordName)))
	noError(t, one.Push(t.Context(), kept.ID))
	both.Wait()
	last := w.machine("last")
	noError(t, last.Fetch(t.Context(), kept.ID))
	same(t, one, last, kept)
}

// Fetches that fail, for want of room or of a bucket, leave nothing.
func TestFetchThatFails(t *testing.T) {
	w := newWorld(t)
	one := w.machine("one")
	noError(t, one.Take(t.Context()))
	s := one.saves(t, 1)
	noError(t, one.Push(t.Context(), s.ID))
	other := w.machine("other")
	full := cay.Errorf(cay.NoSpace, "full")
	other.room = func(int64) error { return full }
	if err := other.Fetch(t.Context(), s.ID); !errors.Is(err, full) {
		t.Error(err)
	}
	other.left(t)
	other.room = func(int64) error { return nil }
	noError(t, other.Fetch(t.Context(), s.ID))
	same(t, one, other, s)
	noError(t, os.RemoveAll(w.bucket))
	last := w.machine("last")
	noError(t, os.RemoveAll(w.bucket))
	if err := last.Fetch(t.Context(), s.ID); err == nil {
		t.Error("a bucket that is gone had it")
	}
	last.left(t)
}

// Records of an engine that nothing but this installation could have written still name
// no file outside of it.
func TestEngineRecords(t *testing.T) {
	for what, files := range map[string][]file{
		"a name above it": {{Name: "../x", Size: 0}},
		"an absolute one": {{Name: "/x", Size: 0}},
		"no name":         {{Size: 0}},
		"too much":        {{Name: "a", Size: engineMost}, {Name: "b", Size: 1}},
		"less than none":  {{Name: "a", Size: -1}},
		"twice one name":  {{Name: "a"}, {Name: "a"}},
	} {
		w := newWorld(t)
		one, other := w.machine("one"), w.machine("other")
		noError(t, one.Take(t.Context()))
		s := one.saves(t, 1)
		noError(t, one.Push(t.Context(), s.ID))
		noError(t, one.putRecord(t.Context(), engines+s.EngineHash+"/", record{Piece: testPiece, Files: files}))
		if err := other.Fetch(t.Context(), s.ID); err == nil {
			t.Errorf("%s was taken", what)
		}
		if made, err := os.ReadDir(other.engines); err != nil || len(made) > 0 {
			t.Errorf("%s: %v is left, %v", what, made, err)
		}
	}
}

// A copy of a newer Cay is left as it is, with one line that says so.
func TestNewerFormat(t *testing.T) {
	w := newWorld(t)
	one := w.machine("one")
	noError(t, one.Take(t.Context()))
	s := one.saves(t, 1)
	name := snapshots + string(s.ID) + "/" + recordName
	noError(t, one.bucket.Put(t.Context(), name, one.keys.seal(name, []byte(`{"format":4,"piece":1}`))))
	for what, err := range map[string]error{"fetch": w.machine("other").Fetch(t.Context(), s.ID), "push": one.Push(t.Context(), s.ID)} {
		if cay.KindOf(err) != cay.Unsupported {
			t.Errorf("%s: %v", what, err)
		}
	}
}
