package proc

import (
	"cmp"
	"fmt"
	"slices"
	"sort"
	"sync"
	"time"

	"connectrpc.com/connect"

	pb "github.com/cay-run/cay/api/proto/process"
)

// linger is how long the end of a process is kept for a late Connect.
const linger = 30 * time.Second

// table holds the processes that run, and those that ended a moment ago.
type table struct {
	mu    sync.Mutex
	live  map[uint32]*process
	ended map[uint32]*process
	seq   []*process // live ones, oldest first: the newest bearer of a tag wins

	expected int           // processes that were admitted and are about to start
	buried   chan struct{} // has an element after an end
}

func newTable() *table {
	return &table{live: map[uint32]*process{}, ended: map[uint32]*process{}, buried: make(chan struct{}, 1)}
}

// expect counts a process that is about to start, until begun is called.
func (t *table) expect() (begun func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.expected++
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.expected--
	}
}

// starts returns how many processes live or are about to, and how many of them are
// young.
func (t *table) starts() (live, young int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	since := time.Now().Add(-startYoung)
	old := sort.Search(len(t.seq), func(i int) bool { return t.seq[i].started.After(since) })
	return len(t.seq) + t.expected, len(t.seq) - old + t.expected
}

func (t *table) add(p *process) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.ended, p.pid)
	t.live[p.pid] = p
	p.started = time.Now()
	t.seq = append(t.seq, p)
}

// bury moves a process to the ended ones, and forgets it later.
func (t *table) bury(p *process) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.seq = slices.DeleteFunc(t.seq, func(o *process) bool { return o == p })
	if t.live[p.pid] == p {
		delete(t.live, p.pid)
		t.ended[p.pid] = p
	}
	select {
	case t.buried <- struct{}{}:
	default:
	}
	time.AfterFunc(linger, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.ended[p.pid] == p {
			delete(t.ended, p.pid)
		}
		p.forget()
	})
}

// list returns the processes that run, by pid.
func (t *table) list() []*process {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := slices.DeleteFunc(slices.Clone(t.seq), (*process).gone)
	slices.SortFunc(all, func(a, b *process) int { return cmp.Compare(a.pid, b.pid) })
	return all
}

// find returns the process that a selector names; with late also one that
// ended a moment ago.
func (t *table) find(sel *pb.ProcessSelector, late bool) (*process, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch by := sel.GetSelector().(type) {
	case *pb.ProcessSelector_Pid:
		if p := t.live[by.Pid]; p != nil && (late || !p.gone()) {
			return p, nil
		}
		if p := t.ended[by.Pid]; p != nil && late {
			return p, nil
		}
		return nil, connect.NewError(connect.CodeNotFound, fmt.Errorf("process with pid %d not found", by.Pid))
	case *pb.ProcessSelector_Tag:
		for _, p := range slices.Backward(t.seq) {
			if p.tag != nil && *p.tag == by.Tag && (late || !p.gone()) {
				return p, nil
			}
		}
		if late {
			for _, p := range t.ended {
				if p.tag != nil && *p.tag == by.Tag {
					return p, nil
				}
			}
		}
		return nil, connect.NewError(connect.CodeNotFound, fmt.Errorf("process with tag '%s' not found", by.Tag))
	default:
		return nil, connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("no process selected: give a pid or a tag"))
	}
}
