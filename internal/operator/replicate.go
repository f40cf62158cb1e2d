package operator

import (
	"cmp"
	"context"
	"maps"
	"slices"
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
	// PushFiles copies a snapshot there, but for its root image, unless it is there.
	PushFiles(ctx context.Context, id cay.SnapshotID) error
	// PushImage copies the root image there, unless it is there.
	PushImage(ctx context.Context, id cay.SnapshotID) error
	// Prepare is PushImage for a template, whose image stays for a day.
	Prepare(ctx context.Context, id cay.SnapshotID) error
	// Collect removes the copies that used denies.
	Collect(ctx context.Context, used func(cay.SnapshotID) (bool, error)) (int, error)
}

// replication is how far the copies are.
type replication struct {
	swept time.Time
	asked time.Time // when it was last looked which records lack one
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
//
// Their files go first, and root images beside them: one that the bucket lacks takes as long as the
// files of many snapshots, and most nodes have it.
func (d *Desk) ReplicateAlways(ctx context.Context) {
	if d.cfg.Replica == nil {
		return
	}
	r := replication{swept: time.Now()}
	d.made.Store(time.Now().UnixNano())
	var both sync.WaitGroup
	both.Go(func() { d.again(ctx, &d.failing[0], d.hurry, func() error { return d.replicate(ctx, &r) }) })
	both.Go(func() { d.again(ctx, &d.failing[1], d.filed.some, func() error { return d.complete(ctx) }) })
	both.Wait()
}

// setback is why copies do not get on, and when that was seen last.
type setback struct {
	mu  sync.Mutex
	err error
	at  time.Time
}

func (s *setback) note(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err, s.at = err, time.Now()
}

func (s *setback) since(t time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.at.Before(t) {
		return nil
	}
	return s.err
}

// CopiesFail is why copies do not get on, as was seen since a time.
func (d *Desk) CopiesFail(since time.Time) error {
	return cmp.Or(d.failing[0].since(since), d.failing[1].since(since))
}

// again does something each second, and at once where it is woken, until ctx ends. The log has its
// error once.
func (d *Desk) again(ctx context.Context, failing *setback, wake <-chan struct{}, do func() error) {
	told := ""
	tick := time.NewTicker(replicateEvery)
	defer tick.Stop()
	for {
		err := do()
		failing.note(err)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil && told != "":
			d.cfg.Log.InfoContext(ctx, "snapshots are copied to the bucket again")
			told = ""
		case err != nil && err.Error() != told:
			d.cfg.Log.WarnContext(ctx, "snapshots are on this machine alone until they can be copied to the bucket", "err", err)
			told = err.Error()
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-wake:
		}
	}
}

// filed are the snapshots whose files the bucket has, and whose root image it may lack, with the time
// when their copies began.
type filed struct {
	mu   sync.Mutex
	of   map[cay.SnapshotID]time.Time
	some chan struct{} // a token where there is a new one
}

func (f *filed) put(id cay.SnapshotID, begun time.Time) {
	f.mu.Lock()
	f.of[id] = begun
	f.mu.Unlock()
	select {
	case f.some <- struct{}{}:
	default:
	}
}

func (f *filed) drop(id cay.SnapshotID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.of, id)
}

func (f *filed) all() map[cay.SnapshotID]time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.of)
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
	needs := d.needs(ctx)
	lacking, err := d.lacking(needs)
	if err != nil {
		return err
	}
	d.uncopied.Store(int64(len(lacking)))
	if err := d.takeBucket(ctx); err != nil {
		return err
	}
	filed := d.filed.all()
	err = d.eachCopy(lacking, needs, func(id cay.SnapshotID) error {
		if _, done := filed[id]; done || d.copied.has(id) || d.cfg.Control.CopiedElsewhere(id) {
			return nil
		}
		begun := time.Now()
		err := d.cfg.Replica.PushFiles(ctx, id)
		if err == nil {
			d.filed.put(id, begun)
		}
		return err
	})
	if err != nil && cay.CodeOf(err) != cay.CodeDamaged {
		return err
	}
	// A record may be made some time after the copy; asking the records each second is for
	// the minute in which most are.
	ask := time.Since(time.Unix(0, d.made.Load())) < askAfter || time.Since(r.asked) >= askSeldom
	if ask {
		r.asked = time.Now()
	}
	d.tellRecords(ctx, ask)
	if err == nil && time.Since(r.swept) > sweepEvery && (d.cfg.Leads == nil || d.cfg.Leads()) {
		r.swept = time.Now()
		removed, err := d.cfg.Replica.Collect(ctx, func(id cay.SnapshotID) (bool, error) { return needs(id), nil })
		if removed > 0 {
			d.cfg.Log.InfoContext(ctx, "copies that nothing needs were removed from the bucket", "objects", removed)
		}
		return err
	}
	return err
}

// eachCopy does a thing with snapshots, one after the other. One that was removed meanwhile is left
// out, and one that is damaged is told when the others are done.
func (d *Desk) eachCopy(ids []cay.SnapshotID, needs func(cay.SnapshotID) bool, do func(cay.SnapshotID) error) (damaged error) {
	for _, id := range ids {
		err := do(id)
		switch {
		case err != nil && !needs(id): // it was removed in the middle: that may look like damage
			d.filed.drop(id)
		case cay.CodeOf(err) == cay.CodeDamaged:
			damaged = err
		case err != nil:
			return err
		}
	}
	return damaged
}

// complete copies the root images of snapshots whose files are in the bucket, the oldest first.
func (d *Desk) complete(ctx context.Context) error {
	filed := d.filed.all()
	if len(filed) == 0 {
		return nil
	}
	ids := slices.SortedFunc(maps.Keys(filed), func(a, b cay.SnapshotID) int { return filed[a].Compare(filed[b]) })
	return d.eachCopy(ids, d.needs(ctx), func(id cay.SnapshotID) error {
		if err := d.cfg.Replica.PushImage(ctx, id); err != nil {
			return err
		}
		d.copied.put(id, true)
		d.filed.drop(id)
		d.made.Store(time.Now().UnixNano())
		d.uncopied.Add(-1)
		d.tellRecords(ctx, true)
		d.tellCopied(ctx, id, time.Since(filed[id]))
		return nil
	})
}

// tellRecords has the records say what the bucket has; with ask they are asked for those that it is
// not known of.
func (d *Desk) tellRecords(ctx context.Context, ask bool) {
	d.telling.Lock()
	defer d.telling.Unlock()
	d.cfg.Copied(ctx, d.copied.has, ask)
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
