package logins

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/oauth2"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/auth"
	"github.com/cay-run/cay/internal/shares"
)

const (
	// loginWithin is how long a login may take.
	loginWithin = 10 * time.Minute
	// maxLogins bounds the logins that are under way. They are kept in memory
	// alone: one that a restart breaks is begun again.
	maxLogins = 10_000
	// siteBits are of an IPv6 address what names the site of a party.
	siteBits = 48
	// waitWithin is how long a client waits for a login before it asks again.
	waitWithin = 25 * time.Second
)

// Begun is a login that a program has begun: a person goes to it with a browser.
type Begun struct {
	ID   string
	Code string // that the program shows, and the browser asks about
	Ends time.Time
}

// attempt is a login under way. Three parties have a part in it, and each proves
// that it is the one that began: the program by the verifier of its challenge,
// the browser by its cookie, the provider by state and nonce.
type attempt struct {
	Begun
	challenge string // SHA-256 of the program's verifier
	back      string // a page of the console that gets the browser back; empty for a program without pages
	from      *cay.Origin
	network   string // that it began from

	browser, state, nonce, pkce string // of the browser's way to the provider

	person  cay.Person // who has logged in
	asked   string     // what the page of the question proves itself with
	ticket  string     // what the page at back brings to the program
	settled chan struct{}
	err     error // why it was settled in vain
}

// attempts are the logins under way.
type attempts struct {
	mu  sync.Mutex
	all map[string]*attempt
}

var errNoLogin = cay.Errorf(cay.NotFound, "there is no such login").WithCode(cay.CodeLoginUnknown).WithHint("begin again")

func errLogin(format string, args ...any) *cay.Error {
	return cay.Errorf(cay.Unauthenticated, format, args...).WithCode(cay.CodeLoginFailed).WithHint("begin the login again")
}

// Begin begins a login. The challenge is the SHA-256 of a secret that the
// program keeps, in base64url. With back, a page of the console, the browser
// goes there in the end.
func (l *Logins) Begin(challenge, back string, from *cay.Origin) (Begun, error) {
	if l.flow == nil {
		return Begun{}, cay.Errorf(cay.Unsupported, "this server has no logins").
			WithHint("use an API key; the operator names a provider in CAY_OIDC_ISSUER")
	}
	if sum, err := base64.RawURLEncoding.DecodeString(challenge); err != nil || len(sum) != sha256.Size {
		return Begun{}, cay.Errorf(cay.Invalid, "challenge: must be the SHA-256 of a secret, in base64url without padding")
	}
	if back != "" && !slices.ContainsFunc(l.cfg.Pages, func(page string) bool { return back == page || strings.HasPrefix(back, page+"/") }) {
		return Begun{}, cay.Errorf(cay.Invalid, "return: %.200q is no page of this server's console", back)
	}
	at := &attempt{
		Begun:     Begun{ID: rand.Text(), Code: words(), Ends: time.Now().Add(loginWithin)},
		challenge: challenge, back: back, from: from, settled: make(chan struct{}),
	}
	if from != nil {
		at.network = shares.Network(from.Address, siteBits)
	}
	l.under.mu.Lock()
	defer l.under.mu.Unlock()
	held := int64(0)
	for id, old := range l.under.all {
		if old.network == at.network {
			held++
		}
		if !time.Now().Before(old.Ends) {
			delete(l.under.all, id)
		}
	}
	if !shares.Fits(maxLogins, int64(len(l.under.all)), held, 1) {
		return Begun{}, cay.Errorf(cay.Exhausted, "too many logins are under way").WithCode(cay.CodeLoginRate)
	}
	l.under.all[at.ID] = at
	return at.Begun, nil
}

// words is a code that a person compares: without vowels it is no word, and
// without letters that look alike.
func words() string {
	const letters = "BCDFGHJKLMNPQRSTVWXZ"
	var b [8]byte
	rand.Read(b[:])
	for i, c := range b {
		b[i] = letters[int(c)%len(letters)]
	}
	return string(b[:4]) + "-" + string(b[4:])
}

// find returns the login that a test is true of, with the lock held until done
// is called.
func (l *Logins) find(is func(*attempt) bool) (at *attempt, done func(), err error) {
	l.under.mu.Lock()
	for _, one := range l.under.all {
		if time.Now().Before(one.Ends) && is(one) {
			return one, l.under.mu.Unlock, nil
		}
	}
	l.under.mu.Unlock()
	return nil, nil, errNoLogin
}

func same(a, b string) bool {
	return a != "" && subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1
}

// Send sends a browser to the provider, and returns the secret that is to be its
// cookie. A second browser takes the login over.
func (l *Logins) Send(ctx context.Context, id string) (address, browser string, err error) {
	state, nonce, pkce, browser := rand.Text(), rand.Text(), oauth2.GenerateVerifier(), rand.Text()
	if l.flow == nil {
		return "", "", errNoLogin
	}
	address, err = l.flow.Start(ctx, state, nonce, pkce)
	if err != nil {
		return "", "", err
	}
	at, done, err := l.find(func(at *attempt) bool { return same(id, at.ID) })
	if err != nil {
		return "", "", err
	}
	defer done()
	if at.person.ID != "" {
		return "", "", errNoLogin
	}
	at.state, at.nonce, at.pkce, at.browser = state, nonce, pkce, browser
	return address, browser, nil
}

// Return is what a provider sends a browser back with.
type Return struct {
	State, Code, Error, Issuer string
	Browser                    string // the cookie
}

// Question is what a person is asked whose login a program without pages has
// begun.
type Question struct {
	Code, Address, Email string
	Proof                string // that the answer brings back
}

