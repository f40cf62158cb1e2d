package agent

import (
	"slices"
	"sync"
	"time"
)

const (
	// endedKept is how many acts of the guard are remembered.
	endedKept = 8
	// endedFresh is how long after it one explains the end of a process, which comes
	// late on a busy machine. Its id may be another's later, and a parent that
	// outlived its child did not die with it.
	endedFresh = 30 * time.Second
)

// ended remembers which processes the guard ended lately, and why.
type ended struct {
	mu   sync.Mutex
	acts []endedAct // the latest last
}

type endedAct struct {
	at     time.Time
	pids   []int // the victims and those they descend from
	reason string
}

func (e *ended) note(pids []int, reason string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.acts) == endedKept {
		e.acts = e.acts[1:]
	}
	e.acts = append(e.acts, endedAct{time.Now(), slices.Clone(pids), reason})
}

// over says that the latest act has just come to its end: what a fork bomb leaves
// takes seconds to end on a busy machine.
func (e *ended) over() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if n := len(e.acts); n > 0 {
		e.acts[n-1].at = time.Now()
	}
}

func (e *ended) why(pid int) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, act := range slices.Backward(e.acts) {
		if slices.Contains(act.pids, pid) && time.Since(act.at) < endedFresh {
			return act.reason
		}
	}
	return ""
}

// Why says why the guard has just ended a process or one of its children, if it
// has.
func (a *Agent) Why(pid int) string { return a.ended.why(pid) }
