package accounts

import (
	"context"
	"maps"
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
	// maxKeys bounds a team's keys: E2B's list of them has no pages.
	maxKeys      = 10_000
	maxName      = 128
	maxTemplates = 100 // of a key's list
)

// NewKey says what a key is to be.
type NewKey struct {
	Name string
	// Scopes are names of scopes and roles; none means those of its maker.
	Scopes    []string
	ExpiresAt time.Time // zero for never, or for the end of the key that makes it
	Bounds    cay.KeyBounds

	// Exchange is what the key goes back to: of keys that are made for a token.
	Exchange string

	person cay.PersonID // whom the key goes back to
}

// Keys lists a team's keys, oldest first.
func (a *Accounts) Keys(ctx context.Context, who cay.Caller) ([]cay.APIKey, error) {
	if err := who.May(cay.ReadKeys); err != nil {
		return nil, err
	}
	return a.store.Keys(ctx, who.Team)
}

// Key finds a team's key.
func (a *Accounts) Key(ctx context.Context, who cay.Caller, id cay.KeyID) (cay.APIKey, error) {
	if err := who.May(cay.ReadKeys); err != nil {
		return cay.APIKey{}, err
	}
	return a.store.Key(ctx, who.Team, id)
}

// CreateKey makes a key, which may do no more than its maker, and not for
// longer. It returns the key itself, which can be shown now and never again.
func (a *Accounts) CreateKey(ctx context.Context, who cay.Caller, k NewKey) (key string, record cay.APIKey, err error) {
	if err := who.May(cay.WriteKeys); err != nil {
		return "", record, err
	}
	if k.Name, err = goodName(k.Name); err != nil {
		return "", record, err
	}
	if err := k.within(ctx, a, who); err != nil {
		return "", record, err
	}
	record = cay.APIKey{
		Team: who.Team, Name: k.Name, CreatedBy: maker(who), Person: k.person, Exchange: k.Exchange, Grant: k.Scopes, Bounds: k.Bounds,
		ExpiresAt: k.ExpiresAt.UTC().Truncate(time.Millisecond),
	}
	if k.ExpiresAt.IsZero() {
		record.ExpiresAt = time.Time{}
	}
	key = auth.NewKey(&record)
	e := ledger.NewEvent(who, of(who.Team), cay.KeyCreated, cay.ReasonAsked, "key", string(record.ID), "name", record.Name,
		"scopes", strings.Join(record.Grant, " "), "expiresAt", stamp(record.ExpiresAt))
	err = a.change(ctx, e, func(tx store.Store) error {
		n, err := tx.CountTeam(ctx, who.Team)
		if err == nil && n.Keys >= maxKeys {
			err = cay.Errorf(cay.Exhausted, "the team has the %d keys that it may have", maxKeys).
				WithCode(cay.CodeTeamLimit).WithHint("remove some, or give keys an expiry")
		}
		if err == nil {
			err = noBudgetOf(ctx, tx, who)
		}
		if err != nil {
			return err
		}
		return tx.AddKey(ctx, record)
	})
	return key, record, err
}

// noBudgetOf refuses a key that a budget bounds: what its new key used would not
// count to that budget.
func noBudgetOf(ctx context.Context, tx store.Store, who cay.Caller) error {
	if who.Key == "" {
		return nil
	}
	all, err := tx.Budgets(ctx, who.Team)
	if slices.ContainsFunc(all, func(b cay.Budget) bool { return b.Key == who.Key }) {
		err = cay.Errorf(cay.Denied, "this key has a budget, which a key that it makes would escape").WithCode(cay.CodeBounds).
			WithHint("make keys with another key of the team")
	}
	return err
}

// maker is recorded as the creator of what a caller makes.
func maker(who cay.Caller) string {
	if who.Key != "" {
		return string(who.Key)
	}
	return string(who.Person)
}

func stamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return ledger.Stamp(t)
}

// goodName is a name that people can read in a list.
func goodName(name string) (string, error) {
	name = strings.TrimSpace(name)
	if name == "" || len(name) > maxName || strings.ContainsFunc(name, unicode.IsControl) {
		return "", cay.Errorf(cay.Invalid, "name: must be 1 to %d printable characters", maxName)
	}
	return name, nil
}

// within keeps a new key to what its maker may, and fills in what was left out.
func (k *NewKey) within(ctx context.Context, a *Accounts, who cay.Caller) error {
	if err := k.check(); err != nil {
		return err
	}
	asked, err := cay.ScopesOf(k.Scopes)
	if err != nil {
		return err
	}
	switch {
	case asked&^who.Scopes != 0:
		return cay.Errorf(cay.Denied, "scopes: a key may do no more than its maker, who lacks %s", asked&^who.Scopes).
			WithCode(cay.CodeScope).WithHint("`admin` is the scope for all teams of this server; the role of that name in one team is `owner` for a key")
	case len(k.Scopes) == 0 && who.Scopes&cay.TeamScopes != cay.TeamScopes:
		k.Scopes = who.Scopes.Names()
	}
	if k.person = who.Person; who.Key == "" {
		return nil
	}
	own, err := a.store.Key(ctx, "", who.Key)
	if err != nil {
		return err
	}
	k.person, k.Exchange = own.Person, own.Exchange
	return k.withinKey(own)
}

