package volumes

import (
	"context"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control/ledger"
	"github.com/cay-run/cay/internal/store"
)

// snapshotName is the form of the names that snapshots get which ask for none.
const snapshotName = "2006-01-02T15.04.05Z"

// Snapshot keeps the files that a volume has now under a name; an empty one is
// the time. Sandboxes may write meanwhile: the files are those of one moment.
func (v *Volumes) Snapshot(ctx context.Context, who cay.Caller, ref, name string) (s cay.VolumeSnapshot, err error) {
	if err := v.may(who, cay.WriteVolumes); err != nil {
		return s, err
	}
	at := ledger.Now()
	if name == "" {
		name = at.UTC().Format(snapshotName)
	}
	if err := cay.CheckVolumeSnapshotName(name); err != nil {
		return s, err
	}
	from, err := v.find(ctx, who, ref)
	if err != nil {
		return s, err
	}
	s = cay.VolumeSnapshot{ID: cay.NewVolumeID(), Volume: from.ID, Team: who.Team, Name: name, SizeMB: from.SizeMB, CreatedAt: at}
	if _, err := v.store.VolumeSnapshot(ctx, who.Team, from.ID, name); err == nil {
		return s, nameTaken(from, name)
	}
	if err := v.admit(ctx, v.store, who.Team, 1, s.SizeMB); err != nil {
		return s, err
	}
	release, err := v.hold(ctx, from)
	if err != nil {
		return s, err
	}
	defer release()
	files := func() error { return v.storage.Clone(ctx, from.ID, s.ID) }
	return s, v.recorded(ctx, who.Team, s.ID, files, func(tx store.Store) error {
		if err := v.admit(ctx, tx, who.Team, 1, s.SizeMB); err != nil {
			return err
		}
		err := tx.AddVolumeSnapshot(ctx, s, event(who, cay.VolumeSnapshotted, from, "snapshot", s.Name))
		if cay.KindOf(err) == cay.Conflict {
			return nameTaken(from, name)
		}
		return err
	})
}

func nameTaken(v cay.Volume, name string) error {
	return cay.Errorf(cay.Conflict, "volume %s has a snapshot %q already", v.Name, name).WithHint("choose another name, or delete that one")
}

// VolumeSnapshots lists those of a volume, oldest first.
func (v *Volumes) VolumeSnapshots(ctx context.Context, who cay.Caller, ref string) ([]cay.VolumeSnapshot, error) {
	if err := v.may(who, cay.ReadVolumes); err != nil {
		return nil, err
	}
	of, err := v.find(ctx, who, ref)
	if err != nil {
		return nil, err
	}
	return v.store.VolumeSnapshots(ctx, who.Team, of.ID)
}

// RemoveSnapshot removes one.
func (v *Volumes) RemoveSnapshot(ctx context.Context, who cay.Caller, ref, name string) error {
	if err := v.may(who, cay.WriteVolumes); err != nil {
		return err
	}
	of, s, err := v.snapshot(ctx, who, ref, name)
	if err != nil {
		return err
	}
	err = v.store.RemoveVolumeSnapshot(ctx, who.Team, s.ID, event(who, cay.VolumeSnapshotRemoved, of, "snapshot", s.Name))
	if err != nil {
		return err
	}
	v.ledger.Wake(who.Team)
	v.discard(ctx, s.ID)
	return nil
}

func (v *Volumes) snapshot(ctx context.Context, who cay.Caller, ref, name string) (cay.Volume, cay.VolumeSnapshot, error) {
	of, err := v.find(ctx, who, ref)
	if err != nil {
		return of, cay.VolumeSnapshot{}, err
	}
	s, err := v.store.VolumeSnapshot(ctx, who.Team, of.ID, name)
	return of, s, err
}

// Restore has a volume have the files of its snapshot, in place of all in it. It
// keeps its size, or gets that of the snapshot where that is larger.
func (v *Volumes) Restore(ctx context.Context, who cay.Caller, ref, name string) (cay.Volume, error) {
	if err := v.may(who, cay.WriteVolumes); err != nil {
		return cay.Volume{}, err
	}
	of, done, err := v.change(ctx, who, ref)
	if err != nil {
		return of, err
	}
	defer done()
	s, err := v.store.VolumeSnapshot(ctx, who.Team, of.ID, name)
	if err != nil {
		return of, err
	}
	if err := v.unused(ctx, of); err != nil {
		return of, err
	}
	sizeMB := max(of.SizeMB, s.SizeMB)
	grown, err := v.grow(ctx, of, sizeMB)
	if err != nil {
		return of, err
	}
	defer grown()
	// One whose client has left is finished all the same: a volume has the size
	// of its record.
	ctx = context.WithoutCancel(ctx)
	err = whenFree(ctx, func() error { return v.storage.Replace(ctx, s.ID, of.ID) })
	if cay.KindOf(err) == cay.Conflict {
		return of, v.inUse(of, err)
	}
	if err == nil && sizeMB > s.SizeMB {
		err = v.storage.Resize(ctx, of.ID, sizeMB)
	}
	if err != nil {
		return of, err
	}
	return v.sized(ctx, who, of, sizeMB, grown, cay.VolumeRestored, "snapshot", s.Name)
}
