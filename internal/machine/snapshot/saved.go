package snapshot

import (
	"sync"

	"github.com/cay-run/cay"
)

// saved knows what teams have saved of sandboxes: the records are read once, and
// followed from then on. Another process that removes a snapshot is not seen.
type saved struct {
	mu   sync.Mutex
	of   map[cay.SnapshotID]share // nil before it is asked for
	sums map[cay.TeamID]int64
}

// share is what a snapshot counts.
type share struct {
	team  cay.TeamID
	bytes int64
}

// Saved returns how many bytes a team has in snapshots of its sandboxes, without
// some of them. Templates do not count; removed ones do as long as instances
// still read their files.
func (d *Dir) Saved(team cay.TeamID, but ...cay.SnapshotID) (int64, error) {
	d.saved.mu.Lock()
	defer d.saved.mu.Unlock()
	if d.saved.of == nil {
		all, err := d.List()
		if err != nil && all == nil {
			return 0, err
		}
		mapped, err := d.Mapped()
		if err != nil {
			return 0, err
		}
		for _, m := range mapped {
			all = append(all, m.Snapshot)
		}
		d.saved.of, d.saved.sums = make(map[cay.SnapshotID]share), make(map[cay.TeamID]int64)
		for _, s := range all {
			d.saved.put(s)
		}
	}
	sum := d.saved.sums[team]
	for _, id := range but {
		if one := d.saved.of[id]; one.team == team {
			sum -= one.bytes
		}
	}
	return sum, nil
}

// note counts a snapshot that was committed.
func (d *Dir) note(s cay.Snapshot) {
	d.saved.mu.Lock()
	defer d.saved.mu.Unlock()
	d.saved.put(s)
}

// grow counts a snapshot anew that has more files now, unless it was removed
// meanwhile.
func (d *Dir) grow(s cay.Snapshot) {
	d.saved.mu.Lock()
	defer d.saved.mu.Unlock()
	if _, ok := d.saved.of[s.ID]; ok {
		d.saved.put(s)
	}
}

// unnote no longer counts a snapshot.
func (d *Dir) unnote(id cay.SnapshotID) {
	d.saved.mu.Lock()
	defer d.saved.mu.Unlock()
	d.saved.drop(id)
}

func (s *saved) put(one cay.Snapshot) {
	if s.of == nil || one.Sandbox == "" {
		return
	}
	s.drop(one.ID)
	s.of[one.ID] = share{one.Team, one.Size()}
	s.sums[one.Team] += one.Size()
}

func (s *saved) drop(id cay.SnapshotID) {
	old, ok := s.of[id]
	if !ok {
		return
	}
	delete(s.of, id)
	if s.sums[old.team] -= old.bytes; s.sums[old.team] == 0 {
		delete(s.sums, old.team)
	}
}
