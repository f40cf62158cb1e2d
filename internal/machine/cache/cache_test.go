package cache

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/disk"
	"github.com/cay-run/cay/internal/machine/snapshot"
)

// bucket has what a test says.
type bucket struct {
	mu     sync.Mutex
	lacks  map[cay.SnapshotID]bool
	away   bool
	pushed []cay.SnapshotID
	asked  int
}

func (b *bucket) Kept(_ context.Context, id cay.SnapshotID) (bool, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.asked++
	if b.away {
		return false, cay.Errorf(cay.Unavailable, "away")
	}
	return !b.lacks[id], nil
}

func (b *bucket) KeptImage(context.Context, string) (bool, error) { return true, nil }

func (b *bucket) Push(_ context.Context, id cay.SnapshotID) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pushed = append(b.pushed, id)
	delete(b.lacks, id)
	return nil
}

// world is a cache over a real directory, with snapshots of a kilobyte of which each was used
// an hour after the one before.
type world struct {
	*testing.T
	*Cache
	data   string
	dir    *snapshot.Dir
	bucket *bucket
	limit  int64
	wanted map[string]bool // images
	ids    []cay.SnapshotID
}

const each = 1000

func newWorld(t *testing.T, snapshots int) *world {
	w := &world{T: t, data: t.TempDir(), bucket: &bucket{lacks: map[cay.SnapshotID]bool{}}, limit: 1 << 40}
	w.open()
	for i := range snapshots {
		tmp, err := w.dir.Begin()
		if err == nil {
			err = os.WriteFile(filepath.Join(tmp, "memory"), make([]byte, each), 0o600)
		}
		s := cay.Snapshot{
			Format: 1, ID: cay.NewSnapshotID(), Team: "a", Sandbox: cay.NewSandboxID(), Root: root(i),
			Files: []cay.SnapFile{{Name: "memory", Size: each}},
		}
		if err == nil {
			err = w.dir.Commit(tmp, s)
		}
		at := time.Now().Add(time.Duration(i-snapshots) * time.Hour)
		if err = errors.Join(err, os.Chtimes(filepath.Join(w.data, "snapshots", string(s.ID)), at, at)); err != nil {
			t.Fatal(err)
		}
		w.ids = append(w.ids, s.ID)
	}
	w.open()
	w.Cache = New(Config{
		Dir: w.dir, Copies: w.bucket, Disk: disk.Reserve{Dir: w.data, Bytes: 1}, Log: slog.New(slog.DiscardHandler),
		Limit:  func(int64) int64 { return w.limit },
		Copied: func(id cay.SnapshotID) bool { return true }, Pinned: func(cay.SnapshotID) bool { return false },
		Idle: func(_ context.Context, f func(map[string]bool) error) (bool, error) { return true, f(w.wanted) },
	})
	return w
}

func root(i int) string { return fmt.Sprintf("%064x", i) }

func (w *world) open() {
	w.Helper()
	var err error
	if w.dir, err = snapshot.Open(w.data); err != nil {
		w.Fatal(err)
	}
}

// left checks which of the snapshots, by number, are here.
func (w *world) left(want ...int) {
	w.Helper()
	var got []int
	for i, id := range w.ids {
		if _, _, err := w.dir.Get(id); err == nil {
			got = append(got, i)
		}
	}
	if !slices.Equal(got, want) {
		w.Errorf("snapshots %v are here, want %v", got, want)
	}
}

func (w *world) keep() {
	w.Helper()
	if err := w.Keep(w.Context()); err != nil {
		w.Error(err)
	}
}

// TestLimit: beyond its limit the cache loses what was used least recently, and never what is
// used, pinned, or not known to be in the bucket.
func TestLimit(t *testing.T) {
	w := newWorld(t, 6)
	w.keep()
	w.left(0, 1, 2, 3, 4, 5)
	w.limit = 4 * each
	w.keep()
	w.left(2, 3, 4, 5)
	if s := w.Stats(); s.Bytes != 4*each || s.Limit != 4*each || s.Evicted != 2 || s.Snapshots != 2 {
		t.Errorf("%+v", s)
	}
	w.limit = 0
	defer w.dir.Use(w.ids[2])()
	w.cfg.Pinned = func(id cay.SnapshotID) bool { return id == w.ids[3] }
	w.cfg.Copied = func(id cay.SnapshotID) bool { return id != w.ids[4] }
	w.keep()
	w.left(2, 3, 4)
}

// TestLackingCopy: one whose copy is not whole stays, is copied anew, and goes then.
func TestLackingCopy(t *testing.T) {
	w := newWorld(t, 2)
	w.limit = 0
	w.bucket.lacks[w.ids[0]] = true
	w.keep()
	w.left(0)
	if !slices.Equal(w.bucket.pushed, w.ids[:1]) {
		t.Errorf("copied: %v", w.bucket.pushed)
	}
	w.keep()
	w.left()
}

// TestBucketAway: nothing goes, and the bucket is asked once, not by each that needs room.
func TestBucketAway(t *testing.T) {
	w := newWorld(t, 2)
	w.limit = 0
	w.bucket.away = true
	if err := w.Keep(t.Context()); cay.KindOf(err) != cay.Unavailable {
		t.Errorf("the bucket is away: %v", err)
	}
	w.GiveWay(func() bool { return false })
	w.keep()
	w.left(0, 1)
	if w.bucket.asked != 1 {
		t.Errorf("the bucket was asked %d times", w.bucket.asked)
	}
}

// TestGiveWay: work that needs room has the cache evict as much as that takes, five at once no
// more than one.
func TestGiveWay(t *testing.T) {
	w := newWorld(t, 6)
	enough := func() bool { return w.evicted() >= 2 }
	var all sync.WaitGroup
	for range 5 {
		all.Go(func() { w.GiveWay(enough) })
	}
	all.Wait()
	w.left(2, 3, 4, 5)

	// A reserve asks for it before it refuses, and is asked no more than it needs.
	refuses := disk.Reserve{Dir: w.data, Bytes: 1 << 60, GiveWay: w.GiveWay}
	err := refuses.Room("a sandbox", 0)
	if cay.KindOf(err) != cay.NoSpace {
		t.Errorf("a disk that stays full: %v", err)
	}
	w.left()
}

func (w *world) evicted() int {
	ids, err := w.dir.EvictedIDs()
	if err != nil {
		w.Error(err)
	}
	return len(ids)
}

// TestNearlyFullDisk: the cache gives way before the disk comes to its reserve.
func TestNearlyFullDisk(t *testing.T) {
	w := newWorld(t, 2)
	w.cfg.Disk.Bytes = 1 << 60
	w.keep()
	w.left()
}

// TestImages: a root image goes when nothing here stands on it and no build begins with it.
func TestImages(t *testing.T) {
	w := newWorld(t, 2)
	image := func(i int) string { return filepath.Join(w.data, "images", root(i)+".erofs") }
	for i := range 3 {
		if err := os.WriteFile(image(i), []byte(strings.Repeat("x", each)), 0o400); err != nil {
			t.Fatal(err)
		}
	}
	defer w.dir.Use(w.ids[1])()
	w.limit, w.wanted = 0, map[string]bool{root(2): true}
	w.keep() // of the snapshot
	w.keep() // of what it stood on
	for i, there := range []bool{false, true, true} {
		if _, err := os.Stat(image(i)); (err == nil) != there {
			t.Errorf("image %d: %v", i, err)
		}
	}
	if s := w.Stats(); s.Images != 1 || s.Snapshots != 1 {
		t.Errorf("%+v", s)
	}
}
