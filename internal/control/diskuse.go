package control

import (
	"context"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/disk"
)

// DiskUse is what a template takes on the disk, in bytes.
type DiskUse struct {
	Template cay.TemplateID
	Own      int64 // snapshots, and blocks of root images that no other template has
	Shared   int64 // blocks of root images that other templates have too
}

// DiskUse says what the templates that a team sees take on the disk. Layers
// are no part of it: they serve later builds, and share blocks with the images
// that were made of them.
func (c *Control) DiskUse(ctx context.Context, team cay.TeamID) ([]DiskUse, error) {
	all, err := c.store.Templates(ctx, team)
	if err != nil {
		return nil, err
	}
	out := make([]DiskUse, len(all))
	places := make([][]disk.Extent, len(all))
	images := map[string][]disk.Extent{}
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
		out[i].Template = t.ID
		for id := range snapshots {
			s, err := c.node.Snapshot(id)
			if err != nil {
				continue // a build that failed, or is replaced
			}
			out[i].Own += s.Size()
			if _, known := images[s.Root]; !known {
				images[s.Root] = c.placeOf(s.Root, len(images))
			}
			places[i] = append(places[i], images[s.Root]...)
		}
	}
	own, shared := disk.Shares(places)
	for i := range out {
		out[i].Own += own[i]
		out[i].Shared = shared[i]
	}
	return out, nil
}

// placeOf says where on the disk a root image is. Where the file system does
// not tell, the image is taken for one that shares no blocks with others, at a
// place of its own that no disk reaches.
func (c *Control) placeOf(root string, number int) []disk.Extent {
	if extents := c.node.ImageExtents(root); extents != nil {
		return extents
	}
	const far, apart = 1 << 62, 1 << 44
	return []disk.Extent{{Start: far + int64(number)*apart, Bytes: c.node.ImageSize(root)}}
}
