package cay

import (
	"regexp"
	"time"
)

// Team owns everything that has a row.
type Team struct {
	ID         TeamID
	Name       string
	CreatedAt  time.Time
	DisabledAt time.Time // zero for one that is not: a disabled team's credentials open nothing
	// RemovedAt is when the team was removed. Its row stays for what refers to
	// it: usage, audit and events. Zero for a team that is there.
	RemovedAt time.Time
}

// Open returns an error for a team whose credentials open nothing.
func (t Team) Open() error {
	if t.DisabledAt.IsZero() && t.RemovedAt.IsZero() {
		return nil
	}
	return Errorf(Denied, "the team %q is disabled", t.Name).WithCode(CodeTeamDisabled).
		WithHint("ask the operator of this server to enable it: cay team enable %s", t.Name)
}

var teamName = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,62}$`)

// CheckTeamName refuses what cannot be a team's name: it stands before that of
// a template in references, so it has one spelling.
func CheckTeamName(name string) error {
	if !teamName.MatchString(name) || ValidUUID(name) {
		return Errorf(Invalid, "name: %.80q is no name for a team", name).
			WithHint("use 1 to 63 lower-case letters, digits, '.', '_' and '-', first a letter or a digit")
	}
	return nil
}

// APIKey is the record of a key. The key itself is shown once and never
// stored; Hash is SHA-256 of it.
type APIKey struct {
	ID        KeyID
	Team      TeamID
	Name      string
	Hash      [32]byte
	Mask      string // the first and last characters, for people
	CreatedAt time.Time
	CreatedBy string   // a person's or a key's id; empty for the server itself
	Person    PersonID // who made it, or the first of the keys that led to it; empty for none
	// Exchange is a digest of the issuer and the subject of the token that it was given
	// for, or the first of the keys that led to it; empty for none.
	Exchange  string
	LastUsed  time.Time // to the minute; zero for never
	ExpiresAt time.Time // zero for never
	// Grant are names of scopes and roles. None, as every key of before scopes
	// has it, means all that there is in the team.
	Grant  []string
	Bounds KeyBounds
}

// Caller is what a request with the key is made by. A name in the record that
// this release does not know grants nothing.
func (k APIKey) Caller() Caller {
	who := Caller{Team: k.Team, Key: k.ID, Name: k.Name, Scopes: TeamScopes, Behind: Origins{Person: k.Person, Exchange: k.Exchange}}
	if len(k.Grant) > 0 {
		who.Scopes = 0
		for _, name := range k.Grant {
			if scopes, err := ScopesOf([]string{name}); err == nil {
				who.Scopes |= scopes
			}
		}
	}
	if who.Scopes&Admin != 0 { // of all teams, so of this one
		who.Scopes = AllScopes
	}
	if len(k.Bounds.Templates) > 0 || len(k.Bounds.Metadata) > 0 {
		who.Bounds = &k.Bounds
	}
	return who
}

// Expired reports whether the key opens nothing any more.
func (k APIKey) Expired(now time.Time) bool { return !k.ExpiresAt.IsZero() && !now.Before(k.ExpiresAt) }
