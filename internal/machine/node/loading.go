package node

import (
	"context"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/engine"
	"github.com/cay-run/cay/internal/ticks"
)

// An instance that is restored by demand has a part of its memory in the files
// of its snapshot. It maps them from before its start until it has loaded all, or
// is over. The files stay on the disk so long, even of a snapshot that is removed,
// and memory that is not loaded yet counts at admission.

// Sharing says which instances may have one copy of what they only read of their
// snapshot's memory.
type Sharing int

const (
	// ShareAll means all instances of a snapshot, those of several teams too where a
	// template is for all.
	ShareAll Sharing = iota
	// ShareTeam means those of the team that the snapshot is of.
	ShareTeam
	// ShareNone means none.
	ShareNone
)

// Among reports whether an instance of a team may share the memory of a snapshot
// with others of it.
func (s Sharing) Among(team cay.TeamID, of cay.Snapshot) bool {
	switch s {
	case ShareAll:
		return true
	case ShareTeam:
		return team != "" && team == of.Team
	}
	return false
}

// lookEvery is how often the node asks what instances have not loaded yet. It
// only ever gets less, so an old answer keeps too much memory free.
const lookEvery = 2 * time.Second

// memorySize is how many bytes of memory a snapshot holds.
func memorySize(s cay.Snapshot) int64 {
	return cay.Snapshot{Files: engine.Reads(s, false)}.Size()
}

// mapFiles has an instance keep the files of its snapshot while it runs, and
// count what it may load of them, which was admitted, itself.
func (n *Node) mapFiles(inst *instance, pending func() int64) {
	n.cfg.Snapshots.Hold(inst.spec.Snapshot)
	inst.demand = true
	n.mu.Lock()
	defer n.mu.Unlock()
	inst.maps, inst.pending = inst.spec.Snapshot, pending()
}

// unmapFiles gives back what mapFiles took; an instance that maps nothing is no
// error.
func (n *Node) unmapFiles(inst *instance) {
	n.mu.Lock()
	id := inst.maps
	inst.maps, inst.pending = "", 0
	n.mu.Unlock()
	if id == "" {
		return
	}
	if err := n.cfg.Snapshots.LetGo(id); err != nil {
		n.cfg.Log.Warn("the files of a removed snapshot are left; the next start removes them", "snapshot", id, "err", err)
	}
}

// lookAtLoading asks what a restored instance has not loaded yet. One that has
// loaded all maps nothing any more.
func (n *Node) lookAtLoading(ctx context.Context, id cay.InstanceID, inst *instance) {
	u, err := n.cfg.Engine.Usage(ctx, id)
	if err != nil { // it ends
		return
	}
	if u.MemoryPending <= 0 {
		n.unmapFiles(inst)
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	inst.restored = true
	if inst.maps != "" {
		inst.pending = u.MemoryPending
	}
}

// followLoading looks at all instances that map files until the node closes.
func (n *Node) followLoading() {
	for range ticks.Every(n.ctx, lookEvery) {
		for id, inst := range n.mapping() {
			n.lookAtLoading(n.ctx, id, inst)
		}
	}
}

// mapping finds the restored instances that map files.
func (n *Node) mapping() map[cay.InstanceID]*instance {
	n.mu.Lock()
	defer n.mu.Unlock()
	out := make(map[cay.InstanceID]*instance)
	for id, inst := range n.instances {
		if inst.maps != "" && inst.restored {
			out[id] = inst
		}
	}
	return out
}

// Loading is what there is to see of memory that is loaded by demand.
type Loading struct {
	Instances int   `json:"instances"` // that have not loaded all of their snapshot
	Pending   int64 `json:"pending"`   // bytes that they may still load
	Reserve   int64 `json:"reserve"`   // bytes of those that admission keeps free
	Removed   int   `json:"removed"`   // snapshots that are removed and whose files they read
	Kept      int64 `json:"kept"`      // bytes that those take on the disk
}

// Loading tells the state of memory that is loaded by demand.
func (n *Node) Loading() (Loading, error) {
	var out Loading
	removed, err := n.cfg.Snapshots.Mapped()
	for _, m := range removed {
		out.Removed++
		out.Kept += m.Snapshot.Size()
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, inst := range n.instances {
		if inst.pending > 0 {
			out.Instances++
			out.Pending += inst.pending
		}
	}
	out.Reserve = reserveOf(out.Pending, n.cfg.LoadReserve)
	return out, err
}

// Stored lists what Snapshots does, and those that are removed and whose files
// instances still read.
func (s Service) Stored(ctx context.Context) ([]cay.Snapshot, error) {
	out := s.Node.Snapshots()
	removed, err := s.cfg.Snapshots.Mapped()
	for _, m := range removed {
		if teams(m.Snapshot) {
			out = append(out, m.Snapshot)
		}
	}
	if err == nil {
		err = ctx.Err()
	}
	return out, err
}

// loadingOf is when an instance gets its memory. One that goes on with a sandbox's
// own memory shares that with few, and its first answer is waited for.
func (n *Node) loadingOf(inst *instance, from source) engine.Loading {
	switch {
	case from.cold:
		return engine.Eager
	case from.arrives:
		return engine.Demand // it needs its files for as long
	case inst.common || inst.pooled.Load():
		return n.cfg.Loading
	}
	return n.cfg.OwnLoading
}
