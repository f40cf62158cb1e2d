package snapshot

import (
	"os"
	"sync"
	"time"

	"github.com/cay-run/cay"
)

// saved knows the snapshots of the directory: the records are read once, and followed
// from then on. Another process that removes one is not seen.
type saved struct {
	mu   sync.Mutex
	of   map[cay.SnapshotID]share // nil before it is asked for
	sums map[cay.TeamID]int64     // of snapshots of sandboxes
}

// share is what is known of a snapshot.
type share struct {
	team    cay.TeamID
	sandbox cay.SandboxID
	root    string
	bytes   int64
	used    time.Time
	place   place
}

// place is where the files of a snapshot are.
type place byte

const (
	here    place = iota // under its name
	aside                // removed, and read still
	evicted              // in the bucket alone
)

// brought reports whether Cay brings a snapshot, which has no owner.
func (s share) brought() bool { return s.team == "" && s.sandbox == "" }

// Saved returns how many bytes a team has in snapshots of its sandboxes, without
// some of them. Templates do not count; evicted ones do, and removed ones as long as
// instances still read their files.
func (d *Dir) Saved(team cay.TeamID, but ...cay.SnapshotID) (int64, error) {
	d.saved.mu.Lock()
	defer d.saved.mu.Unlock()
	if err := d.load(); err != nil {
		return 0, err
	}
	sum := d.saved.sums[team]
	for _, id := range but {
		if one := d.saved.of[id]; one.team == team && one.sandbox != "" {
			sum -= one.bytes
		}
	}
	return sum, nil
}

// load reads all records, if that was not done. The caller holds the lock of what is saved.
func (d *Dir) load() error {
	if d.saved.of != nil {
		return nil
	}
	all, err := d.List()
	if err != nil && all == nil {
		return err
	}
	mapped, err := d.recordsAfter(mappedPrefix)
	if err != nil {
		return err
	}
	gone, err := d.Evicted()
	if err != nil {
		return err
	}
	d.saved.of, d.saved.sums = make(map[cay.SnapshotID]share), make(map[cay.TeamID]int64)
	for _, s := range gone {
		d.saved.put(s, evicted, time.Time{})
	}
	for _, s := range mapped {
		d.saved.put(s, aside, time.Time{})
	}
	for _, s := range all {
		d.saved.put(s, here, lastUse(d.path(s.ID)))
	}
	return nil
}

// lastUse is when the snapshot in a directory was used last, as Use wrote it down.
func lastUse(dir string) time.Time {
	st, err := os.Lstat(dir)
	if err != nil {
		return time.Time{}
	}
	return st.ModTime()
}

// note counts a snapshot that was committed.
func (d *Dir) note(s cay.Snapshot) {
	d.saved.mu.Lock()
	defer d.saved.mu.Unlock()
	d.saved.put(s, here, time.Now())
}

// grow counts a snapshot anew that has more files now, unless it was removed
// meanwhile.
func (d *Dir) grow(s cay.Snapshot) {
	d.saved.mu.Lock()
	defer d.saved.mu.Unlock()
	if old, ok := d.saved.of[s.ID]; ok {
		d.saved.put(s, old.place, old.used)
	}
}

// move notes that the files of a snapshot are elsewhere.
func (d *Dir) move(id cay.SnapshotID, to place) {
	d.saved.mu.Lock()
	defer d.saved.mu.Unlock()
	if one, ok := d.saved.of[id]; ok {
		one.place = to
		d.saved.of[id] = one
	}
}

// unnote no longer counts a snapshot.
func (d *Dir) unnote(id cay.SnapshotID) {
	d.saved.mu.Lock()
	defer d.saved.mu.Unlock()
	d.saved.drop(id)
}

func (s *saved) put(one cay.Snapshot, at place, used time.Time) {
	if s.of == nil {
		return
	}
	s.drop(one.ID)
	s.of[one.ID] = share{one.Team, one.Sandbox, one.Root, one.Size(), used, at}
	if one.Sandbox != "" {
		s.sums[one.Team] += one.Size()
	}
}

func (s *saved) drop(id cay.SnapshotID) {
	old, ok := s.of[id]
	if !ok {
		return
	}
	delete(s.of, id)
	if old.sandbox == "" {
		return
	}
	if s.sums[old.team] -= old.bytes; s.sums[old.team] == 0 {
		delete(s.sums, old.team)
	}
}
