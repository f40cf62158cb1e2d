package ledger

import (
	"context"
	"maps"
	"sync"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/store"
)

// limits are what teams may have and do. The records are read at the start, and
// every change goes through here: who asks waits for no record.
type limits struct {
	defaults cay.TeamLimits
	changing sync.Mutex // one change at a time, from the record read to the record written

	mu sync.RWMutex
	of map[cay.TeamID]teamLimits // that have any of their own
}

// teamLimits are never written: a change makes new ones.
type teamLimits struct{ own, all cay.TeamLimits }

// ReadLimits reads the limits that are set for teams. It comes before whatever
// asks for limits.
func (l *Ledger) ReadLimits(ctx context.Context) error {
	set, err := l.store.AllTeamLimits(ctx)
	if err != nil {
		return err
	}
	for team, own := range set {
		l.limits.of[team] = teamLimits{own, own.Over(l.limits.defaults)}
	}
	return nil
}

// Limits returns what a team may have and do, by its own limits and the
// server's. The map is never written.
func (l *Ledger) Limits(team cay.TeamID) cay.TeamLimits {
	l.limits.mu.RLock()
	defer l.limits.mu.RUnlock()
	if one, ok := l.limits.of[team]; ok {
		return one.all
	}
	return l.limits.defaults
}

// OwnLimits returns the limits that are set for a team. The map is never
// written.
func (l *Ledger) OwnLimits(team cay.TeamID) cay.TeamLimits {
	l.limits.mu.RLock()
	defer l.limits.mu.RUnlock()
	return l.limits.of[team].own
}

// CountTemplates counts a team's own templates, but snapshots and those that Cay
// brings, by what store says.
func (l *Ledger) CountTemplates(ctx context.Context, s store.Templates, team cay.TeamID) (int, error) {
	return s.CountTemplates(ctx, team, l.reserved...)
}

// ChangeLimits replaces the limits that are set for a team by what change makes
// of them, and records the event of that. They hold for whatever asks after it.
func (l *Ledger) ChangeLimits(ctx context.Context, team cay.TeamID, change func(cay.TeamLimits) cay.TeamLimits, event func(before, after cay.TeamLimits) cay.Event) error {
	l.limits.changing.Lock()
	defer l.limits.changing.Unlock()
	before := l.OwnLimits(team)
	after := change(maps.Clone(before))
	if err := after.Check(); err != nil {
		return err
	}
	// A client that leaves must not leave records and memory apart.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), EndWithin)
	defer cancel()
	if err := l.store.PutTeamLimits(ctx, team, after, event(before, after)); err != nil {
		return err
	}
	l.limits.mu.Lock()
	l.limits.of[team] = teamLimits{after, after.Over(l.limits.defaults)}
	l.limits.mu.Unlock()
	l.Wake(team)
	return nil
}
