package accounts

import (
	"context"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/auth"
	"github.com/cay-run/cay/internal/control/ledger"
	"github.com/cay-run/cay/internal/store"
)

const (
	maxMembers = 1000 // of a team
	maxTokens  = 100  // of a person
)

// Membership is a member with the person's record.
type Membership struct {
	cay.Member
	Email, Name string
}

// Members lists a team's members, in the order of their coming.
func (a *Accounts) Members(ctx context.Context, who cay.Caller) ([]Membership, error) {
	if err := who.May(cay.ReadKeys); err != nil {
		return nil, err
	}
	list, err := a.store.Members(ctx, who.Team)
	if err != nil {
		return nil, err
	}
	out := make([]Membership, 0, len(list))
	for _, m := range list {
		p, err := a.store.Person(ctx, m.Person)
		if err != nil {
			return nil, err
		}
		out = append(out, Membership{m, p.Email, p.Name})
	}
	return out, nil
}

// AddMember has the person of an address be in the team. A person who was never
// named before gets a record.
func (a *Accounts) AddMember(ctx context.Context, who cay.Caller, email, name string, role cay.Role) (Membership, error) {
	if err := who.May(cay.WriteKeys); err != nil {
		return Membership{}, err
	}
	email, err := cay.CleanEmail(email)
	if err != nil {
		return Membership{}, err
	}
	if name = strings.TrimSpace(name); len(name) > maxName || strings.ContainsFunc(name, unicode.IsControl) {
		return Membership{}, cay.Errorf(cay.Invalid, "name: must be at most %d printable characters", maxName)
	}
	if err := a.mayGive(ctx, who, role); err != nil {
		return Membership{}, err
	}
	p := cay.Person{ID: cay.NewPersonID(), Email: email, Name: name, CreatedAt: ledger.Now()}
	m := cay.Member{Team: who.Team, Role: role, AddedAt: ledger.Now()}
	err = a.store.Tx(ctx, func(tx store.Store) error {
		known, err := tx.PersonByEmail(ctx, email)
		switch {
		case err == nil:
			p = known
		case cay.KindOf(err) == cay.NotFound:
			err = tx.AddPerson(ctx, p)
		}
		if err != nil {
			return err
		}
		m.Person = p.ID
		list, err := tx.Members(ctx, who.Team)
		if err != nil {
			return err
		}
		if len(list) >= maxMembers {
			return cay.Errorf(cay.Exhausted, "the team has the %d members that it may have", maxMembers).
				WithCode(cay.CodeTeamLimit).WithHint("remove one")
		}
		if err := tx.AddMember(ctx, m); err != nil {
			return err
		}
		return tx.AddEvents(ctx, ledger.NewEvent(who, of(who.Team), cay.MemberAdded, cay.ReasonAsked, "person", string(p.ID), "email", email, "role", string(role)))
	})
	if cay.KindOf(err) == cay.Conflict {
		err = cay.Wrap(cay.Conflict, err, "email: %s is in the team already", email).WithCode(cay.CodeNameTaken)
	}
	if err == nil {
		a.ledger.Wake(who.Team)
	}
	return Membership{m, p.Email, p.Name}, err
}

// SetRole gives a member another role. Connections that the person holds open in
// the team end, and are opened again with the new role.
func (a *Accounts) SetRole(ctx context.Context, who cay.Caller, person cay.PersonID, role cay.Role) error {
	if err := who.May(cay.WriteKeys); err != nil {
		return err
	}
	if err := a.mayGive(ctx, who, role); err != nil {
		return err
	}
	return a.changeMember(ctx, who, person, role, func(tx store.Store, m cay.Member) error {
		if err := tx.SetRole(ctx, who.Team, person, role); err != nil {
			return err
		}
		return tx.AddEvents(ctx, ledger.NewEvent(who, of(who.Team), cay.MemberChanged, cay.ReasonAsked, "person", string(person), "role", string(role), "before", string(m.Role)))
	})
}

// RemoveMember has a person be no member any more: what the person has opens
// nothing in the team, and what it holds open ends. Keys that the person made
// stay: they are the team's.
func (a *Accounts) RemoveMember(ctx context.Context, who cay.Caller, person cay.PersonID) error {
	if err := who.May(cay.WriteKeys); err != nil {
		return err
	}
	return a.changeMember(ctx, who, person, "", func(tx store.Store, _ cay.Member) error {
		if err := tx.RemoveMember(ctx, who.Team, person); err != nil {
			return err
		}
		return tx.AddEvents(ctx, ledger.NewEvent(who, of(who.Team), cay.MemberRemoved, cay.ReasonAsked, "person", string(person)))
	})
}

