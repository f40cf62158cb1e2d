package snapshot

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/disk"
)

const (
	// evictedPrefix begins the name of what is left of a snapshot whose files the bucket
	// alone has: its record. It is counted, listed and removed as if they were here.
	evictedPrefix = ".evicted-"
	// noteUseAfter is how much later a use is than the one on the disk when it is written
	// there: an order of minutes is enough to tell which snapshot was used least recently.
	noteUseAfter = time.Minute
)

// Use notes that a snapshot is used, and keeps its files from being evicted until done is
// called: after Use, Get finds a snapshot that stays, or one that is evicted is not found.
// It does not keep a snapshot from being removed.
func (d *Dir) Use(id cay.SnapshotID) (done func()) {
	done = d.Keep(id)
	if d.saved.mu.TryLock() { // the order is a hint, for which no start waits
		now := time.Now()
		one, known := d.saved.of[id]
		late := known && one.place == here && !one.brought() && now.Sub(one.used) >= noteUseAfter
		if late {
			one.used = now
			d.saved.of[id] = one
		}
		d.saved.mu.Unlock()
		if late {
			_ = os.Chtimes(d.path(id), now, now)
		}
	}
	return done
}

// Keep is Use for those that only read, copy or compare.
func (d *Dir) Keep(id cay.SnapshotID) (done func()) {
	d.mapped.mu.Lock()
	defer d.mapped.mu.Unlock()
	if d.mapped.users == nil {
		d.mapped.users = map[cay.SnapshotID]int{}
	}
	d.mapped.users[id]++
	return func() {
		d.mapped.mu.Lock()
		defer d.mapped.mu.Unlock()
		if d.mapped.users[id]--; d.mapped.users[id] <= 0 {
			delete(d.mapped.users, id)
		}
	}
}

// Cached is what of teams' snapshots and root images is here.
type Cached struct {
	Snapshots []CachedSnapshot // used least recently first
	Images    []CachedImage    // that no snapshot stands on which Cay brings
	Evicted   int              // snapshots whose files are not here
}

// CachedSnapshot is a snapshot of a team's whose files are here.
type CachedSnapshot struct {
	ID    cay.SnapshotID
	Bytes int64
	At    time.Time // of its last use
	Used  bool      // now: it cannot be evicted
}

// CachedImage is a root image.
type CachedImage struct {
	Digest string
	Bytes  int64 // that it takes on the disk
	Needed bool  // a snapshot stands on it whose files are here
}

// Bytes is what all of it takes.
func (c Cached) Bytes() (sum int64) {
	for _, s := range c.Snapshots {
		sum += s.Bytes
	}
	for _, i := range c.Images {
		sum += i.Bytes
	}
	return sum
}

// Cached tells what of teams' snapshots and their root images is here.
func (d *Dir) Cached() (out Cached, err error) {
	images, err := d.Images()
	if err != nil {
		return out, err
	}
	used := d.used()
	needed, brought := map[string]bool{}, map[string]bool{}
	err = d.each(func(id cay.SnapshotID, one share) {
		switch {
		case one.place == evicted:
			out.Evicted++
			return
		case one.brought():
			brought[one.root] = true
		case one.place == here:
			out.Snapshots = append(out.Snapshots, CachedSnapshot{id, one.bytes, one.used, used[id]})
		}
		needed[one.root] = true
	})
	slices.SortFunc(out.Snapshots, func(a, b CachedSnapshot) int { return a.At.Compare(b.At) })
	for _, digest := range images {
		if !brought[digest] {
			out.Images = append(out.Images, CachedImage{digest, disk.Use(d.imagePath(digest)), needed[digest]})
		}
	}
	return out, err
}

// used are the snapshots that are in use.
func (d *Dir) used() map[cay.SnapshotID]bool {
	d.mapped.mu.Lock()
	defer d.mapped.mu.Unlock()
	out := map[cay.SnapshotID]bool{}
	for _, by := range []map[cay.SnapshotID]int{d.mapped.users, d.mapped.by} {
		for id := range by {
			out[id] = true
		}
	}
	return out
}

// each visits all snapshots that are known.
func (d *Dir) each(visit func(cay.SnapshotID, share)) error {
	d.saved.mu.Lock()
	defer d.saved.mu.Unlock()
	if err := d.load(); err != nil {
		return err
	}
	for id, one := range d.saved.of {
		visit(id, one)
	}
	return nil
}

// Evict removes the files of a snapshot that the bucket has as well, and leaves its record.
// It reports whether it did: one that is used, or read by instances, stays as it is. Its
// room is free when Evict returns. A crash leaves a snapshot or an evicted one.
func (d *Dir) Evict(id cay.SnapshotID) (bool, error) {
	moved, err := d.takeAway(id)
	if !moved || err != nil {
		return false, err
	}
	if err := disk.Sync(d.snapshots); err != nil { // the name goes before the files do
		return true, diskError(err, "sync %s", d.snapshots)
	}
	if err := stripped(d.evictedPath(id)); err != nil {
		return true, diskError(err, "remove the files of snapshot %s", id)
	}
	return true, nil
}

