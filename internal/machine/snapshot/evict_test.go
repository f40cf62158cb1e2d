package snapshot

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cay-run/cay"
)

// teams commits a snapshot of a team's sandbox.
func teams(t *testing.T, d *Dir, text string) cay.Snapshot {
	t.Helper()
	tmp, s := begin(t, d, text)
	s.Team, s.Sandbox = "a", cay.NewSandboxID()
	if err := d.Commit(tmp, s); err != nil {
		t.Fatal(err)
	}
	return s
}

func evict(t *testing.T, d *Dir, id cay.SnapshotID, want bool) {
	t.Helper()
	if done, err := d.Evict(id); done != want || err != nil {
		t.Fatalf("evicted: %v, %v, want %v", done, err, want)
	}
}

// TestEvict: the files of a snapshot go and its record stays, counted as before, also for
// the next process; it comes back by a Commit, and goes by Remove.
func TestEvict(t *testing.T) {
	data := t.TempDir()
	d := open(t, data)
	s := teams(t, d, "memory")
	counted := func(d *Dir, want int64) {
		t.Helper()
		if got, err := d.Saved("a"); got != want || err != nil {
			t.Errorf("%d bytes are saved, %v, want %d", got, err, want)
		}
	}
	counted(d, 6)
	evict(t, d, s.ID, true)
	evict(t, d, s.ID, false) // it is not here
	for _, d := range []*Dir{d, open(t, data)} {
		_, _, err := d.Get(s.ID)
		wantKind(t, err, cay.NotFound)
		if got, err := d.Record(s.ID); err != nil || got.ID != s.ID || got.Size() != 6 {
			t.Errorf("its record is %+v, %v", got, err)
		}
		if ids, err := d.IDs(); len(ids) != 0 || err != nil {
			t.Errorf("%v have files here, %v", ids, err)
		}
		if c, err := d.Cached(); len(c.Snapshots) != 0 || c.Evicted != 1 || err != nil {
			t.Errorf("cached: %+v, %v", c, err)
		}
		if err := d.Verify(t.Context(), s.ID); cay.KindOf(err) != cay.NotFound || !strings.Contains(err.Error(), "in the bucket alone") {
			t.Errorf("verify says %v", err)
		}
		counted(d, 6)
	}
	tmp, back := begin(t, d, "memory")
	back.ID, back.Team, back.Sandbox = s.ID, s.Team, s.Sandbox
	if err := d.Commit(tmp, back); err != nil {
		t.Fatal(err)
	}
	if left := left(t, data); !slices.Equal(left, []string{string(s.ID)}) {
		t.Errorf("there is %v", left)
	}
	if err := d.Verify(t.Context(), s.ID); err != nil {
		t.Error(err)
	}
	counted(d, 6)
	evict(t, d, s.ID, true)
	if err := d.Remove(s.ID); err != nil {
		t.Fatal(err)
	}
	d.Settle()
	counted(d, 0)
	_, err := d.Record(s.ID)
	wantKind(t, err, cay.NotFound)
	if left := left(t, data); len(left) != 0 {
		t.Errorf("%v is left", left)
	}
}

// TestEvictNothingUsed: neither what is used nor what instances read is evicted.
func TestEvictNothingUsed(t *testing.T) {
	d := open(t, t.TempDir())
	s := teams(t, d, "memory")
	done := d.Use(s.ID)
	kept := d.Keep(s.ID)
	evict(t, d, s.ID, false)
	done()
	evict(t, d, s.ID, false)
	d.Hold(s.ID)
	kept()
	evict(t, d, s.ID, false)
	if err := d.LetGo(s.ID); err != nil {
		t.Fatal(err)
	}
	evict(t, d, s.ID, true)
	evict(t, d, "../images", false)
}

