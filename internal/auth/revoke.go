package auth

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/cay-run/cay"
)

// uses are what goes on for long by means of a credential: connections, streams.
type uses struct {
	mu  sync.Mutex
	all map[*use]struct{}
}

type use struct {
	who    cay.Caller
	cancel context.CancelFunc
}

// While returns a context that ends when what the caller came with opens nothing
// any more: its key is removed or expires, its team or person is disabled. The
// returned function must be called when the use of it is over.
func (a *Auth) While(ctx context.Context, who cay.Caller) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	u := &use{who, cancel}
	a.uses.add(u)
	// It may have changed since it was verified.
	until, ok := a.still(ctx, who)
	if !ok {
		cancel()
	}
	timed := context.CancelFunc(func() {})
	if !until.IsZero() {
		ctx, timed = context.WithDeadline(ctx, until)
	}
	return ctx, func() {
		timed()
		cancel()
		a.uses.remove(u)
	}
}

// still reports whether a caller may go on, and until when; zero is for good.
// Records that cannot be read end nothing.
func (a *Auth) still(ctx context.Context, who cay.Caller) (until time.Time, ok bool) {
	if who.Key != "" {
		record, err := a.store.Key(ctx, "", who.Key)
		if cay.KindOf(err) == cay.NotFound || err == nil && record.Expired(time.Now()) {
			return until, false
		}
		if err == nil && cay.KindOf(a.personOpen(ctx, record)) == cay.Denied {
			return until, false
		}
		until = record.ExpiresAt
	}
	if who.Session != "" {
		x, err := a.store.Session(ctx, who.Session)
		if cay.KindOf(err) == cay.NotFound || err == nil && !time.Now().Before(x.Ends()) {
			return until, false
		}
		// A stream does not use the session, and may last as long as it can.
		if most := x.CreatedAt.Add(cay.SessionMost); err == nil && (until.IsZero() || most.Before(until)) {
			until = most
		}
	}
	if who.Person != "" {
		_, err := a.PersonCaller(ctx, who.Person, string(who.Team))
		return until, err == nil || cay.KindOf(err) == cay.Unavailable || cay.KindOf(err) == cay.Internal
	}
	if who.Scopes&cay.Admin != 0 {
		return until, true
	}
	team, err := a.store.Team(ctx, who.Team)
	return until, cay.KindOf(err) != cay.NotFound && (err != nil || team.Open() == nil)
}

// EndUses ends what goes on by means of the credentials of callers. It is called
// after the record has changed.
func (a *Auth) EndUses(of func(cay.Caller) bool) {
	a.uses.mu.Lock()
	defer a.uses.mu.Unlock()
	for u := range a.uses.all {
		if of(u.who) {
			u.cancel()
		}
	}
}

// EndKey ends what goes on by means of a key.
func (a *Auth) EndKey(id cay.KeyID) {
	a.EndUses(func(who cay.Caller) bool { return who.Key == id })
}

// EndPerson ends what goes on by means of what a person has, in one team, or in
// all for an empty one.
func (a *Auth) EndPerson(id cay.PersonID, team cay.TeamID) {
	a.EndUses(func(who cay.Caller) bool { return who.Person == id && (team == "" || who.Team == team) })
}

// EndSession ends what goes on by means of a session.
func (a *Auth) EndSession(id cay.SessionID) {
	a.EndUses(func(who cay.Caller) bool { return who.Session == id })
}

// EndTeam ends what goes on in a team, but for an operator's.
func (a *Auth) EndTeam(id cay.TeamID) {
	a.EndUses(func(who cay.Caller) bool { return who.Team == id && who.Scopes&cay.Admin == 0 })
}

func (u *uses) add(one *use) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.all == nil {
		u.all = make(map[*use]struct{})
	}
	u.all[one] = struct{}{}
}

func (u *uses) remove(one *use) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.all, one)
}

// Review ends what goes on by means of credentials that open nothing any more: of
// several servers, another one may have changed the records.
func (a *Auth) Review(ctx context.Context) {
	a.uses.mu.Lock()
	all := slices.Collect(maps.Keys(a.uses.all))
	a.uses.mu.Unlock()
	for _, u := range all {
		if _, ok := a.still(ctx, u.who); !ok && ctx.Err() == nil {
			u.cancel()
		}
	}
}