// changeMember does one change of a member, who has the role then, in a
// transaction that keeps an owner in the team.
func (a *Accounts) changeMember(ctx context.Context, who cay.Caller, person cay.PersonID, role cay.Role, f func(store.Store, cay.Member) error) error {
	err := a.store.Tx(ctx, func(tx store.Store) error {
		list, err := tx.Members(ctx, who.Team)
		if err != nil {
			return err
		}
		owners, found := 0, -1
		for i, m := range list {
			if m.Role == cay.Owner {
				owners++
			}
			if m.Person == person {
				found = i
			}
		}
		switch {
		case found < 0:
			return cay.Errorf(cay.NotFound, "member %.80q not found", string(person)).WithHint("`cay member list` shows the team's")
		case list[found].Role != cay.Owner || role == cay.Owner:
		case owners == 1:
			return cay.Errorf(cay.Conflict, "the team would have no owner").WithCode(cay.CodeLastOwner).
				WithHint("make another member an owner first")
		default:
			if err := a.ownersOnly(ctx, who); err != nil {
				return err
			}
		}
		return f(tx, list[found])
	})
	if err != nil {
		return err
	}
	a.ledger.Wake(who.Team)
	a.auth.EndPerson(person, who.Team)
	return nil
}

// mayGive refuses a role that the caller could not have given away.
func (a *Accounts) mayGive(ctx context.Context, who cay.Caller, role cay.Role) error {
	scopes := role.Scopes()
	switch {
	case scopes == 0:
		return cay.Errorf(cay.Invalid, "role: %.40q is none", string(role)).WithHint("roles are viewer, developer, admin and owner")
	case role == cay.Owner:
		return a.ownersOnly(ctx, who)
	case scopes&^who.Scopes != 0:
		return cay.Errorf(cay.Denied, "role: a member may do no more than who adds it, who lacks %s", scopes&^who.Scopes).WithCode(cay.CodeScope)
	}
	return nil
}

// ownersOnly refuses callers that are neither an owner of the team nor the
// operator.
func (a *Accounts) ownersOnly(ctx context.Context, who cay.Caller) error {
	if who.Scopes&cay.Admin != 0 {
		return nil
	}
	if who.Person != "" {
		in, err := a.store.Memberships(ctx, who.Person)
		if err != nil {
			return err
		}
		for _, m := range in {
			if m.Team == who.Team && m.Role == cay.Owner {
				return nil
			}
		}
	}
	return cay.Errorf(cay.Denied, "owners are changed by an owner of the team").WithCode(cay.CodeOwnersOnly)
}

// TeamsOf lists the teams of the person who asks, or the one of a key, or all
// for an operator who names none.
func (a *Accounts) TeamsOf(ctx context.Context, who cay.Caller) ([]cay.Team, error) {
	if who.Person == "" && who.Team == "" {
		return a.Teams(ctx, who)
	}
	if who.Person == "" {
		t, err := a.store.Team(ctx, who.Team)
		return []cay.Team{t}, err
	}
	in, err := a.store.Memberships(ctx, who.Person)
	var out []cay.Team
	for _, m := range in {
		t, bad := a.store.Team(ctx, m.Team)
		if bad != nil {
			return nil, bad
		}
		out = append(out, t)
	}
	return out, err
}

// errNoPerson refuses a key where a person is meant.
var errNoPerson = cay.Errorf(cay.Denied, "access tokens are of people, and this credential is of none").WithCode(cay.CodePeopleOnly).
	WithHint("log in, or have the operator make the first one: cay member add --token")

// CreateAccessToken makes a token that stands for the person who asks. It can be
// shown now and never again.
func (a *Accounts) CreateAccessToken(ctx context.Context, who cay.Caller, name string) (string, cay.AccessToken, error) {
	if who.Person == "" {
		return "", cay.AccessToken{}, errNoPerson
	}
	return a.newToken(ctx, who, who.Person, name)
}

