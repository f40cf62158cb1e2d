package cay

import (
	"net/mail"
	"strings"
	"time"
)

// Person is a human being who may be a member of teams. How people log in is
// attached to it elsewhere.
type Person struct {
	ID         PersonID
	Email      string // in lower case; no two people have the same
	Name       string // for people; may be empty
	CreatedAt  time.Time
	DisabledAt time.Time // zero for one who is not: all that such a one has opens nothing
}

// Member is a person in a team.
type Member struct {
	Team    TeamID
	Person  PersonID
	Role    Role
	AddedAt time.Time
}

// AccessToken is the record of a token that stands for a person. The token is
// shown once and never stored; Hash is SHA-256 of it.
type AccessToken struct {
	ID        string // a UUID
	Person    PersonID
	Name      string
	Hash      [32]byte
	Mask      string // the first and last characters, for people
	CreatedAt time.Time
}

// CleanEmail brings an address to the form that it is recorded in.
func CleanEmail(text string) (string, error) {
	text = strings.ToLower(strings.TrimSpace(text))
	a, err := mail.ParseAddress(text)
	if err != nil || a.Address != text || len(text) > 254 || strings.ContainsAny(text, " \"\\") {
		return "", Errorf(Invalid, "email: %.80q is no address", text).WithHint("as ann@example.com")
	}
	return text, nil
}
