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
	"github.com/cay-run/cay/internal/guest"
	"github.com/cay-run/cay/internal/guest/toagent"
)

// Node is a node in memory. Its fields may be set before it is used.
type Node struct {
	// OnCreate and OnKill, when set, run first; their error is the answer.
	OnCreate func(context.Context, cay.InstanceSpec) error
	OnKill   func(cay.InstanceID) error
	OnRemove func(cay.SnapshotID) error
	// OnCreated, when set, runs before Create answers.
	OnCreated func(cay.Instance)
	OnSave    func(cay.InstanceID) error
	OnRoute   func(cay.InstanceID) error
	// OnResponds answers for the agent; nil is one that does.
	OnResponds func(context.Context, cay.InstanceID) error
	// OnCompare answers for Compare; nil is two moments that are the same.
	OnCompare func(before, after cay.Moment) (cay.Comparison, error)
	// OnStarts says why a snapshot cannot be started; nil starts each.
	OnStarts func(cay.Snapshot) error
	Notice   string // of every instance that is created from now on
	// OnWarm, when set, answers with the ids of an instance that was made
	// beforehand, for creates that welcome one; otherwise there is none.
	OnWarm func(cay.InstanceSpec) (cay.SandboxID, cay.InstanceID, bool)

	// OnUsage, when set, says how much CPU time an instance has used.
	OnUsage func(cay.InstanceID) time.Duration
	// OnDiary answers for the guest; nil is one that keeps no diary.
	OnDiary func(id cay.InstanceID, after int64) (guest.Diary, error)

	mu        sync.Mutex
	instances map[cay.InstanceID]cay.Instance
	kills     map[cay.InstanceID]cay.Cause
	snapshots map[cay.SnapshotID]cay.Snapshot
	deaths    []cay.Death
	died      chan struct{} // closed by the next death
	routed    []cay.InstanceID
}

// NewNode returns a node with nothing on it.
func NewNode() *Node {
	return &Node{
		instances: make(map[cay.InstanceID]cay.Instance),
		kills:     make(map[cay.InstanceID]cay.Cause),
		snapshots: make(map[cay.SnapshotID]cay.Snapshot),
		died:      make(chan struct{}),
	}
}

// Create starts an instance.
func (n *Node) Create(ctx context.Context, spec cay.InstanceSpec) (cay.Instance, error) {
	if spec.Warm && n.OnWarm != nil {
		if sandbox, instance, ok := n.OnWarm(spec); ok {
			spec.Sandbox, spec.Instance = sandbox, instance
		}
	}
	spec.Warm = false
	if n.OnCreate != nil {
		if err := n.OnCreate(ctx, spec); err != nil {
			return cay.Instance{}, err
		}
	}
	if err := ctx.Err(); err != nil {
		return cay.Instance{}, err
	}
	i := cay.Instance{Spec: spec, Addr: netip.MustParseAddr("127.0.0.1"), Started: time.Now(), Notice: n.Notice}
	n.mu.Lock()
	_, exists := n.instances[spec.Instance]
	if !exists {
		n.instances[spec.Instance] = i
	}
	n.mu.Unlock()
	if exists {
		return cay.Instance{}, cay.Errorf(cay.Conflict, "instance %s runs already", spec.Instance)
	}
	if n.OnCreated != nil {
		n.OnCreated(i)
	}
	return i, nil
}

// Responds asks OnResponds.
func (n *Node) Responds(ctx context.Context, id cay.InstanceID) error {
	if n.OnResponds == nil {
		return nil
	}
	return n.OnResponds(ctx, id)
}

// Diary asks OnDiary.
func (n *Node) Diary(_ context.Context, id cay.InstanceID, after int64) (guest.Diary, error) {
	if n.OnDiary == nil {
		return guest.Diary{}, toagent.ErrNoDiary
	}
	return n.OnDiary(id, after)
}

// Prepare starts an instance. Routed tells which ones Route was called for.
func (n *Node) Prepare(ctx context.Context, spec cay.InstanceSpec) (cay.Instance, error) {
	return n.Create(ctx, spec)
}

