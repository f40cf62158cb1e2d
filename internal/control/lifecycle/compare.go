package lifecycle

import (
	"context"
	"sync"
	"time"

	"github.com/cay-run/cay"
)

// compareWithin bounds a comparison: it may have to restore both sides and to
// read some gigabytes.
const compareWithin = 5 * time.Minute

// Compare tells which files differ between two checkpoints of a team's, which
// need not be of one sandbox but of one root image.
func (c *Controller) Compare(ctx context.Context, who cay.Caller, from, to cay.SnapshotID) (cay.Comparison, error) {
	if err := who.May(cay.ReadSandboxes); err != nil {
		return cay.Comparison{}, err
	}
	var sides [2]cay.Moment
	for i, id := range []cay.SnapshotID{from, to} {
		defer c.ledger.Tidy(ctx, id) // when its record went meanwhile
		defer c.ledger.Pin(id)()
		if _, err := c.store.Checkpoint(ctx, who.Team, id); err != nil {
			return cay.Comparison{}, err
		}
		sides[i].Snapshot = id
	}
	return c.compare(ctx, who.Team, sides)
}

// Changes tells which files of a sandbox, which runs or is paused, differ from
// a checkpoint; an empty one is the newest that its state comes from, which it
// returns.
func (c *Controller) Changes(ctx context.Context, who cay.Caller, id cay.SandboxID, since cay.SnapshotID) (out cay.Comparison, n cay.Checkpoint, err error) {
	if err := who.May(cay.ReadSandboxes); err != nil {
		return out, n, err
	}
	if _, err := c.find(who.Team, id); err != nil {
		return out, n, err
	}
	if since == "" {
		at, err := c.store.Branch(ctx, who.Team, id)
		if err != nil {
			return out, n, err
		}
		if since = at.Checkpoint; since == "" {
			return out, n, cay.Errorf(cay.Conflict, "sandbox %s has no checkpoint to compare it with", id).WithHint("take one first")
		}
	}
	defer c.ledger.Tidy(ctx, since)
	defer c.ledger.Pin(since)()
	if n, err = c.store.Checkpoint(ctx, who.Team, since); err != nil {
		return out, n, err
	}
	var s cay.Sandbox
	unpin := func() {}
	// Pinned under the lock: nothing else keeps what it is paused in.
	err = c.change(ctx, who.Team, id, func(_ *entry, now cay.Sandbox) error {
		if s = now; s.State != cay.Paused {
			return mustRun(s)
		}
		unpin = c.ledger.Pin(s.Snapshot)
		return nil
	})
	if err != nil {
		return out, n, err
	}
	after := cay.Moment{Instance: s.Instance}
	if s.State == cay.Paused {
		after = cay.Moment{Snapshot: s.Snapshot}
		defer c.ledger.Tidy(ctx, s.Snapshot)
	}
	defer unpin()
	out, err = c.compare(ctx, who.Team, [2]cay.Moment{{Snapshot: since}, after})
	return out, n, err
}

func (c *Controller) compare(ctx context.Context, team cay.TeamID, sides [2]cay.Moment) (cay.Comparison, error) {
	ctx, cancel := context.WithTimeout(ctx, compareWithin)
	defer cancel()
	done, err := c.comparing.take(ctx, team, "comparison")
	if err != nil {
		return cay.Comparison{}, err
	}
	defer done()
	out, err := c.node.Compare(ctx, sides[0], sides[1])
	return out, saveError(err, "the files could not be compared")
}

// turns lets each team do one of a thing at a time, so that no team waits for
// what another one asked for in numbers.
type turns struct {
	mu    sync.Mutex
	teams map[cay.TeamID]*turn
}

type turn struct {
	taken chan struct{}
	users int // callers that have or want it; guarded by turns.mu
}

// take waits for a team's turn at a thing, which lasts until done is called.
func (t *turns) take(ctx context.Context, team cay.TeamID, thing string) (done func(), err error) {
	t.mu.Lock()
	mine := t.teams[team]
	if mine == nil {
		if t.teams == nil {
			t.teams = make(map[cay.TeamID]*turn)
		}
		mine = &turn{taken: make(chan struct{}, 1)}
		t.teams[team] = mine
	}
	mine.users++
	t.mu.Unlock()
	leave := func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if mine.users--; mine.users == 0 {
			delete(t.teams, team)
		}
	}
	select {
	case mine.taken <- struct{}{}:
		return func() { <-mine.taken; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, cay.Wrap(cay.Unavailable, ctx.Err(), "another %s of this team's is under way", thing).
			WithHint("try again when it is done")
	}
}
