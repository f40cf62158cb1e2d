package replica

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cay-run/cay"
)

// writes makes the files of a snapshot in a directory of Begin's. Their bytes are of the seed.
func (m machine) writes(t testing.TB, seed uint64) (tmp string, s cay.Snapshot) {
	t.Helper()
	s = m.saves(t, seed)
	dir, _, err := m.dir.Get(s.ID)
	noError(t, err)
	s.ID = cay.NewSnapshotID()
	tmp, err = m.dir.Begin()
	noError(t, err)
	noError(t, os.CopyFS(tmp, os.DirFS(dir)))
	for _, name := range []string{"snapshot.json", "snapshot.sum"} {
		noError(t, os.Remove(filepath.Join(tmp, name)))
	}
	return tmp, s
}

// written is when the pieces of a snapshot's copy were written, by their paths.
func (w *world) written(id cay.SnapshotID) map[string]time.Time {
	w.Helper()
	out := map[string]time.Time{}
	for _, path := range w.objects(snapshots + string(id)) {
		info, err := os.Stat(path)
		noError(w, err)
		if filepath.Base(path) != recordName {
			out[path] = info.ModTime()
		}
	}
	return out
}

// sent waits for what is copied ahead of a snapshot.
func (m machine) sent(id cay.SnapshotID) int {
	m.mu.Lock()
	a := m.early[id]
	m.mu.Unlock()
	<-a.done
	return len(a.files)
}

// TestAhead: what was copied of a snapshot before it had its name is not copied again, unless it is
// another by then, and nothing is there without a record that says so.
func TestAhead(t *testing.T) {
	for name, change := range map[string]func(w *world, one machine, tmp string, s *cay.Snapshot){
		"as it was": func(*world, machine, string, *cay.Snapshot) {},
		"other bytes of the same size": func(w *world, one machine, tmp string, s *cay.Snapshot) {
			pages := noise(9, 4*testPiece+100)
			for i := range s.Files {
				if s.Files[i].Name == "pages" {
					s.Files[i].CRC32C = fmt.Sprintf("%08x", sum(pages))
				}
			}
			noError(w, os.WriteFile(filepath.Join(tmp, "pages"), pages, 0o600))
		},
		"more bytes": func(w *world, one machine, tmp string, s *cay.Snapshot) {
			pages := noise(9, 6*testPiece)
			for i := range s.Files {
				if s.Files[i].Name == "pages" {
					s.Files[i].Size, s.Files[i].CRC32C = int64(len(pages)), fmt.Sprintf("%08x", sum(pages))
				}
			}
			noError(w, os.WriteFile(filepath.Join(tmp, "pages"), pages, 0o600))
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			one, other := w.machine("one"), w.machine("other")
			noError(t, one.Take(t.Context()))
			tmp, s := one.writes(t, 1)
			one.Ahead(s.ID, tmp)
			if n := one.sent(s.ID); n != 2 { // the third is in a directory
				t.Errorf("%d files are sent ahead", n)
			}
			before := w.written(s.ID)
			if len(before) == 0 {
				t.Error("no pieces are there")
			}
			if err := other.Fetch(t.Context(), s.ID); cay.KindOf(err) != cay.NotFound {
				t.Errorf("it is there before it is: %v", err)
			}
			change(w, one, tmp, &s)
			noError(t, one.dir.Commit(tmp, s))
			noError(t, one.Push(t.Context(), s.ID))
			after := w.written(s.ID)
			for path, at := range before {
				if !after[path].Equal(at) {
					t.Errorf("%s was written again", path)
				}
			}
			noError(t, other.Fetch(t.Context(), s.ID))
			same(t, one, other, s)
			if len(one.early) > 0 {
				t.Error("it is kept in memory")
			}
		})
	}
}

// TestAheadOfAPush: a Push goes on with what is under way.
func TestAheadOfAPush(t *testing.T) {
	w := newWorld(t)
	one, other := w.machine("one"), w.machine("other")
	noError(t, one.Take(t.Context()))
	tmp, s := one.writes(t, 1)
	one.Ahead(s.ID, tmp)
	noError(t, one.dir.Commit(tmp, s))
	noError(t, one.Push(t.Context(), s.ID))
	noError(t, other.Fetch(t.Context(), s.ID))
	same(t, one, other, s)
}

// TestAheadOfNothing: what cannot be copied ahead is copied later, or never, and leaves nothing that
// counts.
func TestAheadOfNothing(t *testing.T) {
	w := newWorld(t)
	one, other := w.machine("one"), w.machine("other")
	tmp, s := one.writes(t, 1)
	one.Ahead(s.ID, filepath.Join(tmp, "none"))
	if len(one.early) > 0 {
		t.Error("files that are not there are copied")
	}
	noError(t, other.Take(t.Context())) // which writes it from now on
	one.Ahead(s.ID, tmp)
	if n := one.sent(s.ID); n != 0 || len(w.written(s.ID)) != 0 {
		t.Errorf("%d files are in a bucket of another", n)
	}
	noError(t, one.Take(t.Context()))
	one.Ahead(s.ID, tmp)
	one.sent(s.ID)
	// It is never finished: its pieces go as those of a copy that broke off.
	noError(t, one.dir.Abort(tmp))
	if err := one.Push(t.Context(), s.ID); cay.KindOf(err) != cay.NotFound {
		t.Errorf("a Push of what is not there: %v", err)
	}
	one.keepFor = 0
	removed, err := one.Collect(t.Context(), func(cay.SnapshotID) (bool, error) { return false, nil })
	noError(t, err)
	if left := w.written(s.ID); removed == 0 || len(left) != 0 {
		t.Errorf("%d objects were removed, there are %v", removed, maps.Keys(left))
	}
}
