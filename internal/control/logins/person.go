package logins

import (
	"context"
	"slices"
	"strings"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/auth/oidc"
	"github.com/cay-run/cay/internal/control/ledger"
	"github.com/cay-run/cay/internal/store"
)

func errRefused(format string, args ...any) *cay.Error {
	return cay.Errorf(cay.Denied, format, args...).WithCode(cay.CodeLoginRefused).WithHint("ask the operator of this server")
}

// verified is the address of a person that the provider vouches for.
func (l *Logins) verified(claims oidc.Claims) (string, error) {
	text, _ := claims.Text("email")
	email, err := cay.CleanEmail(text)
	if err != nil {
		return "", errRefused("the login provider tells no e-mail address")
	}
	said, told := claims.Text("email_verified")
	if said != "true" && (told || !l.cfg.TrustEmail) {
		return "", errRefused("the login provider has not verified the address %s", email)
	}
	_, domain, _ := strings.Cut(email, "@")
	if len(l.cfg.Domains) > 0 && !slices.ContainsFunc(l.cfg.Domains, func(d string) bool { return strings.EqualFold(d, domain) }) {
		return "", errRefused("addresses of %s may not log in here", domain)
	}
	return email, nil
}

// personOf finds or makes the person of a login, and brings the memberships
// that rules give in line with what the provider says now.
func (l *Logins) personOf(ctx context.Context, claims oidc.Claims, from *cay.Origin) (cay.Person, error) {
	email, err := l.verified(claims)
	if err != nil {
		return cay.Person{}, err
	}
	wanted, err := l.wanted(ctx, email, claims.Texts(l.cfg.Groups))
	if err != nil {
		return cay.Person{}, err
	}
	var p cay.Person
	var changed []cay.TeamID
	in := 0
	err = l.cfg.Store.Tx(ctx, func(tx store.Store) error {
		changed = nil
		if p, err = known(ctx, tx, claims, email, len(wanted) > 0); err != nil {
			return err
		}
		who := cay.Caller{Person: p.ID, From: from}
		if changed, err = align(ctx, tx, who, email, wanted); err != nil {
			return err
		}
		list, err := tx.Memberships(ctx, p.ID)
		in = len(list)
		return err
	})
	if err != nil {
		return cay.Person{}, err
	}
	for _, team := range changed { // what is held open is opened again with the new role
		l.cfg.Auth.EndPerson(p.ID, team)
		l.cfg.Ledger.Wake(team)
	}
	if in == 0 {
		return cay.Person{}, errRefused("%s is in no team: no rule of this server gives a role", email)
	}
	return p, nil
}

// known finds the person whom the provider means: by its subject, and at the
// first login by the address. One who is not known is made if rules want it.
func known(ctx context.Context, tx store.Store, claims oidc.Claims, email string, make bool) (cay.Person, error) {
	id, err := tx.PersonOf(ctx, claims.Issuer, claims.Subject)
	var p cay.Person
	switch {
	case err == nil:
		if p, err = tx.Person(ctx, id); err != nil {
			return p, err
		}
	case cay.KindOf(err) == cay.NotFound:
		if p, err = first(ctx, tx, claims, email, make); err != nil {
			return p, err
		}
	default:
		return p, err
	}
	if !p.DisabledAt.IsZero() {
		return p, errRefused("%s is disabled on this server", p.Email)
	}
	if p.Email == email {
		return p, nil
	}
	p.Email = email // it has changed at the provider
	err = tx.UpdatePerson(ctx, p)
	if cay.KindOf(err) == cay.Conflict {
		err = errRefused("another person has the address %s here", email)
	}
	return p, err
}

