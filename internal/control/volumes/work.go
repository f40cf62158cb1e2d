package volumes

import (
	"context"
	"maps"
	"sync"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/store"
)

// work is what is under way with volumes and not in the records yet.
type work struct {
	mu       sync.Mutex
	making   map[cay.VolumeID]bool // whose files come before their record
	changing map[cay.VolumeID]bool // that get another size or other files
	growth   map[cay.TeamID]int64  // MB that volumes get beyond their records
}

// make notes files that are no leftovers, until done is called.
func (w *work) make(id cay.VolumeID) (done func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.making == nil {
		w.making = map[cay.VolumeID]bool{}
	}
	w.making[id] = true
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.making, id)
	}
}

// made are the volumes that are being made.
func (w *work) made() map[cay.VolumeID]bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.making)
}

// change takes a volume for the only change of its size, and is nil where there
// is one.
func (w *work) change(id cay.VolumeID) (done func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.changing == nil {
		w.changing = map[cay.VolumeID]bool{}
	}
	if w.changing[id] {
		return nil
	}
	w.changing[id] = true
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.changing, id)
	}
}

// growing is what a team's volumes are getting beyond their records.
func (w *work) growing(team cay.TeamID) int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.growth[team]
}

func (w *work) grow(team cay.TeamID, byMB int64) (done func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.growth == nil {
		w.growth = map[cay.TeamID]int64{}
	}
	w.growth[team] += byMB
	return sync.OnceFunc(func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.growth[team] -= byMB; w.growth[team] == 0 {
			delete(w.growth, team)
		}
	})
}

// hold keeps a volume, which was found, from being deleted until release is called.
func (v *Volumes) hold(ctx context.Context, one cay.Volume) (release func(), err error) {
	release, err = v.ledger.HoldVolumes(ctx, one.Team, []cay.VolumeMount{{Volume: one.ID, Name: one.Name}})
	if cay.CodeOf(err) == cay.CodeVolumeGone { // it mounts nothing
		_, err = v.store.Volume(ctx, one.Team, string(one.ID))
	}
	return release, err
}

// change finds a volume, and has it change in no other way until done is called:
// the size in its record is that of its files.
func (v *Volumes) change(ctx context.Context, who cay.Caller, ref string) (one cay.Volume, done func(), err error) {
	one, err = v.find(ctx, who, ref)
	if err != nil {
		return one, nil, err
	}
	if done = v.work.change(one.ID); done == nil {
		return one, nil, v.inUse(one, nil)
	}
	if one, err = v.find(ctx, who, string(one.ID)); err != nil {
		done()
	}
	return one, done, err
}

// grow admits a larger size of a volume before its record says so. Until done is
// called, by its record at the latest, it counts.
func (v *Volumes) grow(ctx context.Context, one cay.Volume, sizeMB int) (done func(), err error) {
	more := sizeMB - one.SizeMB
	if more <= 0 {
		return func() {}, nil
	}
	// Transactions that write come one after another, and so do admissions.
	err = v.store.Tx(ctx, func(tx store.Store) error {
		if done != nil {
			done() // it runs once more
		}
		if err := v.admit(ctx, tx, one.Team, 0, more); err != nil {
			return err
		}
		done = v.work.grow(one.Team, int64(more))
		return nil
	})
	if err != nil && done != nil {
		done()
	}
	return done, err
}
