package nodes

import (
	"time"

	"github.com/cay-run/cay"
)

// State is what this node knows of the cluster at a moment.
type State struct {
	Nodes     map[cay.NodeState]int // the members that it sees
	Draining  int                   // those of them that are drained
	Leads     bool
	Lease     time.Duration // for which this node serves without a renewal
	FreeShare float64       // the free part of the memory of all that take new sandboxes
}

// State tells what this node knows. One that looks at no others knows of none.
func (m *Members) State() State {
	out := State{Nodes: map[cay.NodeState]int{}, Leads: m.Leads(), Lease: max(0, time.Duration(m.deadline.Load()-sinceBoot()))}
	free, all := 0, 0
	for _, n := range *m.view.Load() {
		out.Nodes[n.Seen()]++
		if n.Drain != cay.DrainNone {
			out.Draining++
		}
		if n.Takes() {
			free += n.MemoryFreeMB
			all += n.MemoryMB
		}
	}
	if all > 0 {
		out.FreeShare = float64(free) / float64(all)
	}
	return out
}
