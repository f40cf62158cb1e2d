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

// sessionCaller is the person of a session, in a team.
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
	who, err := a.PersonCaller(ctx, x.Person, team)
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
