package cay

import (
	"net/mail"
	"strings"
	"time"
	"unicode"
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

// CleanEmail brings an address to the form that it is recorded in. It has ASCII
// alone: beyond that, letters of two addresses may look alike, or become alike in
// lower case as the Kelvin sign and k do, and open another person's account.
func CleanEmail(text string) (string, error) {
	text = strings.TrimSpace(text)
	if strings.ContainsFunc(text, func(r rune) bool { return r > unicode.MaxASCII }) {
		return "", Errorf(Invalid, "email: %.80q has characters beyond ASCII", text).WithHint("as ann@example.com, a domain as xn--…")
	}
	text = strings.ToLower(text)
	a, err := mail.ParseAddress(text)
	if err != nil || a.Address != text || len(text) > 254 || strings.ContainsAny(text, " \"\\") {
		return "", Errorf(Invalid, "email: %.80q is no address", text).WithHint("as ann@example.com")
	}
	return text, nil
}
