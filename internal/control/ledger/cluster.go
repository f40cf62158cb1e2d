package ledger

import (
	"context"

	"github.com/cay-run/cay"
)

// Follower wakes the streams of events that other nodes record.
type Follower struct {
	l    *Ledger
	seen map[cay.TeamID]int64 // nil before the first look
}

// Follower returns one that has seen nothing yet.
func (l *Ledger) Follower() *Follower { return &Follower{l: l} }

// Look wakes the streams of teams that have events which it did not see before, and
// returns those teams.
func (f *Follower) Look(ctx context.Context) ([]cay.TeamID, error) {
	now, err := f.l.store.EventCounters(ctx)
	if err != nil {
		return nil, err
	}
	var out []cay.TeamID
	for team, last := range now {
		if last > f.seen[team] {
			f.l.streams.wake(team)
			out = append(out, team)
		}
	}
	f.seen = now
	return out, nil
}

// RereadLimits reads the limits of teams again, which another node may have changed.
func (l *Ledger) RereadLimits(ctx context.Context) error {
	l.limits.changing.Lock()
	defer l.limits.changing.Unlock()
	set, err := l.store.AllTeamLimits(ctx)
	if err != nil {
		return err
	}
	of := make(map[cay.TeamID]teamLimits, len(set))
	for team, own := range set {
		of[team] = teamLimits{own, own.Over(l.limits.defaults)}
	}
	l.limits.mu.Lock()
	defer l.limits.mu.Unlock()
	l.limits.of = of
	return nil
}
