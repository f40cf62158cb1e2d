package logins

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"sync"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/auth"
)

const (
	// linkWithin is how long a link opens the console.
	linkWithin = 2 * time.Minute
	// maxLinks bounds the links of a team that are not used yet: of more, the
	// oldest goes. They are kept in memory alone: a restart ends them.
	maxLinks = 100
)

// link opens the console once, as the caller that asked for it.
type link struct {
	who  cay.Caller
	ends time.Time
}

// links are those that are not used yet, by the hash of their code.
type links struct {
	mu  sync.Mutex
	all map[[32]byte]link
}

// Link makes a code of 128 bits that Open trades once, within two minutes, for a
// session of the caller.
func (l *Logins) Link(who cay.Caller) (code string, ends time.Time, err error) {
	if (l.cfg.Auth.Owner(who) == cay.SessionOwner{}) {
		return "", ends, cay.Errorf(cay.Denied, "this credential can have no session")
	}
	l.links.mu.Lock()
	defer l.links.mu.Unlock()
	now := time.Now()
	n, oldest := 0, [32]byte{}
	for hash, old := range l.links.all {
		switch {
		case !now.Before(old.ends):
			delete(l.links.all, hash)
		case old.who.Team == who.Team:
			if n++; n == 1 || old.ends.Before(l.links.all[oldest].ends) {
				oldest = hash
			}
		}
	}
	if n >= maxLinks {
		delete(l.links.all, oldest)
	}
	code = rand.Text()
	ends = now.Add(linkWithin)
	l.links.all[sha256.Sum256([]byte(code))] = link{who, ends}
	return code, ends, nil
}

// Opened is a new session of the console.
type Opened struct {
	Token   string // told now and never again
	Session cay.Session
}

var errLink = cay.Errorf(cay.NotFound, "the link was used, or is older than two minutes").WithCode(cay.CodeLoginUnknown).
	WithHint("make another: cay console")

// Open trades the code of a link for a session, which is of the party that made
// the link. A party that has lost its credential meanwhile gets none.
func (l *Logins) Open(ctx context.Context, code string, from *cay.Origin) (Opened, error) {
	hash := sha256.Sum256([]byte(code))
	l.links.mu.Lock()
	at, found := l.links.all[hash]
	delete(l.links.all, hash)
	l.links.mu.Unlock()
	if !found || !time.Now().Before(at.ends) || !l.cfg.Auth.Still(ctx, at.who) {
		return Opened{}, errLink
	}
	return l.OpenAs(ctx, at.who, from, "link")
}

// OpenAs gives a caller a session of its own; by says by which way, for the audit
// log.
func (l *Logins) OpenAs(ctx context.Context, who cay.Caller, from *cay.Origin, by string) (Opened, error) {
	out := Opened{Session: cay.Session{SessionOwner: l.cfg.Auth.Owner(who)}}
	if from != nil {
		out.Session.Agent, out.Session.Address = from.Agent, from.Address
	}
	out.Token = auth.NewSession(&out.Session)
	if err := l.cfg.Store.AddSession(ctx, out.Session); err != nil {
		return Opened{}, err
	}
	who.Session, who.From = out.Session.ID, from
	return out, l.cfg.Audit.Record(ctx, who, "session.created", string(out.Session.ID), cay.OutcomeOK, "by", by)
}
