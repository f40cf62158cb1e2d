// Package volumes keeps the records of volumes and their snapshots, and brings
// them to agree with the storage that has the files. A record comes after the
// files that it is of: what a crash leaves of a volume that is being made are
// files without a record, which Sweep removes, and of one that is being deleted a
// record without files, which is deleted again.
package volumes

import (
	"context"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control/ledger"
	"github.com/cay-run/cay/internal/store"
	"github.com/cay-run/cay/internal/ticks"
)

// DefaultMB is the size of a volume whose maker names none.
const DefaultMB = 10 << 10

// Storage keeps the files; see volume.Storage of internal/machine/volume.
type Storage interface {
	Create(ctx context.Context, id cay.VolumeID, sizeMB int) error
	Clone(ctx context.Context, from, id cay.VolumeID) error
	Replace(ctx context.Context, from, id cay.VolumeID) error
	Resize(ctx context.Context, id cay.VolumeID, sizeMB int) error
	Delete(ctx context.Context, id cay.VolumeID) error
	Attach(ctx context.Context, id cay.VolumeID) (dir string, err error)
	Detach(id cay.VolumeID)
	Failure(id cay.VolumeID, err error) *cay.Error
	Usage(ctx context.Context, id cay.VolumeID) (cay.VolumeUsage, error)
	List(ctx context.Context) ([]cay.VolumeID, error)
}

// Config is what Volumes need. Storage may be nil for a server without volumes.
type Config struct {
	Ledger  *ledger.Ledger
	Store   store.Store
	Storage Storage
	Log     *slog.Logger
}

// Volumes are the use cases.
type Volumes struct {
	ledger  *ledger.Ledger
	store   store.Store
	storage Storage
	log     *slog.Logger

	// work is what is under way. Nothing waits for it: it lasts as long as files
	// are copied, and is of any team.
	work work

	mu     sync.Mutex
	stored map[cay.VolumeID]int64 // what each took when that was read last
}

// New returns the use cases of a server.
func New(cfg Config) *Volumes {
	return &Volumes{ledger: cfg.Ledger, store: cfg.Store, storage: cfg.Storage, log: cfg.Log, stored: map[cay.VolumeID]int64{}}
}

// Info is a volume, and what is known of it now.
type Info struct {
	cay.Volume
	Usage     cay.VolumeUsage
	Sandboxes []cay.SandboxID // that mount it, running or paused
}

// Create makes an empty volume; no size is the usual one.
func (v *Volumes) Create(ctx context.Context, who cay.Caller, name string, sizeMB int) (out cay.Volume, err error) {
	if err := v.may(who, cay.WriteVolumes); err != nil {
		return out, err
	}
	if sizeMB == 0 {
		sizeMB = DefaultMB
	}
	out = cay.Volume{ID: cay.NewVolumeID(), Team: who.Team, Name: name, SizeMB: sizeMB, CreatedAt: ledger.Now(), Version: 1}
	if err := v.checkNew(ctx, out); err != nil {
		return out, err
	}
	return out, v.add(ctx, who, out, func() error { return v.storage.Create(ctx, out.ID, out.SizeMB) })
}

// Clone makes a volume with the files that another has now, or that its snapshot
// has where one is named.
func (v *Volumes) Clone(ctx context.Context, who cay.Caller, ref, snapshot, name string) (out cay.Volume, err error) {
	if err := v.may(who, cay.WriteVolumes); err != nil {
		return out, err
	}
	from, err := v.find(ctx, who, ref)
	if err != nil {
		return out, err
	}
	files, sizeMB := from.ID, from.SizeMB
	if snapshot != "" {
		s, err := v.store.VolumeSnapshot(ctx, who.Team, from.ID, snapshot)
		if err != nil {
			return out, err
		}
		files, sizeMB = s.ID, s.SizeMB
	}
	out = cay.Volume{ID: cay.NewVolumeID(), Team: who.Team, Name: name, SizeMB: sizeMB, CreatedAt: ledger.Now(), Version: 1}
	if err := v.checkNew(ctx, out); err != nil {
		return out, err
	}
	release, err := v.hold(ctx, from)
	if err != nil {
		return out, err
	}
	defer release()
	return out, v.add(ctx, who, out, func() error { return v.storage.Clone(ctx, files, out.ID) }, "from", string(files))
}

