// Package cache bounds what a data directory has of snapshots that a bucket has too. Those
// used least recently are evicted first, and come back when they are needed.
package cache

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/disk"
	"github.com/cay-run/cay/internal/machine/snapshot"
	"github.com/cay-run/cay/internal/ticks"
)

const (
	lookEvery = time.Second
	// passWithin bounds one search for what may go; work that needs room waits for as long.
	passWithin = 10 * time.Second
	// askAgain is when the bucket is asked again that did not answer, or had no whole copy.
	askAgain  = time.Minute
	failedFor = 10 * time.Second
)

// Copies is the bucket.
type Copies interface {
	// Kept reports whether it has a snapshot as it is here, with its root image.
	Kept(ctx context.Context, id cay.SnapshotID) (bool, error)
	// KeptImage reports whether it has a root image.
	KeptImage(ctx context.Context, digest string) (bool, error)
	// Push copies what it lacks of a snapshot.
	Push(ctx context.Context, id cay.SnapshotID) error
}

// Config is what a Cache works with.
type Config struct {
	Dir    *snapshot.Dir
	Copies Copies
	Disk   disk.Reserve
	// Limit is how many bytes snapshots and root images may take on a disk of a size.
	Limit func(disk int64) int64
	// Copied reports whether the bucket was seen to have a snapshot, and Pinned, whether work in
	// progress holds it.
	Copied, Pinned func(cay.SnapshotID) bool
	// Idle runs f while no template is being built, or not at all, with the root images that
	// builds may begin with.
	Idle func(ctx context.Context, f func(wanted map[string]bool) error) (bool, error)
	Log  *slog.Logger
}

// Stats is what there is to see of a cache.
type Stats struct {
	Bytes, Limit      int64
	Evicted           int   // snapshots whose files the bucket alone has
	Snapshots, Images int64 // that were evicted so far
}

// State is what a data directory has of what may be evicted.
type State struct {
	On            bool // there is a bucket
	Bytes, Limit  int64
	Evictable     int64 // that are in no use, and copied
	Used          int64 // that run or are read now
	Uncopied      int   // snapshots that the bucket is not known to have
	UncopiedBytes int64
	Evicted       int // snapshots that the bucket alone has
	BucketIsAway  bool
	CopiesFail    string // why the latest copies to the bucket failed; empty if they get on
}

// Cache evicts. Its methods may be called at the same time.
type Cache struct {
	cfg  Config
	turn chan struct{} // holds a value while a search is under way

	mu     sync.Mutex
	lacks  map[cay.SnapshotID]time.Time // when the bucket had no whole copy
	failed time.Time                    // when it did not answer
	stats  Stats

	told atomic.Bool // the log has that the bucket does not answer
}

// New returns the cache of a data directory.
func New(cfg Config) *Cache {
	return &Cache{cfg: cfg, turn: make(chan struct{}, 1), lacks: map[cay.SnapshotID]time.Time{}}
}

// Stats tells the state of the cache, as it was seen last.
func (c *Cache) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stats
}

// Look tells the state of the cache.
func (c *Cache) Look() (State, error) {
	all, err := c.cfg.Dir.Cached()
	if err != nil {
		return State{}, err
	}
	level, err := c.cfg.Disk.Level()
	out := State{On: true, Bytes: all.Bytes(), Limit: c.cfg.Limit(level.Size), Evicted: all.Evicted, BucketIsAway: c.silent()}
	for _, s := range all.Snapshots {
		switch {
		case !c.cfg.Copied(s.ID):
			out.Uncopied++
			out.UncopiedBytes += s.Bytes
		case s.Used || c.cfg.Pinned(s.ID):
			out.Used += s.Bytes
		default:
			out.Evictable += s.Bytes
		}
	}
	return out, err
}

// Run keeps the cache to its limit, and room on the disk for work to come, until ctx ends.
func (c *Cache) Run(ctx context.Context) {
	for range ticks.AtOnce(ctx, lookEvery) {
		err := c.Keep(ctx)
		switch {
		case err == nil:
			c.told.Store(false)
		case ctx.Err() == nil && !c.told.Swap(true):
			c.cfg.Log.WarnContext(ctx, "nothing can be evicted: the bucket cannot be asked what it has", "err", err)
		}
	}
}

// Keep evicts until the cache is within its limit and the disk is not near its reserve. A copy
// that is not whole is made whole, for the next time.
func (c *Cache) Keep(ctx context.Context) error {
	level, err := c.cfg.Disk.Level()
	if err != nil {
		return err
	}
	limit := c.cfg.Limit(level.Size)
	var mend []cay.SnapshotID
	err = c.pass(ctx, true, limit, func(bytes int64) bool {
		level, err := c.cfg.Disk.Level()
		return bytes <= limit && (err != nil || !level.Near())
	}, func(id cay.SnapshotID) { mend = append(mend, id) })
	for _, id := range mend {
		err = errors.Join(err, c.mend(ctx, id))
	}
	return err
}

