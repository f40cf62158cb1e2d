package logins

import (
	"context"
	"slices"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/ticks"
)

// Me is a person with the teams that they are in.
type Me struct {
	Person cay.Person
	In     []Role
}

// Role is a person's role in a team.
type Role struct {
	Team cay.Team
	Role cay.Role
}

var errNoPerson = cay.Errorf(cay.Denied, "sessions are of people, and this credential is of none").WithCode(cay.CodePeopleOnly).
	WithHint("log in: cay login")

// Me tells a person of themselves.
func (l *Logins) Me(ctx context.Context, who cay.Caller) (Me, error) {
	if who.Person == "" {
		return Me{}, errNoPerson
	}
	return l.about(ctx, who.Person)
}

func (l *Logins) about(ctx context.Context, id cay.PersonID) (out Me, err error) {
	if out.Person, err = l.cfg.Store.Person(ctx, id); err != nil {
		return out, err
	}
	list, err := l.cfg.Store.Memberships(ctx, id)
	if err != nil {
		return out, err
	}
	for _, m := range list {
		t, err := l.cfg.Store.Team(ctx, m.Team)
		if err != nil {
			return out, err
		}
		out.In = append(out.In, Role{t, m.Role})
	}
	return out, nil
}

// whose is the owner whose sessions a caller means: their own, or for an admin
// those of any person.
func (l *Logins) whose(who cay.Caller, person cay.PersonID) (cay.SessionOwner, error) {
	switch {
	case person != "" && person != who.Person:
		return cay.SessionOwner{Person: person}, who.May(cay.Admin)
	case who.Person == "" && who.Session == "":
		return cay.SessionOwner{}, errNoPerson
	}
	return l.cfg.Auth.Owner(who), nil
}

// Sessions lists sessions that are not over, the newest first: a person's, or
// those of the caller's owner for an empty person.
func (l *Logins) Sessions(ctx context.Context, who cay.Caller, person cay.PersonID) ([]cay.Session, error) {
	of, err := l.whose(who, person)
	if err != nil {
		return nil, err
	}
	list, err := l.cfg.Store.Sessions(ctx, of)
	now := time.Now()
	return slices.DeleteFunc(list, func(x cay.Session) bool { return !now.Before(x.Ends()) }), err
}

// EndSession ends one of those sessions, and what it holds open.
func (l *Logins) EndSession(ctx context.Context, who cay.Caller, person cay.PersonID, id cay.SessionID) error {
	of, err := l.whose(who, person)
	if err != nil {
		return err
	}
	if err := l.cfg.Store.RemoveSession(ctx, of, id); err != nil {
		return err
	}
	l.cfg.Auth.EndSession(id)
	return nil
}

// EndSessions ends all of those sessions, but for the one that asks.
func (l *Logins) EndSessions(ctx context.Context, who cay.Caller, person cay.PersonID) error {
	list, err := l.Sessions(ctx, who, person)
	if err != nil {
		return err
	}
	for _, x := range list {
		if x.ID == who.Session {
			continue
		}
		if err := l.EndSession(ctx, who, person, x.ID); err != nil && cay.KindOf(err) != cay.NotFound {
			return err
		}
	}
	return nil
}

// Logout ends the session that the request carries.
func (l *Logins) Logout(ctx context.Context, who cay.Caller) error {
	if who.Session != "" {
		return l.EndSession(ctx, who, "", who.Session)
	}
	if who.Person == "" {
		return errNoPerson
	}
	return cay.Errorf(cay.Invalid, "the request carries no session").WithHint("API keys and access tokens are removed, not logged out")
}

// pruneEvery is how often sessions that are over are forgotten.
const pruneEvery = time.Hour

// Run forgets sessions that are over, until ctx ends.
func (l *Logins) Run(ctx context.Context) {
	for range ticks.AtOnce(ctx, pruneEvery) {
		if err := l.cfg.Store.PruneSessions(ctx, time.Now()); err != nil && ctx.Err() == nil {
			l.cfg.Log.Warn("sessions that are over could not be forgotten", "err", err)
		}
	}
}