// TestEvictAndUse: a start finds a snapshot that stays until it is done, or none, whenever
// the snapshot is evicted.
func TestEvictAndUse(t *testing.T) {
	d := open(t, t.TempDir())
	for range 50 {
		s := teams(t, d, "memory")
		var all sync.WaitGroup
		for range 5 {
			all.Go(func() {
				defer d.Use(s.ID)()
				dir, _, err := d.Get(s.ID)
				if cay.KindOf(err) == cay.NotFound {
					return
				}
				if err == nil {
					_, err = os.ReadFile(filepath.Join(dir, "memory.img"))
				}
				if err != nil {
					t.Error(err)
				}
			})
			all.Go(func() {
				if _, err := d.Evict(s.ID); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if _, err := d.Record(s.ID); err != nil {
			t.Fatal(err)
		}
	}
}

// TestEvictionIsCutShort: the next Open finishes it; one whose snapshot came back goes.
func TestEvictionIsCutShort(t *testing.T) {
	data := t.TempDir()
	d := open(t, data)
	half, back := teams(t, d, "memory"), teams(t, d, "other")
	if _, err := d.takeAway(half.ID); err != nil { // its files are there still
		t.Fatal(err)
	}
	if err := os.Mkdir(d.evictedPath(back.ID), 0o700); err != nil {
		t.Fatal(err)
	}
	d = open(t, data)
	if _, err := os.Lstat(filepath.Join(d.evictedPath(half.ID), "memory.img")); !os.IsNotExist(err) {
		t.Errorf("the file is there still: %v", err)
	}
	if _, err := d.Record(half.ID); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(d.evictedPath(back.ID)); !os.IsNotExist(err) {
		t.Errorf("what is left of the eviction is there still: %v", err)
	}
	if _, _, err := d.Get(back.ID); err != nil {
		t.Error(err)
	}
}

// TestCached: teams' snapshots come in the order of their last use, which the next process
// knows; those of Cay's templates and their images are no part of the cache.
func TestCached(t *testing.T) {
	data := t.TempDir()
	d := open(t, data)
	commit(t, d, "a template of Cay's")
	image := func(digest string) {
		if err := os.WriteFile(d.imagePath(digest), make([]byte, 1<<12), 0o400); err != nil {
			t.Fatal(err)
		}
	}
	image(strings.Repeat("ab", 32))
	image(strings.Repeat("cd", 32))
	var ids []cay.SnapshotID
	for i := range 3 {
		s := teams(t, d, strings.Repeat("x", i+1))
		ids = append(ids, s.ID)
		at := time.Now().Add(time.Duration(i-10) * time.Hour)
		if err := os.Chtimes(d.path(s.ID), at, at); err != nil {
			t.Fatal(err)
		}
	}
	order := func(d *Dir, want ...cay.SnapshotID) {
		t.Helper()
		c, err := d.Cached()
		var got []cay.SnapshotID
		for _, s := range c.Snapshots {
			got = append(got, s.ID)
		}
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("cached: %v, %v, want %v", got, err, want)
		}
		if len(c.Images) != 1 || c.Images[0].Digest != strings.Repeat("cd", 32) || c.Images[0].Needed {
			t.Errorf("images: %+v", c.Images)
		}
		if sum := c.Bytes(); sum < 1<<12+6 {
			t.Errorf("they take %d bytes", sum)
		}
	}
	d = open(t, data)
	order(d, ids...)
	d.Use(ids[0])()
	order(d, ids[1], ids[2], ids[0])
	order(open(t, data), ids[1], ids[2], ids[0])
}

// TestRemoveSpareImage: a root image stays while a snapshot stands on it that is here, or that is
// used and may be on its way here.
func TestRemoveSpareImage(t *testing.T) {
	d := open(t, t.TempDir())
	s := teams(t, d, "memory")
	if err := os.WriteFile(d.imagePath(s.Root), []byte("image"), 0o400); err != nil {
		t.Fatal(err)
	}
	is := func(want bool) {
		t.Helper()
		if done, err := d.RemoveSpareImage(s.Root); done != want || err != nil {
			t.Fatalf("evicted: %v, %v, want %v", done, err, want)
		}
	}
	is(false)
	evict(t, d, s.ID, true)
	for _, id := range []cay.SnapshotID{s.ID, cay.NewSnapshotID()} { // one that comes back, one of another node
		done := d.Use(id)
		is(false)
		done()
	}
	is(true)
	_, err := d.Image(s.Root)
	wantKind(t, err, cay.NotFound)
}