// CreateTokenFor makes a token that stands for another person.
func (a *Accounts) CreateTokenFor(ctx context.Context, who cay.Caller, person cay.PersonID, name string) (string, cay.AccessToken, error) {
	if err := who.May(cay.Admin); err != nil {
		return "", cay.AccessToken{}, err
	}
	if _, err := a.store.Person(ctx, person); err != nil {
		return "", cay.AccessToken{}, err
	}
	return a.newToken(ctx, who, person, name)
}

func (a *Accounts) newToken(ctx context.Context, who cay.Caller, person cay.PersonID, name string) (string, cay.AccessToken, error) {
	name, err := goodName(name)
	if err != nil {
		return "", cay.AccessToken{}, err
	}
	record := cay.AccessToken{Person: person, Name: name}
	token := auth.NewAccessToken(&record)
	err = a.ledger.Do(ctx, who, "access_token.created", record.ID, func(tx store.Store) error {
		list, err := tx.AccessTokens(ctx, person)
		if err == nil && len(list) >= maxTokens {
			err = cay.Errorf(cay.Exhausted, "there are the %d access tokens that a person may have", maxTokens).
				WithCode(cay.CodeTeamLimit).WithHint("remove one")
		}
		if err != nil {
			return err
		}
		return tx.AddAccessToken(ctx, record)
	}, "person", string(person), "name", name)
	return token, record, err
}

// AccessTokens lists the tokens of the person who asks.
func (a *Accounts) AccessTokens(ctx context.Context, who cay.Caller) ([]cay.AccessToken, error) {
	if who.Person == "" {
		return nil, errNoPerson
	}
	return a.store.AccessTokens(ctx, who.Person)
}

// RemoveAccessToken removes a token of the person who asks. Connections that the
// person holds open end, and are opened again with the credentials left.
func (a *Accounts) RemoveAccessToken(ctx context.Context, who cay.Caller, id string) error {
	if who.Person == "" {
		return errNoPerson
	}
	err := a.ledger.Do(ctx, who, "access_token.removed", id, func(tx store.Store) error {
		return tx.RemoveAccessToken(ctx, who.Person, id)
	})
	if err != nil {
		return err
	}
	a.auth.EndPerson(who.Person, "")
	return nil
}

// People lists all people.
func (a *Accounts) People(ctx context.Context, who cay.Caller) ([]cay.Person, error) {
	if err := who.May(cay.Admin); err != nil {
		return nil, err
	}
	return a.store.People(ctx)
}

// DisablePerson has all that a person has open nothing, and the keys that go back
// to the person, or with off again what they did.
func (a *Accounts) DisablePerson(ctx context.Context, who cay.Caller, id cay.PersonID, off bool) (cay.Person, error) {
	if err := who.May(cay.Admin); err != nil {
		return cay.Person{}, err
	}
	var p cay.Person
	var keys []cay.KeyID
	action := "person.disabled"
	if off {
		action = "person.enabled"
	}
	err := a.ledger.Do(ctx, who, action, string(id), func(tx store.Store) (err error) {
		if p, err = tx.Person(ctx, id); err != nil {
			return err
		}
		switch {
		case off:
			p.DisabledAt = time.Time{}
		case p.DisabledAt.IsZero():
			p.DisabledAt = ledger.Now()
		}
		if keys, err = tx.KeysOfPerson(ctx, id); err != nil {
			return err
		}
		return tx.UpdatePerson(ctx, p)
	})
	if err != nil || off {
		return p, err
	}
	a.auth.EndPerson(id, "")
	a.auth.EndUses(func(held cay.Caller) bool { return held.Key != "" && slices.Contains(keys, held.Key) })
	return p, nil
}

// Makers finds the people among the makers of keys, by their ids.
func (a *Accounts) Makers(ctx context.Context, keys []cay.APIKey) (map[string]cay.Person, error) {
	out, looked := map[string]cay.Person{}, map[string]bool{}
	for _, k := range keys {
		if k.CreatedBy == "" || looked[k.CreatedBy] {
			continue
		}
		looked[k.CreatedBy] = true
		p, err := a.store.Person(ctx, cay.PersonID(k.CreatedBy))
		if err != nil && cay.KindOf(err) != cay.NotFound { // that is a key
			return nil, err
		}
		if err == nil {
			out[k.CreatedBy] = p
		}
	}
	return out, nil
}