// withinKey keeps a key to the end and the bounds of the one that makes it.
func (k *NewKey) withinKey(own cay.APIKey) error {
	if k.ExpiresAt.IsZero() {
		k.ExpiresAt = own.ExpiresAt
	}
	if !own.ExpiresAt.IsZero() && k.ExpiresAt.After(own.ExpiresAt) {
		return cay.Errorf(cay.Denied, "expiresAt: the key that makes it expires at %s already", own.ExpiresAt.Format(time.RFC3339))
	}
	if len(own.Bounds.Templates) > 0 && len(k.Bounds.Templates) == 0 {
		k.Bounds.Templates = own.Bounds.Templates
	}
	for _, name := range k.Bounds.Templates {
		if len(own.Bounds.Templates) > 0 && !slices.Contains(own.Bounds.Templates, name) {
			return cay.Errorf(cay.Denied, "templates: the key that makes it may not use %.80q itself", name).WithCode(cay.CodeBounds)
		}
	}
	for name, value := range own.Bounds.Metadata {
		if given, ok := k.Bounds.Metadata[name]; ok && given != value {
			return cay.Errorf(cay.Denied, "metadata: the key that makes it must have %.80q be %.80q", name, value).WithCode(cay.CodeBounds)
		}
		k.Bounds.Metadata = maps.Clone(k.Bounds.Metadata)
		if k.Bounds.Metadata == nil {
			k.Bounds.Metadata = map[string]string{}
		}
		k.Bounds.Metadata[name] = value
	}
	return nil
}

// check refuses what no key can be.
func (k *NewKey) check() error {
	if len(k.Bounds.Templates) > maxTemplates {
		return cay.Errorf(cay.Invalid, "templates: must be at most %d", maxTemplates)
	}
	for _, name := range k.Bounds.Templates {
		if _, _, tag, ok := ledger.Reference(name); !ok || tag != "" || len(name) > maxName {
			return cay.Errorf(cay.Invalid, "templates: %.80q is no id and no name of a template", name).WithHint("without a tag")
		}
	}
	if err := cay.CheckMetadata(k.Bounds.Metadata); err != nil {
		return err
	}
	if !k.ExpiresAt.IsZero() && !k.ExpiresAt.After(time.Now()) {
		return cay.Errorf(cay.Invalid, "expiresAt: %s is not ahead; this server's time is %s", k.ExpiresAt.UTC().Format(time.RFC3339), time.Now().UTC().Format(time.RFC3339))
	}
	return nil
}

// KeyChange has the fields of a key that change; a nil field stays.
type KeyChange struct {
	Name      *string
	ExpiresAt *time.Time // zero for never
}

// UpdateKey changes a key's name or its end. Another end breaks what the key
// holds open: it is opened again with the new one.
func (a *Accounts) UpdateKey(ctx context.Context, who cay.Caller, id cay.KeyID, c KeyChange) (cay.APIKey, error) {
	if err := who.May(cay.WriteKeys); err != nil {
		return cay.APIKey{}, err
	}
	k, err := a.store.Key(ctx, who.Team, id)
	if err != nil {
		return k, err
	}
	if c.Name != nil {
		if k.Name, err = goodName(*c.Name); err != nil {
			return k, err
		}
	}
	if c.ExpiresAt != nil {
		if err := a.mayLast(ctx, who, k, *c.ExpiresAt); err != nil {
			return k, err
		}
		k.ExpiresAt = c.ExpiresAt.UTC().Truncate(time.Millisecond)
		if c.ExpiresAt.IsZero() {
			k.ExpiresAt = time.Time{}
		}
	}
	e := ledger.NewEvent(who, of(who.Team), cay.KeyChanged, cay.ReasonAsked, "key", string(id), "name", k.Name, "expiresAt", stamp(k.ExpiresAt))
	if err := a.change(ctx, e, func(tx store.Store) error { return tx.UpdateKey(ctx, k) }); err != nil {
		return k, err
	}
	if c.ExpiresAt != nil {
		a.auth.EndKey(id)
	}
	return k, nil
}

// mayLast refuses an end of a key that its changer could not give a new one of
// the same powers.
func (a *Accounts) mayLast(ctx context.Context, who cay.Caller, k cay.APIKey, until time.Time) error {
	same := NewKey{ExpiresAt: until, Scopes: k.Caller().Scopes.Names(), Bounds: k.Bounds}
	if err := same.within(ctx, a, who); err != nil {
		return err
	}
	if !until.Equal(same.ExpiresAt) {
		return cay.Errorf(cay.Denied, "expiresAt: the key that changes it expires at %s itself", same.ExpiresAt.Format(time.RFC3339))
	}
	return nil
}

// RemoveKey removes a key: it opens nothing from now on, and what it holds open
// ends.
func (a *Accounts) RemoveKey(ctx context.Context, who cay.Caller, id cay.KeyID) error {
	if err := who.May(cay.WriteKeys); err != nil {
		return err
	}
	k, err := a.store.Key(ctx, who.Team, id)
	if err != nil {
		return err
	}
	e := ledger.NewEvent(who, of(who.Team), cay.KeyRemoved, cay.ReasonAsked, "key", string(id), "name", k.Name)
	if err := a.change(ctx, e, func(tx store.Store) error { return tx.RemoveKey(ctx, who.Team, id) }); err != nil {
		return err
	}
	a.auth.EndKey(id)
	return nil
}