// first binds the person of an address to a provider's subject.
func first(ctx context.Context, tx store.Store, claims oidc.Claims, email string, make bool) (cay.Person, error) {
	p, err := tx.PersonByEmail(ctx, email)
	if cay.KindOf(err) == cay.NotFound {
		if !make {
			return p, errRefused("%s is in no team: no rule of this server gives a role", email)
		}
		name, _ := claims.Text("name")
		p = cay.Person{ID: cay.NewPersonID(), Email: email, Name: cay.Fit(name, 128), CreatedAt: ledger.Now()}
		err = tx.AddPerson(ctx, p)
	}
	if err != nil {
		return p, err
	}
	err = tx.BindPerson(ctx, claims.Issuer, claims.Subject, p.ID)
	if cay.KindOf(err) == cay.Conflict { // an address that changed hands
		err = errRefused("the login provider has another account of the address %s than before", email)
	}
	return p, err
}

// order is how much roles may.
var order = []cay.Role{cay.Viewer, cay.Developer, cay.TeamAdmin, cay.Owner}

// wanted are the roles that rules give, the highest in each team.
func (l *Logins) wanted(ctx context.Context, email string, groups []string) (map[cay.TeamID]cay.Role, error) {
	out := map[cay.TeamID]cay.Role{}
	for _, r := range l.cfg.Rules {
		if !r.For(email, groups) {
			continue
		}
		t, err := l.cfg.Store.TeamByName(ctx, r.Team)
		switch {
		case cay.KindOf(err) == cay.NotFound:
			l.cfg.Log.Warn("a rule of logins names a team that is not there", "team", r.Team)
		case err != nil:
			return nil, err
		case slices.Index(order, r.Role) > slices.Index(order, out[t.ID]):
			out[t.ID] = r.Role
		}
	}
	return out, nil
}

// align has a person be what rules want in teams. Roles that were given by hand
// stay as they are. It returns the teams in which something changed.
func align(ctx context.Context, tx store.Store, who cay.Caller, email string, wanted map[cay.TeamID]cay.Role) ([]cay.TeamID, error) {
	before, err := tx.LoginTeams(ctx, who.Person)
	if err != nil {
		return nil, err
	}
	list, err := tx.Memberships(ctx, who.Person)
	if err != nil {
		return nil, err
	}
	now := map[cay.TeamID]cay.Role{}
	for _, m := range list {
		now[m.Team] = m.Role
	}
	var changed, ruled []cay.TeamID
	for team := range wanted {
		if now[team] != "" && !slices.Contains(before, team) {
			continue // by hand
		}
		ruled = append(ruled, team)
		if now[team] == wanted[team] {
			continue
		}
		changed = append(changed, team)
		if err := give(ctx, tx, who, team, email, now[team], wanted[team]); err != nil {
			return nil, err
		}
	}
	for _, team := range before {
		if wanted[team] != "" || now[team] == "" {
			continue
		}
		changed = append(changed, team)
		if err := tx.RemoveMember(ctx, team, who.Person); err != nil {
			return nil, err
		}
		if err := tell(ctx, tx, who, team, cay.MemberRemoved, "person", string(who.Person)); err != nil {
			return nil, err
		}
	}
	return changed, tx.SetLoginTeams(ctx, who.Person, ruled)
}

// give gives a person a role in a team, the first or another one.
func give(ctx context.Context, tx store.Store, who cay.Caller, team cay.TeamID, email string, before, role cay.Role) error {
	if before == "" {
		if err := tx.AddMember(ctx, cay.Member{Team: team, Person: who.Person, Role: role, AddedAt: ledger.Now()}); err != nil {
			return err
		}
		return tell(ctx, tx, who, team, cay.MemberAdded, "person", string(who.Person), "email", email, "role", string(role))
	}
	if err := tx.SetRole(ctx, team, who.Person, role); err != nil {
		return err
	}
	return tell(ctx, tx, who, team, cay.MemberChanged, "person", string(who.Person), "role", string(role), "before", string(before))
}

func tell(ctx context.Context, tx store.Store, who cay.Caller, team cay.TeamID, what cay.EventType, data ...string) error {
	return tx.AddEvents(ctx, ledger.NewEvent(who, cay.Sandbox{Team: team}, what, cay.ReasonAsked, data...))
}