// checkNew refuses a volume before its files are made.
func (v *Volumes) checkNew(ctx context.Context, one cay.Volume) error {
	if err := cay.CheckVolumeName(one.Name); err != nil {
		return err
	}
	if err := cay.CheckVolumeSize(one.SizeMB); err != nil {
		return err
	}
	if _, err := v.store.Volume(ctx, one.Team, one.Name); err == nil {
		return taken(one.Name)
	}
	return v.admit(ctx, v.store, one.Team, 1, one.SizeMB)
}

func taken(name string) error {
	return cay.Errorf(cay.Invalid, "name: the team has a volume %q already", name).WithHint("choose another name")
}

// add makes files and then their record.
func (v *Volumes) add(ctx context.Context, who cay.Caller, one cay.Volume, files func() error, data ...string) error {
	data = append([]string{"sizeMB", strconv.Itoa(one.SizeMB)}, data...)
	return v.recorded(ctx, who.Team, one.ID, files, func(tx store.Store) error {
		if err := v.admit(ctx, tx, one.Team, 1, one.SizeMB); err != nil {
			return err
		}
		err := tx.AddVolume(ctx, one, event(who, cay.VolumeCreated, one, data...))
		if cay.KindOf(err) == cay.Conflict {
			return taken(one.Name)
		}
		return err
	})
}

// recorded makes files, then records them; files without a record are removed.
func (v *Volumes) recorded(ctx context.Context, team cay.TeamID, id cay.VolumeID, files func() error, record func(store.Store) error) error {
	defer v.work.make(id)()
	if err := files(); err != nil {
		return err
	}
	if err := v.store.Tx(ctx, record); err != nil {
		if cay.KindOf(err) != cay.Unavailable { // else the record may count: Sweep finds it out
			v.discard(ctx, id)
		}
		return err
	}
	v.ledger.Wake(team)
	return nil
}

// admit refuses volumes beyond what a team may have. Snapshots count as volumes
// of their size.
func (v *Volumes) admit(ctx context.Context, tx store.Store, team cay.TeamID, more, moreMB int) error {
	all, err := tx.Volumes(ctx, team)
	if err != nil {
		return err
	}
	saved, err := tx.VolumeSnapshots(ctx, team, "")
	if err != nil {
		return err
	}
	sizeMB := int64(moreMB) + v.work.growing(team)
	for _, one := range all {
		sizeMB += int64(one.SizeMB)
	}
	for _, one := range saved {
		sizeMB += int64(one.SizeMB)
	}
	return v.ledger.Limits(team).AdmitVolumes(len(all)+len(saved)+more, sizeMB)
}

func event(who cay.Caller, what cay.EventType, one cay.Volume, data ...string) cay.Event {
	return ledger.NewEvent(who, cay.Sandbox{Team: one.Team}, what, cay.ReasonAsked, append([]string{"volume", string(one.ID), "name", one.Name}, data...)...)
}

// may refuses a caller without a scope, and every one where there are no volumes.
func (v *Volumes) may(who cay.Caller, needed cay.Scopes) error {
	if err := who.May(needed); err != nil {
		return err
	}
	if v == nil || v.storage == nil {
		return cay.Errorf(cay.Unsupported, "this server keeps no volumes")
	}
	return nil
}

func (v *Volumes) find(ctx context.Context, who cay.Caller, ref string) (cay.Volume, error) {
	return v.store.Volume(ctx, who.Team, ref)
}

// List lists a team's volumes, oldest first.
func (v *Volumes) List(ctx context.Context, who cay.Caller) ([]cay.Volume, error) {
	if err := v.may(who, cay.ReadVolumes); err != nil {
		return nil, err
	}
	return v.store.Volumes(ctx, who.Team)
}

// Volume finds one by its id or name.
func (v *Volumes) Volume(ctx context.Context, who cay.Caller, ref string) (cay.Volume, error) {
	if err := v.may(who, cay.ReadVolumes); err != nil {
		return cay.Volume{}, err
	}
	return v.find(ctx, who, ref)
}

// Info describes one.
func (v *Volumes) Info(ctx context.Context, who cay.Caller, ref string) (out Info, err error) {
	if out.Volume, err = v.Volume(ctx, who, ref); err != nil {
		return out, err
	}
	boxes, err := v.store.SandboxesWith(ctx, out.ID)
	if err != nil {
		return out, err
	}
	for _, b := range boxes {
		out.Sandboxes = append(out.Sandboxes, b.ID)
	}
	out.Usage, err = v.storage.Usage(ctx, out.ID)
	return out, err
}

