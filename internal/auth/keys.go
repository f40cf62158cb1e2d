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
	Team(ctx context.Context, id cay.TeamID) (cay.Team, error)
	TeamByName(ctx context.Context, name string) (cay.Team, error)
	AddKey(ctx context.Context, key cay.APIKey) error
	KeyByHash(ctx context.Context, hash [32]byte) (cay.APIKey, cay.Team, error)
	Key(ctx context.Context, team cay.TeamID, id cay.KeyID) (cay.APIKey, error)
	KeysUsed(ctx context.Context, at map[cay.KeyID]time.Time) error
	Person(ctx context.Context, id cay.PersonID) (cay.Person, error)
	Memberships(ctx context.Context, person cay.PersonID) ([]cay.Member, error)
	AccessTokenByHash(ctx context.Context, hash [32]byte) (cay.AccessToken, error)
	SessionByHash(ctx context.Context, hash [32]byte) (cay.Session, error)
	Session(ctx context.Context, id cay.SessionID) (cay.Session, error)
	UseSession(ctx context.Context, id cay.SessionID, now time.Time) error
	AddSSHKey(ctx context.Context, key cay.SSHKey, most int) error
	SSHKeys(ctx context.Context, team cay.TeamID) ([]cay.SSHKey, error)
	SSHKeyOpens(ctx context.Context, team cay.TeamID, fingerprint string) (bool, error)
	SSHKeyOf(ctx context.Context, team cay.TeamID, fingerprint string) (cay.SSHKey, error)
	RemoveSSHKey(ctx context.Context, team cay.TeamID, id cay.SSHKeyID) error
}

// DefaultTeam is the name of the team that a first start makes.
const DefaultTeam = "default"

// NewKey makes a key, and fills in what a record has of it. It can be shown now
// and never again.
func NewKey(record *cay.APIKey) (key string) {
	var b [keyBytes]byte
	rand.Read(b[:]) // never fails: it ends the program instead
	key = keyPrefix + hex.EncodeToString(b[:])
	record.ID, record.Hash = cay.NewKeyID(), sha256.Sum256([]byte(key))
	record.Mask = key[:len(keyPrefix)+2] + "…" + key[len(key)-4:]
	record.CreatedAt = time.Now().UTC().Truncate(time.Millisecond)
	return key
}

// Issue makes a key for a team that may do all that there is in it.
func Issue(ctx context.Context, store interface {
	AddKey(context.Context, cay.APIKey) error
}, team cay.TeamID, name string) (string, cay.APIKey, error) {
	record := cay.APIKey{Team: team, Name: name}
	key := NewKey(&record)
	if err := store.AddKey(ctx, record); err != nil {
		return "", cay.APIKey{}, err
	}
	return key, record, nil
}

// IsKey reports whether a text has the form of an API key.
func IsKey(s string) bool { return hasForm(s, keyPrefix, keyBytes) }

// hasForm reports whether a text is a prefix and so many bytes in hexadecimal.
func hasForm(s, prefix string, bytes int) bool {
	digits, ok := strings.CutPrefix(s, prefix)
	if !ok || len(digits) != hex.EncodedLen(bytes) {
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

// Auth checks what requests present.
type Auth struct {
	store Store
	admin [32]byte // hash of the operator's token; none hashes to zero
	uses  uses
	used  used

	tickets tickets
}

// New returns an Auth over the records.
func New(store Store) *Auth { return &Auth{store: store} }

// errKey is the one answer to every wrong key, whatever is wrong with it.
var errKey = (&cay.Error{Kind: cay.Unauthenticated, Msg: "the API key is missing or wrong"}).
	WithHint("send a key in X-API-KEY; `cay env` makes one")

// personOpen refuses a key that goes back to a person who is disabled.
func (a *Auth) personOpen(ctx context.Context, k cay.APIKey) error {
	if k.Person == "" {
		return nil
	}
	p, err := a.store.Person(ctx, k.Person)
	if err == nil && !p.DisabledAt.IsZero() {
		err = cay.Errorf(cay.Denied, "the API key %q goes back to a person who is disabled on this server", k.Name).WithCode(cay.CodeDisabled)
	}
	return err
}

// Verify returns the record of a key. Every wrong key gets the same error; the
// right key of a disabled team or person, or one that has expired, gets one with
// a code.
func (a *Auth) Verify(ctx context.Context, key string) (cay.APIKey, error) {
	if !IsKey(key) {
		return cay.APIKey{}, errKey
	}
	// The look-up's time may depend on the hash, which says nothing about a
	// key: no caller can choose keys by their hashes.
	hash := sha256.Sum256([]byte(key))
	record, team, err := a.store.KeyByHash(ctx, hash)
	now := time.Now()
	switch {
	case cay.KindOf(err) == cay.NotFound:
		return cay.APIKey{}, errKey
	case err != nil:
		return cay.APIKey{}, err
	case subtle.ConstantTimeCompare(record.Hash[:], hash[:]) != 1, !team.RemovedAt.IsZero():
		return cay.APIKey{}, errKey
	case record.Expired(now):
		return cay.APIKey{}, cay.Errorf(cay.Unauthenticated, "the API key %q expired at %s", record.Name, record.ExpiresAt.Format(time.RFC3339)).
			WithCode(cay.CodeKeyExpired).WithHint("make a new one: cay key create")
	}
	if err := team.Open(); err != nil {
		return cay.APIKey{}, err
	}
	if err := a.personOpen(ctx, record); err != nil {
		return cay.APIKey{}, err
	}
	a.used.note(record, now)
	return record, nil
}
