// Package auth identifies callers: by API keys, which are shown once and kept as
// hashes, and by the tokens of sandboxes, which are derived and kept nowhere.
package auth

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"strings"
	"time"

	"github.com/cay-run/cay"
)

const (
	keyPrefix = "e2b_" // older SDKs refuse every other
	keyBytes  = 20
)

// Store is what this package needs of the records.
type Store interface {
	AddTeam(ctx context.Context, team cay.Team) error
	Teams(ctx context.Context) ([]cay.Team, error)
	AddKey(ctx context.Context, key cay.APIKey) error
	KeyByHash(ctx context.Context, hash [32]byte) (cay.APIKey, error)
	Keys(ctx context.Context, team cay.TeamID) ([]cay.APIKey, error)
	RenameKey(ctx context.Context, team cay.TeamID, id cay.KeyID, name string) error
	RemoveKey(ctx context.Context, team cay.TeamID, id cay.KeyID) error
	AddSSHKey(ctx context.Context, key cay.SSHKey) error
	SSHKeys(ctx context.Context, team cay.TeamID) ([]cay.SSHKey, error)
	SSHKeyOpens(ctx context.Context, team cay.TeamID, fingerprint string) (bool, error)
	RemoveSSHKey(ctx context.Context, team cay.TeamID, id cay.SSHKeyID) error
}

// DefaultTeam is the name of the team that a first start makes.
const DefaultTeam = "default"

// Issue makes a key for a team and returns it. It can be shown now and never
// again.
func Issue(ctx context.Context, store Store, team cay.TeamID, name string) (string, cay.APIKey, error) {
	var b [keyBytes]byte
	rand.Read(b[:]) // never fails: it ends the program instead
	key := keyPrefix + hex.EncodeToString(b[:])
	record := cay.APIKey{
		ID: cay.NewKeyID(), Team: team, Name: name, Hash: sha256.Sum256([]byte(key)),
		Mask:      key[:len(keyPrefix)+2] + "…" + key[len(key)-4:],
		CreatedAt: time.Now().UTC().Truncate(time.Millisecond),
	}
	if err := store.AddKey(ctx, record); err != nil {
		return "", cay.APIKey{}, err
	}
	return key, record, nil
}

// IsKey reports whether a text has the form of an API key.
func IsKey(s string) bool {
	digits, ok := strings.CutPrefix(s, keyPrefix)
	if !ok || len(digits) != hex.EncodedLen(keyBytes) {
		return false
	}
	_, err := hex.DecodeString(digits)
	return err == nil
}

// FirstStart makes the default team and a key of it when there is no team yet,
// and returns the key. Otherwise it returns the oldest team and no key.
func FirstStart(ctx context.Context, store Store) (team cay.Team, key string, err error) {
	teams, err := store.Teams(ctx)
	if err != nil {
		return cay.Team{}, "", err
	}
	if len(teams) > 0 {
		return teams[0], "", nil
	}
	team = cay.Team{
		ID: cay.NewTeamID(), Name: DefaultTeam,
		CreatedAt: time.Now().UTC().Truncate(time.Millisecond),
	}
	if err := store.AddTeam(ctx, team); err != nil {
		return cay.Team{}, "", err
	}
	key, _, err = Issue(ctx, store, team.ID, "first")
	return team, key, err
}

// Auth checks keys.
type Auth struct {
	store Store
	uses  uses
}

// New returns an Auth over the records.
func New(store Store) *Auth { return &Auth{store: store} }

// errKey is the one answer to every wrong key, whatever is wrong with it.
var errKey = (&cay.Error{Kind: cay.Unauthenticated, Msg: "the API key is missing or wrong"}).
	WithHint("send a key in X-API-KEY; `cay env` makes one")

// Verify returns the record of a key. Every wrong key gets the same error.
func (a *Auth) Verify(ctx context.Context, key string) (cay.APIKey, error) {
	if !wellFormed(key) {
		return cay.APIKey{}, errKey
	}
	// The look-up's time may depend on the hash, which says nothing about a
	// key: no caller can choose keys by their hashes.
	hash := sha256.Sum256([]byte(key))
	record, err := a.store.KeyByHash(ctx, hash)
	switch {
	case cay.KindOf(err) == cay.NotFound:
		return cay.APIKey{}, errKey
	case err != nil:
		return cay.APIKey{}, err
	case subtle.ConstantTimeCompare(record.Hash[:], hash[:]) != 1:
		return cay.APIKey{}, errKey
	}
	return record, nil
}

func wellFormed(key string) bool {
	if len(key) != len(keyPrefix)+2*keyBytes || key[:len(keyPrefix)] != keyPrefix {
		return false
	}
	_, err := hex.DecodeString(key[len(keyPrefix):])
	return err == nil
}

// Issue makes a key for a team. It can be shown now and never again.
func (a *Auth) Issue(ctx context.Context, team cay.TeamID, name string) (string, cay.APIKey, error) {
	return Issue(ctx, a.store, team, name)
}

// Keys lists a team's keys, oldest first.
func (a *Auth) Keys(ctx context.Context, team cay.TeamID) ([]cay.APIKey, error) {
	return a.store.Keys(ctx, team)
}

// Rename gives a team's key another name.
func (a *Auth) Rename(ctx context.Context, team cay.TeamID, id cay.KeyID, name string) error {
	return a.store.RenameKey(ctx, team, id, name)
}

// Remove removes a team's key: it opens nothing from now on, and what it opened
// with While is ended.
func (a *Auth) Remove(ctx context.Context, team cay.TeamID, id cay.KeyID) error {
	if err := a.store.RemoveKey(ctx, team, id); err != nil {
		return err
	}
	a.uses.end(id)
	return nil
}
