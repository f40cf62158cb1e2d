package node

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/engine"
)

// Room is what a host has, and has left, of what sandboxes use up. Zero of
// something means that it is not known, and then it is not asked about.
type Room struct {
	Memory     int64 // bytes
	MemoryFree int64 // bytes that new work can use without swapping or reclaim
	Tasks      int   // processes and threads that the kernel allows
	TasksFree  int
}

// need is what instances use up.
type need struct {
	memory  int64 // bytes, at once
	pending int64 // bytes that they may load later
	tasks   int
}

func (a need) plus(b need) need {
	return need{a.memory + b.memory, a.pending + b.pending, a.tasks + b.tasks}
}

func (a need) minus(b need) need {
	return need{a.memory - b.memory, a.pending - b.pending, a.tasks - b.tasks}
}

const (
	// overrun is how far one sandbox may be beyond its promised memory for a
	// second, until its own guard is done with a fork bomb (ADR 7). Few are at
	// once, so the host keeps it free once, not for each.
	overrun = 512 << 20
)

// memoryKept is what the host keeps free in any case.
func (r Room) memoryKept() int64 { return min(overrun+r.Memory/32, r.Memory/4) }

// tasksKept is for the host's own programs and for guests that grow.
func (r Room) tasksKept() int { return r.Tasks / 10 }

// The things that a host can lack.
const (
	memoryLack  = "memory"
	pendingLack = "memory for what running sandboxes may still load" // else there were enough
	tasksLack   = "tasks"
)

// lacks says what a host has too little of for some need, or nothing. Of the
// memory that may be loaded later a part is kept free, in percent.
func (r Room) lacks(n need, percent int) string {
	after := r.MemoryFree - n.memory - r.memoryKept()
	switch {
	case r.Memory > 0 && after < 0:
		return memoryLack
	case r.Memory > 0 && after < reserveOf(n.pending, percent):
		return pendingLack
	case r.Tasks > 0 && r.TasksFree-n.tasks < r.tasksKept():
		return tasksLack
	}
	return ""
}

// reserveOf is the part of what may be loaded later that is kept free. Clones of
// one snapshot load much the same of it, and each loads all of it only if
// its guest touches all.
func reserveOf(pending int64, percent int) int64 { return pending / 100 * int64(percent) }

// needOf is what an engine's instance of a source takes.
func needOf(cost engine.Capabilities, from source) need {
	switch {
	case from.cold:
		return need{memory: cost.BootMemory, tasks: cost.IdleTasks}
	case from.loading == engine.Demand:
		return need{memory: cost.IdleMemory, pending: memorySize(from.record), tasks: cost.IdleTasks}
	}
	return need{memory: from.record.Size() + cost.IdleMemory, tasks: cost.IdleTasks}
}

// admission is room that counts as taken, though nothing uses it yet, until
// done.
type admission struct {
	n    *Node
	once sync.Once
	need need // guarded by the node's lock
}

// admit does not wait: there is room for an instance of that snapshot, or there
// is an error. The pool's instances are given up for it.
func (n *Node) admit(ctx context.Context, from source, pooled bool) (*admission, error) {
	want := needOf(n.cfg.Engine.Capabilities(), from)
	lacking, why := n.reserve(want)
	if lacking != "" && !pooled && n.giveUp(ctx) {
		lacking, why = n.reserve(want)
	}
	if lacking != "" {
		return nil, errFull(lacking, why)
	}
	return &admission{n: n, need: want}, nil
}

// reserve takes room, or says what lacks. A reading of the host's room and
// the return of an instance's follow each other: so memory counts as taken or as
// used at every moment.
func (n *Node) reserve(want need) (lacking string, why error) {
	n.admitting.Lock()
	defer n.admitting.Unlock()
	room, err := n.cfg.Room()
	if err != nil {
		n.cfg.Log.Warn("what this host has left cannot be read", "err", err)
		room = Room{}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	running := n.pending()
	all := n.coming.plus(want).plus(need{pending: running})
	if lacking = room.lacks(all, n.cfg.LoadReserve); lacking != "" {
		const mb = 1 << 20
		return lacking, fmt.Errorf("%d MB of memory and %d tasks are free, %d MB and %d tasks are kept; "+
			"it takes %d MB and those being made %d MB; running ones may still load %d MB, all of them %d MB, of which %d%% are kept free",
			room.MemoryFree/mb, room.TasksFree, room.memoryKept()/mb, room.tasksKept(),
			want.memory/mb, n.coming.memory/mb, running/mb, all.pending/mb, n.cfg.LoadReserve)
	}
	n.coming = n.coming.plus(want)
	return "", nil
}

// pending is what instances may still load. The caller holds n.mu.
func (n *Node) pending() (bytes int64) {
	for _, inst := range n.instances {
		bytes += inst.pending
	}
	return bytes
}

// handOver returns what the instance may load later, which its owner counts from
// now on. The caller holds the node's lock.
func (a *admission) handOver() (pending int64) {
	pending, a.need.pending = a.need.pending, 0
	a.n.coming.pending -= pending
	return pending
}

// done gives the room back: the instance uses it, or has come to nothing.
func (a *admission) done() {
	a.once.Do(func() {
		a.n.admitting.Lock()
		defer a.n.admitting.Unlock()
		a.n.mu.Lock()
		defer a.n.mu.Unlock()
		a.n.coming = a.n.coming.minus(a.need)
	})
}

func errFull(lacking string, why error) error {
	hint := "end or pause sandboxes, or try again later"
	if lacking == tasksLack {
		hint += "; `cay doctor` names the kernel's limits to raise"
	}
	return cay.Wrap(cay.Unavailable, why, "this machine has no room for another sandbox: too little %s is left", lacking).
		WithCode(cay.CodeCapacity).WithHint("%s", hint)
}

// lookAtMemory empties the pool when the host is short of something, and keeps
// it empty until there is twice of what must be left.
func (n *Node) lookAtMemory() {
	room, err := n.cfg.Room()
	if err != nil {
		return
	}
	n.mu.Lock()
	was := n.pool.short
	margin := need{memory: room.memoryKept() / 4, tasks: room.tasksKept() / 4}
	if was {
		margin = need{memory: room.memoryKept(), tasks: room.tasksKept()}
	}
	margin.pending = n.pending()
	n.pool.short = room.lacks(margin, n.cfg.LoadReserve) != "" || n.roomFor("a pooled sandbox") != nil
	short := n.pool.short
	n.mu.Unlock()
	if short && !was {
		n.cfg.Log.Warn("the pool is emptied: this machine is short of memory, tasks or disk")
		ctx, cancel := context.WithTimeout(n.ctx, time.Minute)
		defer cancel()
		n.giveUp(ctx)
	}
}
