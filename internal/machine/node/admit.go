package node

import (
	"context"
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
	memory int64 // bytes
	tasks  int
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

// lacks says what a host has too little of for some need, or nothing.
func (r Room) lacks(n need) string {
	switch {
	case r.Memory > 0 && r.MemoryFree-n.memory < r.memoryKept():
		return "memory"
	case r.Tasks > 0 && r.TasksFree-n.tasks < r.tasksKept():
		return "tasks"
	}
	return ""
}

// needOf is what an engine's instance of a source takes.
func needOf(cost engine.Capabilities, from source) need {
	memory := cost.BootMemory
	if !from.cold {
		memory = from.record.Size() + cost.IdleMemory
	}
	return need{memory: memory, tasks: cost.IdleTasks}
}

// admit does not wait: there is room for an instance of that snapshot, or there
// is an error. The pool's instances are given up for it. Until admitted is
// called the room counts as taken, though nothing uses it yet.
func (n *Node) admit(ctx context.Context, from source, pooled bool) (admitted func(), err error) {
	want := needOf(n.cfg.Engine.Capabilities(), from)
	lacking := n.reserve(want)
	if lacking != "" && !pooled && n.giveUp(ctx) {
		lacking = n.reserve(want)
	}
	if lacking != "" {
		return nil, errFull(lacking)
	}
	return func() {
		n.mu.Lock()
		n.coming.memory -= want.memory
		n.coming.tasks -= want.tasks
		n.mu.Unlock()
	}, nil
}

func (n *Node) reserve(want need) (lacking string) {
	room, err := n.cfg.Room()
	if err != nil {
		n.cfg.Log.Warn("what this host has left cannot be read", "err", err)
		room = Room{}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	sum := need{n.coming.memory + want.memory, n.coming.tasks + want.tasks}
	if lacking = room.lacks(sum); lacking == "" {
		n.coming = sum
	}
	return lacking
}

func errFull(lacking string) error {
	hint := "end or pause sandboxes, or try again later"
	if lacking == "tasks" {
		hint += "; `cay doctor` names the kernel's limits to raise"
	}
	return cay.Errorf(cay.Unavailable, "this machine has no room for another sandbox: too little %s is left", lacking).
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
	n.pool.short = room.lacks(margin) != "" || n.roomFor("a pooled sandbox") != nil
	short := n.pool.short
	n.mu.Unlock()
	if short && !was {
		n.cfg.Log.Warn("the pool is emptied: this machine is short of memory, tasks or disk")
		ctx, cancel := context.WithTimeout(n.ctx, time.Minute)
		defer cancel()
		n.giveUp(ctx)
	}
}