// Arrive takes a browser that comes back from the provider. It is sent on to a
// page, or the person is asked whether the login is theirs: a stranger may have
// begun it and sent them the link.
func (l *Logins) Arrive(ctx context.Context, r Return) (page string, ask *Question, err error) {
	at, done, err := l.find(func(at *attempt) bool { return same(r.State, at.state) })
	if err != nil {
		return "", nil, err
	}
	mine := same(r.Browser, at.browser)
	nonce, pkce := at.nonce, at.pkce
	if mine {
		at.state = "" // once
	}
	done()
	switch {
	case !mine:
		return "", nil, errLogin("this login was begun in another browser")
	case r.Issuer != "" && r.Issuer != l.flow.Provider.Issuer():
		err = errLogin("the answer is of another provider, %.200q", r.Issuer)
	case r.Error != "":
		err = errLogin("the login provider says %.200q", r.Error)
	}
	var person cay.Person
	if err == nil {
		person, err = l.arrived(ctx, r.Code, nonce, pkce, at.from)
	}
	if err != nil {
		l.refused(ctx, at, err)
	}
	l.under.mu.Lock()
	defer l.under.mu.Unlock()
	if err != nil {
		if cay.KindOf(err) != cay.Unavailable { // else the same link may be tried again
			l.settle(at, err)
		}
		return "", nil, err
	}
	at.person = person
	if at.back == "" {
		at.asked = rand.Text()
		return "", &Question{Code: at.Code, Address: addressOf(at.from), Email: person.Email, Proof: at.asked}, nil
	}
	at.ticket = rand.Text()
	l.settle(at, nil)
	return at.back + "#login=" + at.ID + "&ticket=" + at.ticket, nil, nil
}

// refused records a login that was refused.
func (l *Logins) refused(ctx context.Context, at *attempt, why error) {
	outcome := cay.OutcomeFailed
	if cay.KindOf(why) == cay.Denied {
		outcome = cay.OutcomeDenied
	}
	who := cay.Caller{From: at.from}
	if err := l.cfg.Audit.Record(ctx, who, "session.refused", at.ID, outcome, "error", cay.CodeOf(why)); err != nil {
		l.cfg.Log.Error("a refused login could not be recorded", "err", err)
	}
}

// arrived trades a code for the person.
func (l *Logins) arrived(ctx context.Context, code, nonce, pkce string, from *cay.Origin) (cay.Person, error) {
	claims, err := l.flow.Finish(ctx, code, nonce, pkce)
	if err != nil {
		return cay.Person{}, err
	}
	return l.personOf(ctx, claims, from)
}

func addressOf(from *cay.Origin) string {
	if from == nil {
		return ""
	}
	return from.Address
}

// settle has the program that waits go on. The caller holds the lock.
func (l *Logins) settle(at *attempt, err error) {
	select {
	case <-at.settled:
	default:
		at.err = err
		close(at.settled)
	}
}

// Answer is what the person says to the question.
func (l *Logins) Answer(proof, browser string, yes bool) error {
	at, done, err := l.find(func(at *attempt) bool { return same(proof, at.asked) })
	if err != nil {
		return err
	}
	defer done()
	if !same(browser, at.browser) {
		return errLogin("this login was begun in another browser")
	}
	at.asked = ""
	if !yes {
		l.settle(at, errLogin("the person says that the login is not theirs"))
		return nil
	}
	l.settle(at, nil)
	return nil
}

// Redeemed is a person's new session.
type Redeemed struct {
	Token   string // told now and never again
	Session cay.Session
	Me      Me
}

// Redeem gives the program that began a login its session, once. Nil means that
// the person is not done yet.
func (l *Logins) Redeem(ctx context.Context, id, verifier, ticket string) (*Redeemed, error) {
	sum := sha256.Sum256([]byte(verifier))
	challenge := base64.RawURLEncoding.EncodeToString(sum[:])
	at, done, err := l.find(func(at *attempt) bool { return same(id, at.ID) && same(challenge, at.challenge) })
	if err != nil {
		return nil, err
	}
	done()
	wait, cancel := context.WithTimeout(ctx, min(waitWithin, time.Until(at.Ends)))
	defer cancel()
	select {
	case <-at.settled:
	case <-wait.Done():
		return nil, nil
	}
	if err := l.take(at, ticket); err != nil {
		return nil, err
	}
	out := &Redeemed{Session: cay.Session{SessionOwner: cay.SessionOwner{Person: at.person.ID}}}
	if at.from != nil {
		out.Session.Agent, out.Session.Address = at.from.Agent, at.from.Address
	}
	if out.Me, err = l.about(ctx, at.person.ID); err != nil {
		return nil, err
	}
	out.Token = auth.NewSession(&out.Session)
	if err := l.cfg.Store.AddSession(ctx, out.Session); err != nil {
		return nil, err
	}
	who := cay.Caller{Person: at.person.ID, Session: out.Session.ID, From: at.from}
	return out, l.cfg.Audit.Record(ctx, who, "session.created", string(out.Session.ID), cay.OutcomeOK, "email", at.person.Email)
}

// take ends a login that is settled: it is redeemed once, with the ticket that
// its browser brought.
func (l *Logins) take(at *attempt, ticket string) error {
	l.under.mu.Lock()
	defer l.under.mu.Unlock()
	switch {
	case l.under.all[at.ID] != at:
		return errNoLogin
	case at.err == nil && at.ticket != "" && !same(ticket, at.ticket):
		return errNoLogin
	}
	delete(l.under.all, at.ID)
	return at.err
}