// Resize changes how much a volume may hold.
func (v *Volumes) Resize(ctx context.Context, who cay.Caller, ref string, sizeMB int) (cay.Volume, error) {
	if err := v.may(who, cay.WriteVolumes); err != nil {
		return cay.Volume{}, err
	}
	one, done, err := v.change(ctx, who, ref)
	if err != nil {
		return one, err
	}
	defer done()
	if sizeMB == one.SizeMB {
		return one, nil
	}
	if err := cay.CheckVolumeSize(sizeMB); err != nil {
		return one, err
	}
	grown, err := v.grow(ctx, one, sizeMB)
	if err != nil {
		return one, err
	}
	defer grown()
	if err := v.storage.Resize(ctx, one.ID, sizeMB); err != nil {
		return one, err
	}
	return v.sized(ctx, who, one, sizeMB, grown, cay.VolumeResized, "before", strconv.Itoa(one.SizeMB))
}

// sized records a volume's size, which it has already, with what happened.
func (v *Volumes) sized(ctx context.Context, who cay.Caller, one cay.Volume, sizeMB int, grown func(), what cay.EventType, data ...string) (cay.Volume, error) {
	one.SizeMB = sizeMB
	told := event(who, what, one, append([]string{"sizeMB", strconv.Itoa(sizeMB)}, data...)...)
	err := v.store.Tx(ctx, func(tx store.Store) error {
		err := tx.UpdateVolume(ctx, one, told)
		if err == nil {
			grown() // the record has it, and the next transaction sees that
		}
		return err
	})
	if err == nil {
		one.Version++
		v.ledger.Wake(one.Team)
	}
	return one, err
}

// Delete removes a volume with its files.
func (v *Volumes) Delete(ctx context.Context, who cay.Caller, ref string) error {
	if err := v.may(who, cay.WriteVolumes); err != nil {
		return err
	}
	one, err := v.find(ctx, who, ref)
	if err != nil {
		return err
	}
	asked, err := v.ledger.RemoveVolume(one.ID, func() error { return v.delete(ctx, who, one) })
	if !asked {
		return v.inUse(one, nil)
	}
	return err
}

// delete is Delete of a volume that no sandbox is being started with.
func (v *Volumes) delete(ctx context.Context, who cay.Caller, one cay.Volume) error {
	if err := v.unused(ctx, one); err != nil {
		return err
	}
	saved, err := v.store.VolumeSnapshots(ctx, one.Team, one.ID)
	if err != nil {
		return err
	}
	if len(saved) > 0 {
		return cay.Errorf(cay.Conflict, "volume %s has %d snapshots", one.Name, len(saved)).WithCode(cay.CodeVolumeInUse).
			WithHint("delete them first; `cay volume snapshots %s` lists them", one.Name)
	}
	// The files first: the storage knows who reads or writes them just now.
	err = whenFree(ctx, func() error { return v.storage.Delete(ctx, one.ID) })
	if cay.KindOf(err) == cay.Conflict {
		return v.inUse(one, err)
	}
	if err == nil {
		err = v.store.RemoveVolume(context.WithoutCancel(ctx), one.Team, one.ID, event(who, cay.VolumeDeleted, one))
	}
	if err == nil {
		v.ledger.Wake(one.Team)
	}
	return err
}

// RemoveAll removes a team's volumes with their snapshots.
func (v *Volumes) RemoveAll(ctx context.Context, who cay.Caller) error {
	list, err := v.List(ctx, who)
	if cay.KindOf(err) == cay.Unsupported {
		return nil
	}
	if err != nil {
		return err
	}
	for _, one := range list {
		saved, err := v.VolumeSnapshots(ctx, who, string(one.ID))
		if err != nil {
			return err
		}
		for _, s := range saved {
			if err := v.RemoveSnapshot(ctx, who, string(one.ID), string(s.ID)); err != nil {
				return err
			}
		}
		if err := v.Delete(ctx, who, string(one.ID)); err != nil {
			return err
		}
	}
	return nil
}

func (v *Volumes) inUse(one cay.Volume, err error) error {
	if err := v.unbuilt(one); err != nil {
		return err
	}
	return cay.Wrap(cay.Conflict, err, "volume %s is in use", one.Name).WithCode(cay.CodeVolumeInUse).
		WithHint("a sandbox that mounts it begins or ends, or work is under way with it: try again")
}

// unused refuses a volume that sandboxes, running or paused, or builds mount.
func (v *Volumes) unused(ctx context.Context, one cay.Volume) error {
	boxes, err := v.store.SandboxesWith(ctx, one.ID)
	if err != nil {
		return err
	}
	if len(boxes) == 0 {
		return v.unbuilt(one)
	}
	var ids []string
	for _, b := range boxes {
		ids = append(ids, string(b.ID))
	}
	return cay.Errorf(cay.Conflict, "volume %s is mounted by %s", one.Name, someOf(ids)).WithCode(cay.CodeVolumeInUse).
		WithHint("end them first; paused ones count too")
}

