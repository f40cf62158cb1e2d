package fleet

import (
	"context"
	"maps"
	"slices"

	"github.com/cay-run/cay"
)

// DiskUse is what a template takes on the disk, in bytes.
type DiskUse struct {
	Template cay.TemplateID
	// Own are snapshots, and blocks of root images that no other template has;
	// Shared are blocks of root images that other templates have too.
	cay.DiskUse
}

// DiskUse says what the templates that a team sees take on this machine's disk. Layers
// are no part of it: they serve later builds, and share blocks with the images
// that were made of them.
func (c *Catalogue) DiskUse(ctx context.Context, who cay.Caller) ([]DiskUse, error) {
	if err := who.May(cay.ReadTemplates); err != nil {
		return nil, err
	}
	all, err := c.store.Templates(ctx, who.Team)
	if err != nil {
		return nil, err
	}
	built, err := c.store.BuiltSnapshots(ctx, who.Team)
	if err != nil {
		return nil, err
	}
	groups := make([][]cay.SnapshotID, len(all))
	for i, t := range all {
		snapshots := map[cay.SnapshotID]bool{t.Snapshot: true, c.ledger.SnapshotHere(t): true}
		for _, id := range built[t.ID] {
			snapshots[id] = true
		}
		delete(snapshots, "")
		groups[i] = slices.Sorted(maps.Keys(snapshots))
	}
	use, err := c.node.DiskUse(ctx, groups)
	if err != nil {
		return nil, err
	}
	out := make([]DiskUse, len(all))
	for i := range out {
		out[i] = DiskUse{all[i].ID, use[i]}
	}
	return out, nil
}
