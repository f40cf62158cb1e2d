package cay

import "time"

// Team owns everything that has a row.
type Team struct {
	ID         TeamID
	Name       string
	CreatedAt  time.Time
	DisabledAt time.Time // zero for one that is not: a disabled team's credentials open nothing
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
	CreatedBy string    // a person's or a key's id; empty for the server itself
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
	who := Caller{Team: k.Team, Key: k.ID, Scopes: TeamScopes}
	if len(k.Grant) > 0 {
		who.Scopes = 0
		for _, name := range k.Grant {
			if scopes, err := ScopesOf([]string{name}); err == nil {
				who.Scopes |= scopes
			}
		}
	}
	if len(k.Bounds.Templates) > 0 || len(k.Bounds.Metadata) > 0 {
		who.Bounds = &k.Bounds
	}
	return who
}

// Expired reports whether the key opens nothing any more.
func (k APIKey) Expired(now time.Time) bool { return !k.ExpiresAt.IsZero() && !now.Before(k.ExpiresAt) }
