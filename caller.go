package cay

import "strings"

// Caller is the party that asks for something: a team, by one of its API keys
// or by a part of this server that works for the team. Every use case takes it
// as a parameter.
type Caller struct {
	Team   TeamID
	Key    KeyID // empty when a part of the server asks
	Scopes Scopes
}

// Scopes are what a caller may do.
type Scopes uint32

// The scopes.
const (
	ReadSandboxes  Scopes = 1 << iota // list and read them, their events, logs, checkpoints and metrics
	WriteSandboxes                    // create, change and end them
	ReadTemplates                     // list and read templates, builds and snapshots
	WriteTemplates                    // build, name, export and remove them
	ReadSecrets                       // list them; no scope reads a value
	WriteSecrets
	lastScope
)

// AllScopes allow everything.
const AllScopes = lastScope - 1

var scopeNames = []string{
	"sandboxes:read", "sandboxes:write", "templates:read", "templates:write", "secrets:read", "secrets:write",
}

// String lists the scopes by name.
func (s Scopes) String() string {
	var names []string
	for i, name := range scopeNames {
		if s&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return strings.Join(names, ", ")
}

// ForTeam is the caller for what this server does by itself for a team: at a
// time limit, for traffic, at a start.
func ForTeam(team TeamID) Caller { return Caller{Team: team, Scopes: AllScopes} }

// May refuses what the caller's scopes do not allow.
func (c Caller) May(needed Scopes) error {
	if missing := needed &^ c.Scopes; missing != 0 {
		return Errorf(Denied, "this key may not do that: it lacks %s", missing).WithCode(CodeScope).
			WithHint("use a key that has the scope")
	}
	return nil
}
