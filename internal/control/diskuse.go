package control

import (
	"context"
	"maps"

	"github.com/cay-run/cay"
)

// DiskUse is what a template takes on the disk, in bytes.
type DiskUse struct {
	Template cay.TemplateID
	Own      int64 // snapshots, and root images that no other template has
	Shared   int64 // root images that other templates have too
}

// DiskUse says what the templates that a team sees take on the disk. Layers
// are no part of it: they serve later builds.
func (c *Control) DiskUse(ctx context.Context, team cay.TeamID) ([]DiskUse, error) {
	all, err := c.store.Templates(ctx, team)
	if err != nil {
		return nil, err
	}
	out := make([]DiskUse, len(all))
	roots := make([]map[string]bool, len(all))
	users := map[string]int{}
	for i, t := range all {
		snapshots := map[cay.SnapshotID]bool{t.Snapshot: true}
		if t.Team == team {
			builds, err := c.store.Builds(ctx, team, t.ID)
			if err != nil {
				return nil, err
			}
			for _, b := range builds {
				snapshots[b.Snapshot] = true
			}
		}
		out[i].Template, roots[i] = t.ID, map[string]bool{}
		for id := range snapshots {
			s, err := c.node.Snapshot(id)
			if err != nil {
				continue // a build that failed, or is replaced
			}
			out[i].Own += s.Size()
			roots[i][s.Root] = true
		}
		for root := range maps.Keys(roots[i]) {
			users[root]++
		}
	}
	for i := range out {
		for root := range roots[i] {
			if size := c.node.ImageSize(root); users[root] > 1 {
				out[i].Shared += size
			} else {
				out[i].Own += size
			}
		}
	}
	return out, nil
}
