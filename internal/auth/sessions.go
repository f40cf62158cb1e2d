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

const (
	sessionPrefix = "cay_session_"
	sessionBytes  = 32
)

// NewSession makes the token of a session, and fills in what a record has of it.
// It can be told now and never again.
func NewSession(record *cay.Session) (token string) {
	var b [sessionBytes]byte
	rand.Read(b[:]) // never fails: it ends the program instead
	token = sessionPrefix + hex.EncodeToString(b[:])
	record.ID, record.Hash = cay.NewSessionID(), sha256.Sum256([]byte(token))
	record.CreatedAt = time.Now().UTC().Truncate(time.Millisecond)
	record.UsedAt = record.CreatedAt
	return token
}

// IsSession reports whether a text has the form of a session's token.
func IsSession(s string) bool { return hasForm(s, sessionPrefix, sessionBytes) }

// errSession is the one answer to a session that opens nothing, whether there
// was such a one or not.
var errSession = cay.Errorf(cay.Unauthenticated, "the session is over").WithCode(cay.CodeSessionEnded).
	WithHint("log in again: cay login")

// sessionCaller is the owner of a session, in a team.
func (a *Auth) sessionCaller(ctx context.Context, token, team string) (cay.Caller, error) {
	hash := sha256.Sum256([]byte(token))
	x, err := a.store.SessionByHash(ctx, hash)
	now := time.Now()
	switch {
	case cay.KindOf(err) == cay.NotFound:
		return cay.Caller{}, errSession
	case err != nil:
		return cay.Caller{}, err
	case subtle.ConstantTimeCompare(x.Hash[:], hash[:]) != 1, !now.Before(x.Ends()):
		return cay.Caller{}, errSession
	}
	who, err := a.ownerCaller(ctx, x.SessionOwner, team)
	if err != nil {
		return who, err
	}
	if now.Sub(x.UsedAt) >= usedEvery {
		// Lost, it is noted again by the next request.
		_ = a.store.UseSession(ctx, x.ID, now)
	}
	who.Session = x.ID
	return who, nil
}

// ownerCaller is the party of a session, in a team. A key that is gone and a token
// of an operator that is no longer theirs end their sessions.
func (a *Auth) ownerCaller(ctx context.Context, of cay.SessionOwner, team string) (cay.Caller, error) {
	switch {
	case of.Person != "":
		return a.PersonCaller(ctx, of.Person, team)
	case of.Key != "":
		return a.keyCaller(ctx, of.Key, team)
	case of.Operator == "" || subtle.ConstantTimeCompare([]byte(of.Operator), []byte(a.operator())) != 1:
		return cay.Caller{}, errSession
	}
	return a.inTeam(ctx, cay.Caller{Scopes: cay.AllScopes}, team)
}

// keyCaller is a key, known already, as Verify and Caller have it.
func (a *Auth) keyCaller(ctx context.Context, id cay.KeyID, team string) (cay.Caller, error) {
	record, err := a.store.Key(ctx, "", id)
	if cay.KindOf(err) == cay.NotFound || err == nil && record.Expired(time.Now()) {
		return cay.Caller{}, errSession
	}
	if err != nil {
		return cay.Caller{}, err
	}
	of, err := a.store.Team(ctx, record.Team)
	if err == nil {
		err = of.Open()
	}
	if err == nil {
		err = a.personOpen(ctx, record)
	}
	if err != nil {
		return cay.Caller{}, err
	}
	a.used.note(record, time.Now())
	who := record.Caller()
	if who.Scopes&cay.Admin != 0 {
		return a.inTeam(ctx, who, team)
	}
	return who, nil
}

// operator marks sessions of the operator: the hash of the token's hash.
func (a *Auth) operator() string {
	sum := sha256.Sum256(a.admin[:])
	return hex.EncodeToString(sum[:])
}

// Owner is the party whose sessions a caller has.
func (a *Auth) Owner(who cay.Caller) cay.SessionOwner {
	switch {
	case who.Person != "":
		return cay.SessionOwner{Person: who.Person}
	case who.Key != "":
		return cay.SessionOwner{Key: who.Key}
	case who.Scopes&cay.Admin != 0:
		return cay.SessionOwner{Operator: a.operator()}
	}
	return cay.SessionOwner{}
}

// Still reports whether what a caller came with opens anything yet.
func (a *Auth) Still(ctx context.Context, who cay.Caller) bool {
	_, ok := a.still(ctx, who)
	return ok
}