// unbuilt refuses a volume that builds mount.
func (v *Volumes) unbuilt(one cay.Volume) error {
	ids := v.ledger.BuildsWith(one.ID)
	if len(ids) == 0 {
		return nil
	}
	return cay.Errorf(cay.Conflict, "volume %s is mounted by builds under way: %s", one.Name, someOf(ids)).WithCode(cay.CodeVolumeInUse).
		WithHint("wait until they are done")
}

// someOf lists ids, and counts those beyond what an error can hold.
func someOf(ids []string) string {
	const shown = 20
	text := strings.Join(ids[:min(len(ids), shown)], ", ")
	if len(ids) > shown {
		text += " and " + strconv.Itoa(len(ids)-shown) + " more"
	}
	return text
}

// discard removes files whose record is gone. Sweep removes those that stay.
func (v *Volumes) discard(ctx context.Context, id cay.VolumeID) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), ledger.EndWithin)
	defer cancel()
	if err := v.storage.Delete(ctx, id); err != nil {
		v.log.WarnContext(ctx, "the files of a volume stay until the next collection", "volume", id, "err", err)
	}
}

// sweepEvery is how often files are looked for that no record is of.
const sweepEvery = 10 * time.Minute

// Run removes files without a record now and again, until ctx ends: of a volume
// that was in use when its record went.
func (v *Volumes) Run(ctx context.Context) {
	for range ticks.Every(ctx, sweepEvery) {
		if _, err := v.Sweep(ctx, false); err != nil && ctx.Err() == nil {
			v.log.ErrorContext(ctx, "files of volumes without a record could not be looked for", "err", err)
		}
	}
}

// Kept lists what volumes and their snapshots take of the disk, by team. One that cannot
// be read counts as it did before: it is of no matter to what others take.
func (v *Volumes) Kept(ctx context.Context) (map[cay.TeamID]int64, error) {
	out := map[cay.TeamID]int64{}
	if v.storage == nil {
		return out, nil
	}
	owners, err := v.owners(ctx)
	if err != nil {
		return nil, err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	now := map[cay.VolumeID]int64{}
	for id, team := range owners {
		usage, err := v.storage.Usage(ctx, id)
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case cay.KindOf(err) == cay.NotFound: // it went just now
			continue
		case err != nil:
			v.log.WarnContext(ctx, "cannot read what a volume takes: it counts as before", "volume", id, "err", err)
			usage.Stored = v.stored[id]
		}
		now[id] = usage.Stored
		out[team] += usage.Stored
	}
	v.stored = now
	return out, nil
}

// owners are the teams of all volumes and their snapshots.
func (v *Volumes) owners(ctx context.Context) (map[cay.VolumeID]cay.TeamID, error) {
	out := map[cay.VolumeID]cay.TeamID{}
	all, err := v.store.Volumes(ctx, "")
	if err != nil {
		return nil, err
	}
	for _, one := range all {
		out[one.ID] = one.Team
	}
	saved, err := v.store.VolumeSnapshots(ctx, "", "")
	for _, one := range saved {
		out[one.ID] = one.Team
	}
	return out, err
}

// Sweep removes files that no record is of, and says which; with dry it only says
// so.
func (v *Volumes) Sweep(ctx context.Context, dry bool) (out []cay.Garbage, err error) {
	if v.storage == nil {
		return nil, nil
	}
	// In this order: what is there and no longer made has its record, or none.
	there, err := v.storage.List(ctx)
	if err != nil {
		return nil, err
	}
	making := v.work.made()
	if v.store.Settled(ctx) != nil { // a record may come to be seen
		return nil, nil
	}
	owners, err := v.owners(ctx)
	if err != nil {
		return nil, err
	}
	for _, id := range there {
		if _, known := owners[id]; known || making[id] {
			continue
		}
		g := cay.Garbage{Kind: "volume", Name: string(id)}
		if usage, err := v.storage.Usage(ctx, id); err == nil {
			g.Bytes = usage.Stored
		}
		if !dry {
			if err := v.storage.Delete(ctx, id); err != nil {
				v.log.WarnContext(ctx, "files without a record stay", "volume", id, "err", err)
				continue
			}
		}
		out = append(out, g)
	}
	return out, nil
}
