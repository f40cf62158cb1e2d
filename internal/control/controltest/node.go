// Package controltest has a node in memory, for tests of what stands on
// control: it starts, lists and ends instances that do nothing.
package controltest

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/disk"
	"github.com/cay-run/cay/internal/guest"
)

// Node is a node in memory. Its fields may be set before it is used.
type Node struct {
	// OnCreate and OnKill, when set, run first; their error is the answer.
	OnCreate func(context.Context, cay.InstanceSpec) error
	OnKill   func(cay.InstanceID) error
	OnSave   func(cay.InstanceID) error
	OnRoute  func(cay.InstanceID) error
	// OnCompare answers for Compare; nil is two moments that are the same.
	OnCompare func(before, after cay.Moment) (cay.Comparison, error)
	Notice    string // of every instance that is created from now on
	// OnClaim, when set, answers for Claim; otherwise there is nothing.
	OnClaim func(cay.InstanceSpec) (cay.SandboxID, cay.InstanceID, bool)

	// OnUsage, when set, says how much CPU time an instance has used.
	OnUsage func(cay.InstanceID) time.Duration
	// OnDiary answers for the guest; nil is one that keeps no diary.
	OnDiary func(id cay.InstanceID, after int64) (guest.Diary, error)
	// Places is where root images are on the disk, as far as that is known.
	Places map[string][]disk.Extent

	mu        sync.Mutex
	instances map[cay.InstanceID]cay.Instance
	kills     map[cay.InstanceID]cay.Cause
	snapshots map[cay.SnapshotID]cay.Snapshot
	deaths    chan cay.Death
	routed    []cay.InstanceID
}

// NewNode returns a node with nothing on it.
func NewNode() *Node {
	return &Node{
		instances: make(map[cay.InstanceID]cay.Instance),
		kills:     make(map[cay.InstanceID]cay.Cause),
		snapshots: make(map[cay.SnapshotID]cay.Snapshot),
		deaths:    make(chan cay.Death, 1024),
	}
}

// Create starts an instance.
func (n *Node) Create(ctx context.Context, spec cay.InstanceSpec) (cay.Instance, error) {
	if n.OnCreate != nil {
		if err := n.OnCreate(ctx, spec); err != nil {
			return cay.Instance{}, err
		}
	}
	if err := ctx.Err(); err != nil {
		return cay.Instance{}, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, ok := n.instances[spec.Instance]; ok {
		return cay.Instance{}, cay.Errorf(cay.Conflict, "instance %s runs already", spec.Instance)
	}
	i := cay.Instance{Spec: spec, Addr: netip.MustParseAddr("127.0.0.1"), Started: time.Now(), Notice: n.Notice}
	n.instances[spec.Instance] = i
	return i, nil
}

// Claim looks for an instance made beforehand.
func (n *Node) Claim(shape cay.InstanceSpec) (cay.SandboxID, cay.InstanceID, bool) {
	if n.OnClaim == nil {
		return "", "", false
	}
	return n.OnClaim(shape)
}

// Diary asks OnDiary.
func (n *Node) Diary(_ context.Context, id cay.InstanceID, after int64) (guest.Diary, error) {
	if n.OnDiary == nil {
		return guest.Diary{}, guest.ErrNoDiary
	}
	return n.OnDiary(id, after)
}

// Prepare starts an instance. Routed tells which ones Route was called for.
func (n *Node) Prepare(ctx context.Context, spec cay.InstanceSpec) (cay.Instance, error) {
	return n.Create(ctx, spec)
}

// Route notes that requests reach an instance.
func (n *Node) Route(id cay.InstanceID) error {
	if n.OnRoute != nil {
		if err := n.OnRoute(id); err != nil {
			return err
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, ok := n.instances[id]; !ok {
		return cay.Errorf(cay.NotFound, "no instance %s", id)
	}
	n.routed = append(n.routed, id)
	return nil
}

// Routed lists the instances that Route was called for, in order.
func (n *Node) Routed() []cay.InstanceID {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.routed)
}

// Snapshot returns the record of what was saved.
func (n *Node) Snapshot(id cay.SnapshotID) (cay.Snapshot, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	s, ok := n.snapshots[id]
	if !ok {
		return s, cay.Errorf(cay.NotFound, "no snapshot %s", id)
	}
	s.Files = []cay.SnapFile{{Name: "pages.img", Size: 1000}}
	return s, nil
}

// Compare asks OnCompare.
func (n *Node) Compare(_ context.Context, before, after cay.Moment) (cay.Comparison, error) {
	if n.OnCompare == nil {
		return cay.Comparison{}, nil
	}
	return n.OnCompare(before, after)
}

// Keep has a snapshot be there.
func (n *Node) Keep(s cay.Snapshot) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.snapshots[s.ID] = s
}

// ImageExtents is what Places has.
func (n *Node) ImageExtents(root string) []disk.Extent { return n.Places[root] }

// ImageSize is the same for all images.
func (n *Node) ImageSize(string) int64 { return 1 << 20 }

// Checkpoint saves an instance.
func (n *Node) Checkpoint(_ context.Context, id cay.InstanceID, record cay.Snapshot) error {
	if n.OnSave != nil {
		if err := n.OnSave(id); err != nil {
			return err
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, ok := n.instances[id]; !ok {
		return cay.Errorf(cay.NotFound, "no instance %s", id)
	}
	n.snapshots[record.ID] = record
	return nil
}

// Pause saves an instance and ends it.
func (n *Node) Pause(ctx context.Context, id cay.InstanceID, record cay.Snapshot) error {
	if err := n.Checkpoint(ctx, id, record); err != nil {
		return err
	}
	n.Die(id, cay.CauseAsked, "paused")
	return nil
}

// SetNetwork replaces an instance's policy.
func (n *Node) SetNetwork(_ context.Context, id cay.InstanceID, p cay.NetworkPolicy) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	i, ok := n.instances[id]
	if !ok {
		return cay.Errorf(cay.NotFound, "no instance %s", id)
	}
	i.Spec.Network = p
	n.instances[id] = i
	return nil
}

// Connections says that every instance was refused one.
func (n *Node) Connections(cay.InstanceID) []cay.Connection {
	return []cay.Connection{{Rule: "denyOut 0.0.0.0/0", Protocol: "tcp", Address: "192.88.99.1:80"}}
}

// Snapshots lists what was saved.
func (n *Node) Snapshots() []cay.Snapshot {
	n.mu.Lock()
	defer n.mu.Unlock()
	var out []cay.Snapshot
	for _, s := range n.snapshots {
		out = append(out, s)
	}
	return out
}

// RemoveSnapshot removes what was saved.
func (n *Node) RemoveSnapshot(_ context.Context, id cay.SnapshotID) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.snapshots, id)
	return nil
}

