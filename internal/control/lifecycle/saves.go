package lifecycle

import (
	"context"
	"sync"

	"github.com/cay-run/cay"
)

// saves are the saves under way that callers asked for, of teams whose saved bytes
// are bounded: a size is known only when all is written.
type saves struct {
	mu sync.Mutex
	of map[cay.SnapshotID]save
}

type save struct {
	team  cay.TeamID
	bytes int64 // about
}

// roomToSave takes room for a snapshot that a caller asks for, until leave is
// called, if the team may save another. It counts what there is and what is
// being saved; how large the new one gets is told by the snapshot that the
// sandbox was started from.
//
// Saves at a time limit, and for a budget, do not ask: refused, they would lose
// the sandbox. They count for those that come after them.
func (c *Controller) roomToSave(ctx context.Context, s cay.Sandbox, id cay.SnapshotID, kind cay.SnapshotKind, ends bool) (leave func(), err error) {
	limits := c.ledger.Limits(s.Team)
	if limits[cay.LimitSnapshots] == 0 {
		return func() {}, nil
	}
	var more, goes int64
	from, err := c.node.Snapshot(ctx, s.Snapshot)
	if err == nil && from.Kind == kind {
		more = from.Size()
	}
	// A pause takes the place of what the sandbox was last saved in.
	if err == nil && ends && from.Sandbox == s.ID {
		switch _, err := c.store.Checkpoint(ctx, s.Team, from.ID); cay.KindOf(err) {
		case cay.NotFound:
			goes = from.Size()
		case "":
		default:
			return nil, err
		}
	}
	c.saves.mu.Lock()
	defer c.saves.mu.Unlock()
	var others []cay.SnapshotID
	sum := -goes
	for id, one := range c.saves.of {
		if one.team == s.Team { // by what is expected, also when it is there just now
			others, sum = append(others, id), sum+one.bytes
		}
	}
	there, err := c.node.SavedBytes(ctx, s.Team, others...)
	if err == nil {
		err = limits.AdmitBytes(there+sum, more)
	}
	if err != nil {
		return nil, err
	}
	if c.saves.of == nil {
		c.saves.of = make(map[cay.SnapshotID]save)
	}
	c.saves.of[id] = save{s.Team, more}
	return func() {
		c.saves.mu.Lock()
		defer c.saves.mu.Unlock()
		delete(c.saves.of, id)
	}, nil
}