// Route notes that requests reach an instance.
func (n *Node) Route(_ context.Context, id cay.InstanceID) error {
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
func (n *Node) Snapshot(_ context.Context, id cay.SnapshotID) (cay.Snapshot, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	s, ok := n.snapshots[id]
	if !ok {
		return s, cay.Errorf(cay.NotFound, "no snapshot %s", id)
	}
	s.Files = []cay.SnapFile{{Name: "pages.img", Size: 1000}}
	return s, nil
}

// Record is Snapshot: there is one machine.
func (n *Node) Record(ctx context.Context, id cay.SnapshotID) (cay.Snapshot, error) {
	return n.Snapshot(ctx, id)
}

// Fits says of all memory that it does.
func (*Node) Fits(context.Context, cay.Snapshot) error { return nil }

// Starts asks OnStarts.
func (n *Node) Starts(_ context.Context, s cay.Snapshot) error {
	if n.OnStarts == nil {
		return nil
	}
	return n.OnStarts(s)
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

// SavedBytes says that each snapshot takes 1,000 bytes.
func (n *Node) SavedBytes(_ context.Context, team cay.TeamID, but ...cay.SnapshotID) (int64, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	sum := int64(0)
	for id, s := range n.snapshots {
		if s.Team == team && s.Sandbox != "" && !slices.Contains(but, id) {
			sum += 1000
		}
	}
	return sum, nil
}

// DiskUse says that each snapshot takes 1,000 bytes.
func (n *Node) DiskUse(_ context.Context, groups [][]cay.SnapshotID) ([]cay.DiskUse, error) {
	out := make([]cay.DiskUse, len(groups))
	for i, group := range groups {
		out[i].Own = int64(1000 * len(group))
	}
	return out, nil
}

// Checkpoint saves an instance.
func (n *Node) Checkpoint(_ context.Context, id cay.InstanceID, record cay.Snapshot) error {
	if n.OnSave != nil {
		if err := n.OnSave(id); err != nil {
			return err
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	i, ok := n.instances[id]
	if !ok {
		return cay.Errorf(cay.NotFound, "no instance %s", id)
	}
	record.Volumes = i.Spec.Volumes
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
func (n *Node) Connections(context.Context, cay.InstanceID) ([]cay.Connection, error) {
	return []cay.Connection{{Rule: "denyOut 0.0.0.0/0", Protocol: "tcp", Address: "192.88.99.1:80"}}, nil
}

// Snapshots lists what was saved.
func (n *Node) Snapshots(context.Context) ([]cay.Snapshot, error) { return n.Saved(), nil }

// Stored lists what was saved: no file is read any more once a snapshot is removed.
func (n *Node) Stored(ctx context.Context) ([]cay.Snapshot, error) { return n.Snapshots(ctx) }

// Saved lists what was saved.
func (n *Node) Saved() []cay.Snapshot {
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
	if n.OnRemove != nil {
		if err := n.OnRemove(id); err != nil {
			return err
		}
	}
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
		n.deaths = append(n.deaths, cay.Death{Instance: id, Sandbox: i.Spec.Sandbox, Cause: cause, Detail: detail, At: time.Now()})
		close(n.died)
		n.died = make(chan struct{})
	}
	n.mu.Unlock()
}

// Vanish ends an instance without a word.
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
func (n *Node) Instances(context.Context) ([]cay.Instance, error) { return n.Alive(), nil }

// Alive lists what runs.
func (n *Node) Alive() []cay.Instance {
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
func (n *Node) Deaths(ctx context.Context, after cay.Cursor) ([]cay.Death, cay.Cursor, error) {
	for {
		n.mu.Lock()
		list, died := slices.Clone(n.deaths[after.Seq:]), n.died
		n.mu.Unlock()
		if after.Seq += int64(len(list)); len(list) > 0 {
			return list, after, nil
		}
		select {
		case <-died:
		case <-ctx.Done():
			return nil, after, ctx.Err()
		}
	}
}