// takeAway gives what nothing uses the name of an evicted one.
func (d *Dir) takeAway(id cay.SnapshotID) (bool, error) {
	d.mapped.mu.Lock()
	defer d.mapped.mu.Unlock()
	if !cay.ValidID(string(id)) || d.mapped.users[id] > 0 || d.mapped.by[id] > 0 {
		return false, nil
	}
	_, err := os.Lstat(d.path(id))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err == nil {
		err = os.RemoveAll(d.evictedPath(id)) // a Commit that was cut short leaves one
	}
	if err == nil {
		err = os.Rename(d.path(id), d.evictedPath(id))
	}
	if err != nil {
		return false, diskError(err, "evict snapshot %s", id)
	}
	d.checks.forget(d.path(id))
	d.move(id, evicted)
	return true, nil
}

// dropEvicted removes what is left of an evicted snapshot, if anything is.
func (d *Dir) dropEvicted(id cay.SnapshotID) error {
	if _, err := os.Lstat(d.evictedPath(id)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return d.drop(d.evictedPath(id), id)
}

// RemoveSpareImage removes a root image that no snapshot stands on which is here or is used, and
// reports whether it did. The caller knows that no template is being built, and that the bucket
// has the image, or nothing needs it.
func (d *Dir) RemoveSpareImage(digest string) (bool, error) {
	d.mapped.mu.Lock()
	defer d.mapped.mu.Unlock()
	d.saved.mu.Lock()
	defer d.saved.mu.Unlock()
	if err := d.load(); err != nil {
		return false, err
	}
	for id := range d.mapped.users {
		if one, known := d.saved.of[id]; !known || one.root == digest { // it may be on its way here, or removed under its instance
			return false, nil
		}
	}
	for _, one := range d.saved.of {
		if one.place != evicted && one.root == digest {
			return false, nil
		}
	}
	return true, d.RemoveImage(digest)
}

// Record is the record of a snapshot, also of an evicted one. NotFound when there is none.
func (d *Dir) Record(id cay.SnapshotID) (cay.Snapshot, error) {
	_, s, err := d.Get(id)
	if cay.KindOf(err) == cay.NotFound && cay.ValidID(string(id)) {
		if gone, err := d.evictedRecord(id); err == nil {
			return gone, nil
		}
	}
	return s, err
}

func (d *Dir) evictedRecord(id cay.SnapshotID) (cay.Snapshot, error) {
	s, err := readRecord(d.evictedPath(id))
	if err == nil && s.ID != id {
		err = cay.Errorf(cay.Internal, "the record in %s is that of snapshot %q", d.evictedPath(id), s.ID)
	}
	return s, err
}

// Evicted lists the snapshots whose files the bucket alone has. One without a readable
// record is left out: its next start reads that of the bucket.
func (d *Dir) Evicted() ([]cay.Snapshot, error) { return d.recordsAfter(evictedPrefix) }

// EvictedIDs names them, and reads no records.
func (d *Dir) EvictedIDs() ([]cay.SnapshotID, error) { return d.idsAfter(evictedPrefix) }

// recordsAfter reads the records in the directories whose names begin with a prefix. One that
// cannot be read is left out.
func (d *Dir) recordsAfter(prefix string) ([]cay.Snapshot, error) {
	ids, err := d.idsAfter(prefix)
	var out []cay.Snapshot
	for _, id := range ids {
		if s, err := readRecord(filepath.Join(d.snapshots, prefix+string(id))); err == nil && s.ID == id {
			out = append(out, s)
		}
	}
	return out, err
}

func (d *Dir) evictedPath(id cay.SnapshotID) string {
	return filepath.Join(d.snapshots, evictedPrefix+string(id))
}

// idsAfter are the ids that follow a prefix in the names of the directory.
func (d *Dir) idsAfter(prefix string) ([]cay.SnapshotID, error) {
	entries, err := os.ReadDir(d.snapshots)
	if err != nil {
		return nil, diskError(err, "list snapshots")
	}
	var out []cay.SnapshotID
	for _, e := range entries {
		if id, ok := strings.CutPrefix(e.Name(), prefix); ok && cay.ValidID(id) {
			out = append(out, cay.SnapshotID(id))
		}
	}
	slices.Sort(out)
	return out, nil
}

// finishEvictions does what a crash kept evictions and commits from.
func (d *Dir) finishEvictions() error {
	ids, err := d.idsAfter(evictedPrefix)
	errs := []error{err}
	for _, id := range ids {
		if _, err := os.Lstat(d.path(id)); err == nil { // it came back
			errs = append(errs, os.RemoveAll(d.evictedPath(id)))
		} else {
			errs = append(errs, stripped(d.evictedPath(id)))
		}
	}
	return errors.Join(errs...)
}

// stripped removes everything but the record from the directory of a snapshot. That it is
// gone is no error: the snapshot was removed, or came back.
func stripped(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	errs := []error{err}
	for _, e := range entries {
		if !slices.Contains([]string{recordName, sumName, attachedName}, e.Name()) {
			errs = append(errs, os.RemoveAll(filepath.Join(dir, e.Name())))
		}
	}
	return errors.Join(errs...)
}