// mend has the bucket get what it lacks of a snapshot.
func (c *Cache) mend(ctx context.Context, id cay.SnapshotID) error {
	c.cfg.Log.InfoContext(ctx, "the copy of a snapshot in the bucket lacks something, and is completed", "snapshot", id)
	err := c.cfg.Copies.Push(ctx, id)
	if cay.KindOf(err) == cay.NotFound { // it was removed meanwhile
		return nil
	}
	if err == nil {
		c.mu.Lock()
		delete(c.lacks, id)
		c.mu.Unlock()
	}
	return err
}

// GiveWay evicts until enough says that the disk has the room that work needs, as far as that
// goes: then the work is refused. It is a disk.Reserve's GiveWay.
func (c *Cache) GiveWay(enough func() bool) {
	ctx, cancel := context.WithTimeout(context.Background(), passWithin)
	defer cancel()
	err := c.pass(ctx, false, 0, func(int64) bool { return enough() }, func(cay.SnapshotID) {})
	if err != nil {
		c.cfg.Log.Warn("the cache could not give way to work that needs room on the disk", "err", err)
	}
}

// pass evicts, one after another, until enough says so of the bytes that are left. One search at
// a time: of five callers the others find room then. lacking is told the snapshots whose copies
// are not whole.
func (c *Cache) pass(ctx context.Context, roots bool, limit int64, enough func(bytes int64) bool, lacking func(cay.SnapshotID)) error {
	ctx, cancel := context.WithTimeout(ctx, passWithin)
	defer cancel()
	select {
	case c.turn <- struct{}{}:
		defer func() { <-c.turn }()
	case <-ctx.Done():
		return nil
	}
	all, err := c.cfg.Dir.Cached()
	if err != nil {
		return err
	}
	left := all.Bytes()
	defer func() { c.note(all, left, limit) }()
	if enough(left) || c.silent() {
		return nil
	}
	if roots {
		freed, err := c.evictRoots(ctx, all.Images)
		if left -= freed; err != nil {
			return c.failing(ctx, err)
		}
	}
	for _, s := range all.Snapshots {
		if enough(left) || ctx.Err() != nil {
			return nil
		}
		if s.Used || !c.cfg.Copied(s.ID) || c.lacked(s.ID) || c.cfg.Pinned(s.ID) {
			continue
		}
		kept, err := c.cfg.Copies.Kept(ctx, s.ID)
		if err != nil && cay.KindOf(err) != cay.NotFound {
			return c.failing(ctx, err)
		}
		if !kept {
			c.lack(s.ID)
			lacking(s.ID)
			continue
		}
		done, err := c.cfg.Dir.Evict(s.ID)
		if done {
			left -= s.Bytes
			all.Evicted++
			c.count(1, 0)
			c.cfg.Log.InfoContext(ctx, "a snapshot was evicted: the bucket has it", "snapshot", s.ID, "bytes", s.Bytes, "used", s.At)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// evictRoots removes the root images that nothing here stands on, and says how much that freed.
func (c *Cache) evictRoots(ctx context.Context, images []snapshot.CachedImage) (freed int64, err error) {
	var gone []snapshot.CachedImage
	for _, image := range images {
		if image.Needed {
			continue
		}
		kept, err := c.cfg.Copies.KeptImage(ctx, image.Digest)
		if err != nil {
			return 0, err
		}
		if kept {
			gone = append(gone, image)
		}
	}
	if len(gone) == 0 {
		return 0, nil
	}
	_, err = c.cfg.Idle(ctx, func(wanted map[string]bool) error {
		var errs []error
		for _, image := range gone {
			if wanted[image.Digest] {
				continue
			}
			done, err := c.cfg.Dir.RemoveSpareImage(image.Digest)
			if done {
				freed += image.Bytes
				c.count(0, 1)
				c.cfg.Log.InfoContext(ctx, "a root image was evicted: the bucket has it", "image", image.Digest, "bytes", image.Bytes)
			}
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	})
	return freed, err
}

// note keeps what a search saw.
func (c *Cache) note(all snapshot.Cached, left, limit int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stats.Bytes, c.stats.Evicted = left, all.Evicted
	if limit > 0 {
		c.stats.Limit = limit
	}
}

func (c *Cache) count(snapshots, images int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stats.Snapshots += snapshots
	c.stats.Images += images
}

// failing notes that the bucket does not answer: for a while it is not asked, so that work
// which needs room is refused at once.
func (c *Cache) failing(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil // the search took too long; another one follows
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failed = time.Now()
	return err
}

func (c *Cache) silent() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Since(c.failed) < failedFor
}

// lack notes that the bucket has no whole copy of a snapshot, and lacked tells it for a while.
func (c *Cache) lack(id cay.SnapshotID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lacks[id] = time.Now()
}

func (c *Cache) lacked(id cay.SnapshotID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	at, known := c.lacks[id]
	if known && time.Since(at) >= askAgain {
		delete(c.lacks, id)
		known = false
	}
	return known
}