// Kill ends an instance.
func (n *Node) Kill(_ context.Context, id cay.InstanceID, cause cay.Cause) error {
	if n.OnKill != nil {
		if err := n.OnKill(id); err != nil {
			return err
		}
	}
	n.Die(id, cause, "killed")
	return nil
}

// Die ends an instance and tells of its death.
func (n *Node) Die(id cay.InstanceID, cause cay.Cause, detail string) {
	n.mu.Lock()
	i, ok := n.instances[id]
	if ok {
		delete(n.instances, id)
		n.kills[id] = cause
	}
	n.mu.Unlock()
	if ok {
		n.deaths <- cay.Death{Instance: id, Sandbox: i.Spec.Sandbox, Cause: cause, Detail: detail, At: time.Now()}
	}
}

// Vanish ends an instance and tells nobody.
func (n *Node) Vanish(id cay.InstanceID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.instances, id)
}

// Ended returns how an instance ended.
func (n *Node) Ended(id cay.InstanceID) (cay.Cause, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	cause, ok := n.kills[id]
	return cause, ok
}

// Instances lists what runs.
func (n *Node) Instances() []cay.Instance {
	n.mu.Lock()
	defer n.mu.Unlock()
	var out []cay.Instance
	for _, i := range n.instances {
		out = append(out, i)
	}
	return out
}

// Usage says that an instance has used one CPU for half of its life, unless
// OnUsage knows better.
func (n *Node) Usage(_ context.Context, id cay.InstanceID) (cay.Usage, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	i, ok := n.instances[id]
	if !ok {
		return cay.Usage{}, cay.Errorf(cay.NotFound, "no instance %s", id)
	}
	used := time.Since(i.Started) / 2
	if n.OnUsage != nil {
		used = n.OnUsage(id)
	}
	return cay.Usage{
		At: time.Now(), CPUTime: used, Tasks: 3,
		MemoryUsed: 100 << 20, MemoryMax: int64(i.Spec.Limits.MemoryMB) << 20,
		DiskUsed: 1 << 20, DiskMax: int64(i.Spec.Limits.DiskMB) << 20,
	}, nil
}

// Deaths tells of every instance that ended.
func (n *Node) Deaths() <-chan cay.Death { return n.deaths }
