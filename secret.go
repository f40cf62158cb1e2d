package cay

import (
	"regexp"
	"time"
)

// SecretID names a secret.
type SecretID string

// SecretPrefix begins the id of every secret. A name may begin with it too: a
// reference means a secret of that id first, and no name is taken that is an id.
const SecretPrefix = "sec_"

// NewSecretID returns a fresh id: "sec_" and 20 characters.
func NewSecretID() SecretID { return SecretID(SecretPrefix + random(idLength)) }

// Secret is a value that sandboxes can use and not see. Its record tells
// everything but the value.
type Secret struct {
	ID        SecretID
	Team      TeamID
	Name      string // lower-case, unique in the team
	Version   int64  // counts the values it has had, from 1
	Metadata  map[string]string
	CreatedAt time.Time
	UpdatedAt time.Time
	Sealed    string // the value, encrypted
}

// The bounds of a secret.
const (
	MaxSecretValue     = 64 << 10
	maxSecretEntries   = 32
	maxSecretKey       = 128
	maxSecretMetadata  = 1024
	maxSecretMetadatas = 8192
)

var secretName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,128}$`)

// CheckSecretName says what is wrong with a secret's name.
func CheckSecretName(name string) error {
	if !secretName.MatchString(name) {
		return Errorf(Invalid, "name: %.140q is not 1 to 128 letters, digits, '_' and '-'", name)
	}
	return nil
}

// CheckSecretMetadata says what is wrong with a secret's metadata.
func CheckSecretMetadata(m map[string]string) error {
	total := 0
	for k, v := range m {
		total += len(k) + len(v)
		switch {
		case k == "" || len(k) > maxSecretKey:
			return Errorf(Invalid, "metadata: the key %.140q is not 1 to %d bytes long", k, maxSecretKey)
		case len(v) > maxSecretMetadata:
			return Errorf(Invalid, "metadata: the value of %q has more than %d bytes", k, maxSecretMetadata)
		}
	}
	switch {
	case len(m) > maxSecretEntries:
		return Errorf(Invalid, "metadata: has more than %d entries", maxSecretEntries)
	case total > maxSecretMetadatas:
		return Errorf(Invalid, "metadata: has more than %d bytes", maxSecretMetadatas)
	}
	return nil
}
