package cay

import (
	"maps"
	"slices"
	"strings"
)

// Caller is the party that asks for something of a team: an API key, a person,
// or a part of this server that works for the team. Every use case takes it as
// a parameter.
type Caller struct {
	Team   TeamID
	Key    KeyID    // empty for a person, and when a part of the server asks
	Person PersonID // empty for a key, and when a part of the server asks
	Name   string   // of the key or the person, for records
	// Session is the person's, where it is a session that the request carries.
	Session SessionID
	Scopes  Scopes
	Behind  Origins    // of a key: the person and the exchange that it goes back to
	Bounds  *KeyBounds // what keeps a key besides its scopes; nil for nothing
	From    *Origin    // where the request came from; nil when a part of the server asks
}

// Origins are the caller as a party.
func (c Caller) Origins() Origins {
	if c.Key == "" {
		return Origins{Person: c.Person}
	}
	return Origins{Key: c.Key, Person: c.Behind.Person, Exchange: c.Behind.Exchange}
}

// Origin is where a request came from.
type Origin struct {
	Request string // the request's id, as logs and answers have it
	Address string // the client's, without a port
	Agent   string // User-Agent, shortened

	told []string // actions that the audit log has of the request
}

// KeyBounds keep a key to a part of what its scopes allow.
type KeyBounds struct {
	// Templates are the only ones that sandboxes are made of, by id or name;
	// none means any.
	Templates []string `json:"templates,omitempty"`
	// Metadata are entries that every sandbox of the key has: a create gets
	// them, and may not say otherwise.
	Metadata map[string]string `json:"metadata,omitempty"`
}

// Scopes are what a caller may do.
type Scopes uint64

// The scopes. Their bits are of this process only: records have their names.
const (
	ReadSandboxes  Scopes = 1 << iota // list and read them, their events, logs, checkpoints and metrics
	WriteSandboxes                    // create, change and end them
	ExecSandboxes                     // reach what is inside: their tokens, their ports by key, SSH
	ReadTemplates                     // list and read templates, builds and snapshots
	WriteTemplates                    // build, name, export and remove them
	ReadSecrets                       // list them; no scope reads a value
	WriteSecrets
	ReadVolumes // list volumes and read what is in them
	WriteVolumes
	ReadKeys  // list the team's keys and members
	WriteKeys // make, change and remove them
	ReadBilling
	WriteBilling
	ReadWebhooks
	WriteWebhooks
	ReadAudit
	DecideApprovals
	Admin // all teams of this installation
	lastScope
)

// TeamScopes allow everything in a team; AllScopes also what concerns other
// teams.
const (
	AllScopes  = lastScope - 1
	TeamScopes = AllScopes &^ Admin
)

var scopeNames = []string{
	"sandboxes:read", "sandboxes:write", "sandboxes:exec", "templates:read", "templates:write",
	"secrets:read", "secrets:write", "volumes:read", "volumes:write", "keys:read", "keys:write",
	"billing:read", "billing:write", "webhooks:read", "webhooks:write", "audit:read", "approvals:decide", "admin",
}

// Names lists the scopes by name.
func (s Scopes) Names() []string {
	var names []string
	for i, name := range scopeNames {
		if s&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return names
}

// String lists the scopes by name, in one line.
func (s Scopes) String() string { return strings.Join(s.Names(), ", ") }

// ScopesOf returns the scopes of names, which may be names of roles as well.
func ScopesOf(names []string) (Scopes, error) {
	var sum Scopes
	for _, name := range names {
		if i := slices.Index(scopeNames, name); i >= 0 {
			sum |= 1 << i
		} else if scopes := Role(name).Scopes(); scopes != 0 {
			sum |= scopes
		} else {
			return 0, Errorf(Invalid, "scopes: %.40q is no scope and no role", name).
				WithHint("scopes are %s; roles are viewer, developer, admin and owner", AllScopes)
		}
	}
	return sum, nil
}

// Role is what a member is in a team: a named set of scopes.
type Role string

// The roles. Each may do what those before it may.
const (
	Viewer    Role = "viewer"
	Developer Role = "developer"
	TeamAdmin Role = "admin"
	Owner     Role = "owner" // the only one to change owners and to remove the team
)

// Scopes returns what a role may do; 0 when there is no such role.
func (r Role) Scopes() Scopes {
	const viewer = ReadSandboxes | ReadTemplates | ReadSecrets | ReadVolumes | ReadBilling | ReadWebhooks
	const developer = viewer | WriteSandboxes | ExecSandboxes | WriteTemplates | WriteSecrets | WriteVolumes | DecideApprovals
	switch r {
	case Viewer:
		return viewer
	case Developer:
		return developer
	case TeamAdmin, Owner:
		return TeamScopes
	}
	return 0
}

// ForTeam is the caller for what this server does by itself for a team: at a
// time limit, for traffic, at a start.
func ForTeam(team TeamID) Caller { return Caller{Team: team, Scopes: AllScopes} }

// Marked returns metadata of a new sandbox with the entries that the caller's key
// requires. Metadata that says otherwise is refused.
func (c Caller) Marked(metadata map[string]string) (map[string]string, error) {
	if c.Bounds == nil || len(c.Bounds.Metadata) == 0 {
		return metadata, nil
	}
	out := make(map[string]string, len(metadata)+len(c.Bounds.Metadata))
	maps.Copy(out, metadata)
	for name, value := range c.Bounds.Metadata {
		if given, ok := out[name]; ok && given != value {
			return nil, Errorf(Denied, "metadata: sandboxes of this key have %.80q as %.80q", name, value).WithCode(CodeBounds)
		}
		out[name] = value
	}
	return out, nil
}

// May refuses what the caller's scopes do not allow.
func (c Caller) May(needed Scopes) error {
	if missing := needed &^ c.Scopes; missing != 0 {
		whose := "this key"
		if c.Person != "" {
			whose = "your role"
		}
		return Errorf(Denied, "%s may not do that: it lacks %s", whose, missing).WithCode(CodeScope).
			WithHint("use a key that has the scope")
	}
	return nil
}
