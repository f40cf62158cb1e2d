package node

import (
	"context"
	"errors"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/disk"
)

// Service is a node as the control plane sees it, and as another machine could:
// every call has a context and an error, and no path, channel or pointer into
// this process passes.
type Service struct{ *Node }

// Service offers the node.
func (n *Node) Service() Service { return Service{n} }

// Instances lists what runs.
func (s Service) Instances(ctx context.Context) ([]cay.Instance, error) {
	return s.Node.Instances(), ctx.Err()
}

// Snapshots lists the snapshots that were taken of sandboxes or made of teams'
// templates.
func (s Service) Snapshots(ctx context.Context) ([]cay.Snapshot, error) {
	return s.Node.Snapshots(), ctx.Err()
}

// SavedBytes returns how many bytes a team has in snapshots of its sandboxes, without
// some of them.
func (s Service) SavedBytes(ctx context.Context, team cay.TeamID, but ...cay.SnapshotID) (int64, error) {
	n, err := s.cfg.Snapshots.Saved(team, but...)
	return n, errors.Join(err, ctx.Err())
}

// Snapshot returns the record of a snapshot.
func (s Service) Snapshot(_ context.Context, id cay.SnapshotID) (cay.Snapshot, error) {
	return s.Node.Snapshot(id)
}

// Route has Lookup find an instance, in place of any other of its sandbox.
func (s Service) Route(_ context.Context, id cay.InstanceID) error { return s.Node.Route(id) }

// Connections lists what an instance tried to reach lately.
func (s Service) Connections(ctx context.Context, id cay.InstanceID) ([]cay.Connection, error) {
	return s.Node.Connections(id), ctx.Err()
}

// DiskUse returns the disk use of groups of snapshots: the bytes that only one
// group has, and those that others have too. A snapshot that is not there takes nothing.
func (s Service) DiskUse(ctx context.Context, groups [][]cay.SnapshotID) ([]cay.DiskUse, error) {
	use := diskUse{place: s.imageExtents, size: s.imageSize}
	for _, group := range groups {
		use.open()
		for _, id := range group {
			if _, record, err := s.cfg.Snapshots.Get(id); err == nil { // else a build failed, or is replaced
				use.add(record)
			}
		}
	}
	return use.sums(), ctx.Err()
}

// diskUse adds up what groups of snapshots take.
type diskUse struct {
	place  func(root string) []disk.Extent // nil where that is not known
	size   func(root string) int64
	images map[string][]disk.Extent
	places [][]disk.Extent // of each group
	out    []cay.DiskUse
}

// open begins a group.
func (u *diskUse) open() {
	u.places = append(u.places, nil)
	u.out = append(u.out, cay.DiskUse{})
}

// add adds a snapshot to the open group.
func (u *diskUse) add(s cay.Snapshot) {
	last := len(u.out) - 1
	u.out[last].Own += s.Size()
	extents, known := u.images[s.Root]
	if !known {
		extents = u.placeOf(s.Root, len(u.images))
		if u.images == nil {
			u.images = make(map[string][]disk.Extent)
		}
		u.images[s.Root] = extents
	}
	u.places[last] = append(u.places[last], extents...)
}

// placeOf says where on the disk a root image is. Where the file system does
// not tell, the image is taken for one that shares no blocks with others, at a
// place of its own that no disk reaches.
func (u *diskUse) placeOf(root string, number int) []disk.Extent {
	if extents := u.place(root); extents != nil {
		return extents
	}
	const far, apart = 1 << 62, 1 << 44
	return []disk.Extent{{Start: far + int64(number)*apart, Bytes: u.size(root)}}
}

func (u *diskUse) sums() []cay.DiskUse {
	own, shared := disk.Shares(u.places)
	for i := range u.out {
		u.out[i].Own += own[i]
		u.out[i].Shared = shared[i]
	}
	return u.out
}
