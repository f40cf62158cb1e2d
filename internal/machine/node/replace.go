package node

import (
	"context"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/disk"
)

// Prepare is Create, but Lookup does not find the instance before Route says
// so: it runs beside another one of the same sandbox.
func (n *Node) Prepare(ctx context.Context, spec cay.InstanceSpec) (cay.Instance, error) {
	defer n.ahead()()
	return n.create(ctx, spec, n.ready)
}

// Route has Lookup find an instance, in place of any other of its sandbox,
// whose connections are cut. NotFound when it is over.
func (n *Node) Route(id cay.InstanceID) error {
	n.mu.Lock()
	inst := n.instances[id]
	if inst == nil || !inst.whole {
		n.mu.Unlock()
		return cay.Errorf(cay.NotFound, "instance %s is over", id)
	}
	sandbox := inst.spec.Sandbox
	old := n.bySandbox[sandbox]
	n.bySandbox[sandbox] = inst
	n.mu.Unlock()
	inst.routed.Store(true)
	if old != nil && old != inst {
		n.cfg.OnGone(sandbox, old.spec.Instance)
	}
	return nil
}

// ready lists an instance among those that run.
func (n *Node) ready(inst *instance) {
	n.mu.Lock()
	defer n.mu.Unlock()
	inst.whole = true
}

// retire takes an instance that is over off all lists.
func (n *Node) retire(inst *instance) {
	n.mu.Lock()
	inst.whole = false
	n.mu.Unlock()
	n.hide(inst)
}

// Snapshot returns the record of a snapshot, also of one that is evicted.
func (n *Node) Snapshot(id cay.SnapshotID) (cay.Snapshot, error) { return n.cfg.Snapshots.Record(id) }

// Record is Snapshot, of one too that this machine lacks and can get.
func (n *Node) Record(ctx context.Context, id cay.SnapshotID) (cay.Snapshot, error) {
	s, err := n.Snapshot(id)
	if cay.KindOf(err) == cay.NotFound && n.cfg.Record != nil {
		return n.cfg.Record(ctx, id)
	}
	return s, err
}

// reach finds the record of a snapshot that a start may use, which may be elsewhere.
func (n *Node) reach(ctx context.Context, id cay.SnapshotID) (cay.Snapshot, error) {
	_, record, err := n.cfg.Snapshots.Get(id)
	if cay.KindOf(err) == cay.NotFound {
		return n.cfg.Record(ctx, id)
	}
	return record, err
}

// imageExtents says where on the disk a root image is; nil where that is not
// known.
func (n *Node) imageExtents(digest string) []disk.Extent {
	path, err := n.cfg.Snapshots.Image(digest)
	if err != nil {
		return nil
	}
	extents, err := disk.Extents(path)
	if err != nil {
		return nil
	}
	return extents
}

// imageSize is how many bytes a root image takes on the disk; one that is not
// there takes none.
func (n *Node) imageSize(digest string) int64 {
	path, err := n.cfg.Snapshots.Image(digest)
	if err != nil {
		return 0
	}
	return disk.Use(path)
}
