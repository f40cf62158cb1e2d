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
	"strings"
	"sync"
	"testing"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/blob"
	"github.com/cay-run/cay/internal/machine/snapshot"
)

// testPiece is the size of pieces in tests.
const testPiece = 16 << 10

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
	return &world{t, t.TempDir(), bytes.Repeat([]byte("k"), 32)}
}

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
	r := New(bucket, dir, w.key, name, func(int64) error { return nil })
	r.piece = testPiece
	w.Cleanup(func() { _ = r.Close() })
	return machine{r, data, dir}
}

// saves makes a snapshot of files: one of several pieces, some of them alike or
// zero, one in a directory, and an empty one. Its bytes are of the seed.
func (m machine) saves(t testing.TB, seed uint64) cay.Snapshot {
	t.Helper()
	source := rand.NewChaCha8([32]byte{byte(seed)})
	image := filepath.Join(m.data, fmt.Sprint("image", seed))
	content := make([]byte, testPiece/2)
	_, _ = source.Read(content)
	noError(t, os.WriteFile(image, content, 0o600))
	root, err := m.dir.AddImage(image)
	noError(t, err)
	tmp, err := m.dir.Begin()
	noError(t, err)
	pages := make([]byte, 4*testPiece+100)
	_, _ = source.Read(pages[:testPiece])
	copy(pages[2*testPiece:], pages[:testPiece]) // the piece between is zero
	_, _ = source.Read(pages[3*testPiece:])
	s := cay.Snapshot{Format: 1, ID: cay.NewSnapshotID(), Kind: cay.MemorySnapshot, Team: "t", Sandbox: cay.NewSandboxID(), Root: root}
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

// same compares a snapshot on two machines.
func same(t testing.TB, one, other machine, s cay.Snapshot) {
	t.Helper()
	noError(t, other.dir.Verify(t.Context(), s.ID))
	for _, name := range append(names(s), filepath.Join("images", s.Root+".erofs")) {
		a, err := os.ReadFile(filepath.Join(one.data, name))
		noError(t, err)
		b, err := os.ReadFile(filepath.Join(other.data, name))
		noError(t, err)
		if !bytes.Equal(a, b) {
			t.Errorf("%s differs: %d bytes, %d in the copy", name, len(a), len(b))
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
	objects := append(w.objects("snapshots"), w.objects("images")...)
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
			if gone && cay.KindOf(err) != cay.NotFound || !gone && cay.CodeOf(err) != cay.CodeDamaged {
				t.Errorf("%s in the place of %s: %v", what, path, err)
			}
			if filepath.Base(filepath.Dir(filepath.Dir(path))) == "snapshots" {
				other.left(t)
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
	one.keepFor = -1
	unknown := errors.New("unknown")
	if n, err := one.Collect(t.Context(), func(cay.SnapshotID) (bool, error) { return false, unknown }); n != 0 || !errors.Is(err, unknown) {
		t.Errorf("without knowing what is needed %d objects were removed, %v", n, err)
	}
	n, err := one.Collect(t.Context(), used)
	if err != nil || n != 6+2 || len(w.objects("")) != all-n {
		t.Errorf("%d objects were removed, %v", n, err)
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

// A copy of a newer Cay is left as it is, with one line that says so.
func TestNewerFormat(t *testing.T) {
	w := newWorld(t)
	one := w.machine("one")
	noError(t, one.Take(t.Context()))
	s := one.saves(t, 1)
	name := snapshots + string(s.ID) + "/" + recordName
	noError(t, one.bucket.Put(t.Context(), name, one.keys.seal(name, []byte(`{"format":2,"piece":1}`))))
	for what, err := range map[string]error{"fetch": w.machine("other").Fetch(t.Context(), s.ID), "push": one.Push(t.Context(), s.ID)} {
		if cay.KindOf(err) != cay.Unsupported {
			t.Errorf("%s: %v", what, err)
		}
	}
}
