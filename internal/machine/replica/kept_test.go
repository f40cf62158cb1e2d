package replica

import (
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"testing"

	"github.com/cay-run/cay"
)

func (m machine) kept(t *testing.T, s cay.Snapshot, want bool) {
	t.Helper()
	if got, err := m.Kept(t.Context(), s.ID); got != want || err != nil {
		t.Fatalf("the bucket has it: %v, %v, want %v", got, err, want)
	}
}

// grows adds a file to a snapshot, in a directory of its own.
func (m machine) grows(t *testing.T, id cay.SnapshotID, name, text string) {
	t.Helper()
	tmp, err := m.dir.Begin()
	noError(t, err)
	noError(t, os.MkdirAll(filepath.Join(tmp, filepath.Dir(name)), 0o700))
	noError(t, os.WriteFile(filepath.Join(tmp, name), []byte(text), 0o600))
	sum := fmt.Sprintf("%08x", crc32.Checksum([]byte(text), crc32.MakeTable(crc32.Castagnoli)))
	noError(t, m.dir.Attach(tmp, id, []cay.SnapFile{{Name: name, Size: int64(len(text)), CRC32C: sum}}))
	noError(t, m.dir.Abort(tmp))
}

// TestKept: only a copy with all pieces counts, of all that a start needs. The
// next Push copies the rest.
func TestKept(t *testing.T) {
	w := newWorld(t)
	one := w.machine("one")
	noError(t, one.Take(t.Context()))
	s := one.saves(t, 1)
	one.kept(t, s, false)
	noError(t, one.Push(t.Context(), s.ID))
	one.kept(t, s, true)

	piece := w.objects("snapshots/" + string(s.ID))[0]
	if filepath.Base(piece) == recordName {
		piece = w.objects("snapshots/" + string(s.ID))[1]
	}
	noError(t, os.Remove(piece))
	one.kept(t, s, false)
	noError(t, one.Push(t.Context(), s.ID))
	one.kept(t, s, true)

	one.grows(t, s.ID, "load/working-set", "pages") // which starts can do without
	one.kept(t, s, true)
	noError(t, os.Remove(w.objects("images")[0]))
	one.kept(t, s, true) // it was asked of the image a moment ago
	clear(one.Replica.kept.at)
	one.kept(t, s, false)

	other := w.machine("two")
	noError(t, other.Take(t.Context()))
	if _, err := one.Kept(t.Context(), s.ID); cay.KindOf(err) != cay.Conflict {
		t.Errorf("another machine writes the bucket: %v", err)
	}
}

// TestGrownSnapshotIsCopied: files that a snapshot gets after its copy follow it.
func TestGrownSnapshotIsCopied(t *testing.T) {
	w := newWorld(t)
	one := w.machine("one")
	noError(t, one.Take(t.Context()))
	s := one.saves(t, 1)
	noError(t, one.Push(t.Context(), s.ID))
	before := len(w.objects("snapshots"))
	one.grows(t, s.ID, "more/layer", "what the guest wrote")
	one.kept(t, s, false)
	noError(t, one.Push(t.Context(), s.ID))
	one.kept(t, s, true)
	if n := len(w.objects("snapshots")); n != before+1 {
		t.Errorf("%d objects became %d", before, n)
	}
	if done, err := one.dir.Evict(s.ID); !done || err != nil {
		t.Fatalf("evicted: %v, %v", done, err)
	}
	one.kept(t, s, true) // by its record
	noError(t, one.Fetch(t.Context(), s.ID))
	dir, got, err := one.dir.Get(s.ID)
	noError(t, err)
	text, err := os.ReadFile(filepath.Join(dir, "more/layer"))
	if err != nil || string(text) != "what the guest wrote" || len(got.Files) != len(s.Files)+1 {
		t.Errorf("it came back with %q, %v, %+v", text, err, got.Files)
	}
	noError(t, one.dir.Verify(t.Context(), s.ID))
}

// TestLostCopy: a snapshot that was evicted is missed where it is gone from the bucket, and asked
// for again where the bucket itself is away.
func TestLostCopy(t *testing.T) {
	w := newWorld(t)
	one := w.machine("one")
	noError(t, one.Take(t.Context()))
	s := one.saves(t, 1)
	noError(t, one.Push(t.Context(), s.ID))
	if done, err := one.dir.Evict(s.ID); !done || err != nil {
		t.Fatalf("evicted: %v, %v", done, err)
	}
	noError(t, os.RemoveAll(filepath.Join(w.bucket, "snapshots")))
	for _, err := range []error{one.Fetch(t.Context(), s.ID), func() error { _, err := one.Record(t.Context(), s.ID); return err }()} {
		if cay.CodeOf(err) != cay.CodeLost {
			t.Errorf("gone from the bucket: %v", err)
		}
	}
	noError(t, os.Remove(filepath.Join(w.bucket, ownerName))) // as where another directory is mounted
	for _, err := range []error{one.Fetch(t.Context(), s.ID), func() error { _, err := one.Record(t.Context(), s.ID); return err }()} {
		if cay.KindOf(err) != cay.Unavailable {
			t.Errorf("the bucket is away: %v", err)
		}
	}
	if err := one.Fetch(t.Context(), cay.NewSnapshotID()); cay.KindOf(err) != cay.NotFound {
		t.Errorf("one that never was: %v", err)
	}
}
