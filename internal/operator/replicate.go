package operator

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/cay-run/cay"
)

// A snapshot is copied to the bucket soon after it is saved; copies that nothing needs
// leave it once an hour.
const (
	replicateEvery = time.Second
	sweepEvery     = time.Hour
	askAfter       = time.Minute
	askSeldom      = 15 * time.Second
)

// Replica is where copies of snapshots are.
type Replica interface {
	// Take makes it this machine's to write.
	Take(ctx context.Context) error
	// Push copies a snapshot there, unless it is there.
	Push(ctx context.Context, id cay.SnapshotID) error
	// Prepare copies there what snapshots that are made from one need beside their own files,
	// for a day.
	Prepare(ctx context.Context, id cay.SnapshotID) error
	// Collect removes the copies that used denies.
	Collect(ctx context.Context, used func(cay.SnapshotID) (bool, error)) (int, error)
}

// replication is how far the copies are.
type replication struct {
	swept time.Time
	made  time.Time // the last copy
	asked time.Time // when it was last looked which records lack one
	told  string    // the error that the log has
}

// copies are the snapshots that the bucket has, as far as this server has seen. The zero value
// is ready.
type copies struct {
	mu sync.Mutex
	of map[cay.SnapshotID]bool // false for those that are not to be there
}

func (c *copies) has(id cay.SnapshotID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.of[id]
}

func (c *copies) known(id cay.SnapshotID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, known := c.of[id]
	return known
}

func (c *copies) put(id cay.SnapshotID, has bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of == nil {
		c.of = map[cay.SnapshotID]bool{}
	}
	c.of[id] = has
}

// keep forgets all others.
func (c *copies) keep(there map[cay.SnapshotID]bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.of, func(id cay.SnapshotID, _ bool) bool { return !there[id] })
}

// HasCopy reports whether the bucket has a snapshot, as far as this server has seen.
func (d *Desk) HasCopy(id cay.SnapshotID) bool { return d.copied.has(id) }

// ReplicateAlways copies snapshots of teams' to the bucket until ctx ends. It asks
// a bucket that is away again: snapshots that are saved meanwhile follow.
func (d *Desk) ReplicateAlways(ctx context.Context) {
	if d.cfg.Replica == nil {
		return
	}
	r := replication{swept: time.Now(), made: time.Now()}
	tick := time.NewTicker(replicateEvery)
	defer tick.Stop()
	for {
		err := d.replicate(ctx, &r)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil && r.told != "":
			d.cfg.Log.InfoContext(ctx, "all snapshots are in the bucket again")
			r.told = ""
		case err != nil && err.Error() != r.told:
			d.cfg.Log.WarnContext(ctx, "snapshots are on this machine alone until they can be copied to the bucket", "err", err)
			r.told = err.Error()
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-d.hurry:
		}
	}
}

// Hurry has a snapshot that was just saved be copied at once: a client waits for that.
func (d *Desk) Hurry() {
	select {
	case d.hurry <- struct{}{}:
	default:
	}
}

// Uncopied is how many snapshots of this machine the bucket has not got yet, as they were
// seen last.
func (d *Desk) Uncopied() int { return int(d.uncopied.Load()) }

// lacking are the snapshots that the bucket has not got yet, and forgets those that are no more.
func (d *Desk) lacking(needs func(cay.SnapshotID) bool) (out []cay.SnapshotID, err error) {
	ids, err := d.cfg.Snapshots.IDs()
	if err != nil {
		return nil, err
	}
	there := map[cay.SnapshotID]bool{}
	for _, name := range ids {
		id := cay.SnapshotID(name)
		there[id] = true
		if d.copied.known(id) || !needs(id) {
			continue
		}
		_, s, err := d.cfg.Snapshots.Get(id)
		switch {
		case err != nil: // cay snapshot verify tells
		case s.Team == "" && s.Sandbox == "": // one that Cay brings, which each machine makes
			d.copied.put(id, false)
		default:
			out = append(out, id)
		}
	}
	evicted, err := d.cfg.Snapshots.EvictedIDs()
	if err != nil {
		return nil, err
	}
	for _, id := range evicted { // the bucket alone has it
		there[id] = true
		d.copied.put(id, true)
	}
	d.copied.keep(there)
	return out, nil
}

func (d *Desk) replicate(ctx context.Context, r *replication) error {
	needs, has := d.needs(ctx), d.copied.has
	lacking, err := d.lacking(needs)
	if err != nil {
		return err
	}
	d.uncopied.Store(int64(len(lacking)))
	if err := d.takeBucket(ctx); err != nil {
		return err
	}
	var failed error
	for _, id := range lacking {
		begun := time.Now()
		err := d.cfg.Replica.Push(ctx, id)
		switch {
		case err == nil:
			d.copied.put(id, true)
			r.made = time.Now()
			d.uncopied.Add(-1)
			d.cfg.Copied(ctx, has, true)
			d.tellCopied(ctx, id, time.Since(begun))
		case cay.KindOf(err) == cay.NotFound && !needs(id): // removed meanwhile
		case cay.CodeOf(err) == cay.CodeDamaged: // the others follow
			failed = err
		default:
			return err
		}
	}
	// A record may be made some time after the copy; asking the records each second is for
	// the minute in which most are.
	ask := time.Since(r.made) < askAfter || time.Since(r.asked) >= askSeldom
	if ask {
		r.asked = time.Now()
	}
	d.cfg.Copied(ctx, has, ask)
	if failed == nil && time.Since(r.swept) > sweepEvery && (d.cfg.Leads == nil || d.cfg.Leads()) {
		r.swept = time.Now()
		removed, err := d.cfg.Replica.Collect(ctx, func(id cay.SnapshotID) (bool, error) { return needs(id), nil })
		if removed > 0 {
			d.cfg.Log.InfoContext(ctx, "copies that nothing needs were removed from the bucket", "objects", removed)
		}
		return err
	}
	return failed
}

// takeBucket makes the bucket this server's to write, once: one that another has taken since stays
// that one's.
func (d *Desk) takeBucket(ctx context.Context) error {
	d.taking.Lock()
	defer d.taking.Unlock()
	if d.taken {
		return nil
	}
	err := d.cfg.Replica.Take(ctx)
	d.taken = err == nil
	return err
}

func (d *Desk) tellCopied(ctx context.Context, id cay.SnapshotID, took time.Duration) {
	if _, s, err := d.cfg.Snapshots.Get(id); err == nil { // it may be removed by now
		d.cfg.Log.InfoContext(ctx, "a snapshot is in the bucket", "snapshot", s.ID, "sandbox", s.Sandbox, "bytes", s.Size(), "took", took)
	}
}
