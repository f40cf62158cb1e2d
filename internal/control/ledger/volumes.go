package ledger

import (
	"context"

	"github.com/cay-run/cay"
)

// FindMount finds the volume that a caller asks to mount. Its errors begin as
// those of cay.CheckVolumeMounts do.
func (l *Ledger) FindMount(ctx context.Context, who cay.Caller, m cay.MountSpec) (cay.VolumeMount, error) {
	needed := cay.WriteVolumes
	if m.ReadOnly {
		needed = cay.ReadVolumes
	}
	if err := who.May(needed); err != nil {
		return cay.VolumeMount{}, err
	}
	v, err := l.store.Volume(ctx, who.Team, m.Volume)
	if cay.KindOf(err) == cay.NotFound {
		return cay.VolumeMount{}, cay.Errorf(cay.Invalid, ".name: there is no volume %.140q", m.Volume)
	}
	return cay.VolumeMount{Volume: v.ID, Name: v.Name, Path: m.Path, SubPath: m.SubPath, ReadOnly: m.ReadOnly}, err
}

// HaveVolumes refuses to start what mounts a volume that is gone.
func (l *Ledger) HaveVolumes(ctx context.Context, team cay.TeamID, mounts []cay.VolumeMount) error {
	for _, m := range mounts {
		_, err := l.store.Volume(ctx, team, string(m.Volume))
		if cay.KindOf(err) == cay.NotFound {
			return cay.Errorf(cay.Conflict, "the volume %s (%s), which it mounts at %s, was deleted", m.Name, m.Volume, m.Path).WithCode(cay.CodeVolumeGone)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// HoldVolumes keeps volumes from being deleted until release, and refuses to
// start what mounts one that is gone.
func (l *Ledger) HoldVolumes(ctx context.Context, team cay.TeamID, mounts []cay.VolumeMount) (release func(), err error) {
	return l.holdVolumes(ctx, team, mounts, "")
}

// HoldBuildVolumes is HoldVolumes for a build, which BuildsWith tells then.
func (l *Ledger) HoldBuildVolumes(ctx context.Context, b cay.Build, mounts []cay.VolumeMount) (release func(), err error) {
	return l.holdVolumes(ctx, b.Team, mounts, b.ID)
}

func (l *Ledger) holdVolumes(ctx context.Context, team cay.TeamID, mounts []cay.VolumeMount, build cay.BuildID) (release func(), err error) {
	var held []func()
	release = func() {
		for _, one := range held {
			one()
		}
	}
	for _, m := range mounts {
		if build != "" { // told before it holds: a refusal can name it
			held = append(held, l.holds.pin(volumeBuilds(m.Volume)+string(build)))
		}
		one, err := l.holds.await(ctx, volumeKey(m.Volume))
		if err != nil {
			release()
			return nil, cay.Wrap(cay.Unavailable, err, "volume %s is being deleted", m.Volume)
		}
		held = append(held, one)
	}
	if err := l.HaveVolumes(ctx, team, mounts); err != nil {
		release()
		return nil, err
	}
	return release, nil
}

// RemoveVolume has remove take a volume away that no work in progress holds, and
// reports whether it was called.
func (l *Ledger) RemoveVolume(id cay.VolumeID, remove func() error) (asked bool, err error) {
	return l.holds.remove(volumeKey(id), func() bool { return true }, remove)
}

// BuildsWith are the builds under way that mount a volume.
func (l *Ledger) BuildsWith(id cay.VolumeID) []string { return l.holds.with(volumeBuilds(id)) }

func volumeKey(id cay.VolumeID) string { return "volume " + string(id) }

func volumeBuilds(id cay.VolumeID) string { return volumeKey(id) + " in build " }
