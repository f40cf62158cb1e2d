package lifecycle

import (
	"context"
	"slices"
	"strings"

	"github.com/cay-run/cay"
)

// mountsOf finds the volumes that a new sandbox is to mount: those that the
// sandbox had which the snapshot is of, and those that the caller asks for.
func (c *Controller) mountsOf(ctx context.Context, who cay.Caller, asked []cay.MountSpec, t cay.Template) ([]cay.VolumeMount, error) {
	out, err := c.inherited(ctx, who, t)
	if err != nil || len(asked) == 0 {
		return out, err
	}
	var all []cay.MountSpec
	for _, m := range out {
		all = append(all, cay.MountSpec{Volume: string(m.Volume), Path: m.Path, SubPath: m.SubPath, ReadOnly: m.ReadOnly})
	}
	if err := cay.CheckVolumeMounts(all, nil); err != nil {
		return nil, err
	}
	found := slices.Clone(out)
	err = cay.CheckVolumeMounts(asked, func(i int) error {
		m := asked[i]
		for _, has := range out {
			if has.Path == m.Path {
				return cay.Errorf(cay.Invalid, ".path: the snapshot mounts %s at %.100q already", has.Name, m.Path)
			}
		}
		one, err := c.ledger.FindMount(ctx, who, m)
		if err == nil {
			found = append(found, one)
		}
		return err
	})
	return found, err
}

// inherited are the volumes of the sandbox that a snapshot is of.
func (c *Controller) inherited(ctx context.Context, who cay.Caller, t cay.Template) ([]cay.VolumeMount, error) {
	if t.Source == "" {
		return nil, nil
	}
	saved, err := c.node.Record(ctx, t.Snapshot)
	if err != nil || len(saved.Volumes) == 0 {
		return nil, err
	}
	if err := who.May(cay.WriteVolumes); err != nil {
		return nil, err
	}
	return saved.Volumes, c.ledger.HaveVolumes(ctx, who.Team, saved.Volumes)
}

// present are the mounts whose volumes are there.
func (c *Controller) present(ctx context.Context, s cay.Sandbox) ([]cay.VolumeMount, error) {
	var out []cay.VolumeMount
	for _, m := range s.Volumes {
		err := c.ledger.HaveVolumes(ctx, s.Team, []cay.VolumeMount{m})
		if err != nil && cay.KindOf(err) != cay.Conflict {
			return nil, err
		}
		if err == nil {
			out = append(out, m)
		}
	}
	return out, nil
}

// lostVolumes says in a sentence which mounts a boot left out; empty for none.
func lostVolumes(had, has []cay.VolumeMount) string {
	var lost []string
	for _, m := range had {
		if !slices.Contains(has, m) {
			lost = append(lost, m.Name+" at "+m.Path)
		}
	}
	if len(lost) == 0 {
		return ""
	}
	return "it was booted without volumes that were deleted: " + strings.Join(lost, ", ")
}

// joined puts two sentences together.
func joined(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + "; " + b
}

// savedVolumes are the mounts in a snapshot. They are in the memory that it
// holds: a sandbox that goes on from there has those, also one that was booted
// without some meanwhile.
func (c *Controller) savedVolumes(ctx context.Context, id cay.SnapshotID) ([]cay.VolumeMount, error) {
	saved, err := c.node.Record(ctx, id)
	return saved.Volumes, err
}
