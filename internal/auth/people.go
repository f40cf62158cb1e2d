package auth

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"time"

	"github.com/cay-run/cay"
)

// tokenPrefix is that of E2B's access tokens.
const tokenPrefix = "sk_e2b_"

// NewAccessToken makes a token, and fills in what a record has of it. It can be
// shown now and never again.
func NewAccessToken(record *cay.AccessToken) (token string) {
	var b [keyBytes]byte
	rand.Read(b[:])
	token = tokenPrefix + hex.EncodeToString(b[:])
	record.ID, record.Hash = string(cay.NewKeyID()), sha256.Sum256([]byte(token))
	record.Mask = token[:len(tokenPrefix)+2] + "…" + token[len(token)-4:]
	record.CreatedAt = time.Now().UTC().Truncate(time.Millisecond)
	return token
}

// IsAccessToken reports whether a text has the form of an access token.
func IsAccessToken(s string) bool { return hasForm(s, tokenPrefix, keyBytes) }

// tokenCaller is the person whom an access token stands for, in a team.
func (a *Auth) tokenCaller(ctx context.Context, token, team string) (cay.Caller, error) {
	hash := sha256.Sum256([]byte(token))
	record, err := a.store.AccessTokenByHash(ctx, hash)
	switch {
	case cay.KindOf(err) == cay.NotFound:
		return cay.Caller{}, errKey
	case err != nil:
		return cay.Caller{}, err
	case subtle.ConstantTimeCompare(record.Hash[:], hash[:]) != 1:
		return cay.Caller{}, errKey
	}
	return a.PersonCaller(ctx, record.Person, team)
}

// PersonCaller is a person, known already, as a member of the team of an id or
// name: the scopes are those of the role. Without a team it is the only one that
// the person is in, else none, and no scopes.
func (a *Auth) PersonCaller(ctx context.Context, id cay.PersonID, team string) (cay.Caller, error) {
	who := cay.Caller{Person: id}
	p, err := a.store.Person(ctx, id)
	switch {
	case cay.KindOf(err) == cay.NotFound:
		return who, errKey
	case err != nil:
		return who, err
	case !p.DisabledAt.IsZero():
		return who, cay.Errorf(cay.Denied, "%s is disabled on this server", p.Email).WithCode(cay.CodeDisabled)
	}
	in, err := a.store.Memberships(ctx, id)
	if err != nil || team == "" && len(in) != 1 {
		return who, err
	}
	for _, m := range in {
		t, err := a.store.Team(ctx, m.Team)
		if err != nil {
			return who, err
		}
		if team != "" && team != string(t.ID) && team != t.Name {
			continue
		}
		who.Team, who.Scopes = t.ID, m.Role.Scopes()
		return who, t.Open()
	}
	return who, cay.Errorf(cay.NotFound, "team %.80q not found: it doesn't exist or you are not in it", team)
}
