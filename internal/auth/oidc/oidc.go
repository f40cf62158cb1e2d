// Package oidc checks what OpenID providers say of people and programs: their
// tokens, and the code flow of a login.
package oidc

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"

	"github.com/cay-run/cay"
)

const (
	// Skew is how far the clock of a provider may be off.
	Skew = time.Minute
	// within bounds a request to a provider.
	within = 10 * time.Second
	// maxAnswer bounds what a provider answers.
	maxAnswer = 1 << 20
	// maxToken bounds a token: it is looked at before its signature is checked.
	maxToken = 16 << 10
	// again is how long the documents of a provider that could not be read are
	// not asked for again.
	again = 5 * time.Second
	// fresh is how long they count: keys that a provider has withdrawn count no
	// longer than that.
	fresh = time.Hour
)

// algorithms are the signatures that are taken: none that a public key could be
// used as a secret for, and not none.
var algorithms = []string{oidc.RS256, oidc.RS384, oidc.RS512, oidc.ES256, oidc.ES384, oidc.ES512, oidc.PS256, oidc.PS384, oidc.PS512, oidc.EdDSA}

// Provider is an issuer of tokens. Its documents are read when they are first
// needed, and its keys again when a token names an unknown one. Its methods are
// safe for concurrent use.
type Provider struct {
	issuer string
	client *http.Client

	mu     sync.Mutex
	found  *found
	failed error
	tried  time.Time
}

// found is what the documents of a provider said.
type found struct {
	*oidc.Provider
	keys *keys
	at   time.Time
}

// New returns the provider of an issuer's name. Nothing is asked of it yet.
// Transport may be nil.
func New(issuer string, transport http.RoundTripper) *Provider {
	if transport == nil {
		t := http.DefaultTransport.(*http.Transport).Clone()
		t.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12}
		t.DisableKeepAlives = true // it is asked rarely
		transport = t
	}
	return &Provider{issuer: issuer, client: &http.Client{Timeout: within, Transport: bounded{transport}}}
}

// bounded reads no more of an answer than an honest provider says.
type bounded struct{ next http.RoundTripper }

func (b bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := b.next.RoundTrip(r)
	if err == nil {
		resp.Body = struct {
			io.Reader
			io.Closer
		}{io.LimitReader(resp.Body, maxAnswer), resp.Body}
	}
	return resp, err
}

// Issuer is the provider's name.
func (p *Provider) Issuer() string { return p.issuer }

// errDown says that a provider does not answer as one should.
func errDown(issuer string, err error) error {
	return cay.Wrap(cay.Unavailable, err, "the login provider %s does not answer as it should", issuer).
		WithCode(cay.CodeProviderDown).WithHint("API keys and sessions go on working; try again, or ask the operator of this server")
}

// provider returns what the issuer's documents say. Callers at once read them
// once. Documents that cannot be read again count on.
func (p *Provider) provider(ctx context.Context) (*found, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.found != nil && time.Since(p.found.at) < fresh {
		return p.found, nil
	}
	if p.failed == nil || time.Since(p.tried) >= again {
		got, err := p.read(ctx)
		if err == nil {
			p.found, p.failed = got, nil
			return got, nil
		}
		p.tried, p.failed = time.Now(), errDown(p.issuer, err)
	}
	if p.found != nil {
		return p.found, nil
	}
	return nil, p.failed
}

func (p *Provider) read(ctx context.Context) (*found, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), within)
	defer cancel()
	got, err := oidc.NewProvider(oidc.ClientContext(ctx, p.client), p.issuer)
	if err != nil {
		return nil, err
	}
	var about struct {
		Keys string `json:"jwks_uri"`
	}
	if err := got.Claims(&about); err != nil {
		return nil, err
	}
	return &found{got, newKeys(about.Keys, p.client), time.Now()}, nil
}

// Claims are what a token says that was checked.
type Claims struct {
	Issuer   string
	Subject  string
	Nonce    string
	ID       string // jti; empty for none
	Audience []string
	Party    string // azp
	Expiry   time.Time
	All      map[string]any
}

// Text returns a claim that is a text, a number or a truth value, as text.
func (c Claims) Text(name string) (string, bool) {
	switch v := c.All[name].(type) {
	case string:
		return v, true
	case bool:
		return map[bool]string{true: "true", false: "false"}[v], true
	case json.Number:
		return v.String(), true
	}
	return "", false
}

// Texts returns a claim that is a list of texts, or one text.
func (c Claims) Texts(name string) []string {
	switch v := c.All[name].(type) {
	case string:
		return []string{v}
	case []any:
		var out []string
		for _, one := range v {
			if s, ok := one.(string); ok {
				out = append(out, s)
			}
		}
		return out
	}
	return nil
}

// Verify checks a token: that the provider has signed it, for one of some
// audiences, and that it is its time.
func (p *Provider) Verify(ctx context.Context, raw string, audiences ...string) (Claims, error) {
	if len(raw) > maxToken {
		return Claims{}, bad("the token has more than %d bytes", maxToken)
	}
	found, err := p.provider(ctx)
	if err != nil {
		return Claims{}, err
	}
	keys := &keySet{keys: found.keys}
	// Time and audience are looked at below: each has an answer of its own.
	token, err := oidc.NewVerifier(p.issuer, keys, &oidc.Config{
		SkipClientIDCheck: true, SkipExpiryCheck: true, SupportedSigningAlgs: algorithms,
	}).Verify(oidc.ClientContext(ctx, p.client), raw)
	switch {
	case keys.down != nil:
		return Claims{}, errDown(p.issuer, keys.down)
	case err != nil:
		return Claims{}, bad("the token is not one that %s signed", p.issuer).WithCode(cay.CodeTokenSignature)
	}
	out, err := claimsOf(token)
	if err != nil {
		return Claims{}, err
	}
	return out, out.check(audiences, time.Now())
}

func bad(format string, args ...any) *cay.Error {
	return cay.Errorf(cay.Unauthenticated, format, args...).WithCode(cay.CodeTokenInvalid)
}

func claimsOf(token *oidc.IDToken) (Claims, error) {
	out := Claims{Issuer: token.Issuer, Subject: token.Subject, Nonce: token.Nonce, Audience: token.Audience, Expiry: token.Expiry}
	var raw json.RawMessage
	if err := token.Claims(&raw); err != nil {
		return out, bad("the token's claims cannot be read")
	}
	dec := json.NewDecoder(strings.NewReader(string(raw)))
	dec.UseNumber()
	if err := dec.Decode(&out.All); err != nil {
		return out, bad("the token's claims cannot be read")
	}
	out.ID, _ = out.Text("jti")
	out.Party, _ = out.Text("azp")
	return out, nil
}

// check looks at a token's audience and its time.
func (c Claims) check(audiences []string, now time.Time) error {
	at := func(name string) (time.Time, bool) {
		n, ok := c.All[name].(json.Number)
		if !ok {
			return time.Time{}, false
		}
		seconds, err := n.Float64()
		return time.Unix(int64(seconds), 0), err == nil
	}
	ends, ok := at("exp")
	switch {
	case !slices.ContainsFunc(audiences, func(a string) bool { return slices.Contains(c.Audience, a) }):
		return bad("the token is for the audience %.200q, not for %q", c.Audience, audiences).WithCode(cay.CodeTokenAudience)
	case len(c.Audience) > 1 && c.Party != "" && !slices.Contains(audiences, c.Party):
		return bad("the token was issued to %.200q, not to %q", c.Party, audiences).WithCode(cay.CodeTokenAudience)
	case !ok:
		return bad("the token never ends")
	case c.Subject == "":
		return bad("the token has no subject")
	case !now.Before(ends.Add(Skew)):
		return bad("the token ended at %s", ends.UTC().Format(time.RFC3339)).WithCode(cay.CodeTokenExpired)
	}
	for _, name := range []string{"nbf", "iat"} {
		if begins, ok := at(name); ok && now.Add(Skew).Before(begins) {
			return bad("the token is good from %s on, and it is %s here", begins.UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339)).
				WithCode(cay.CodeTokenEarly).WithHint("set the clocks of both machines")
		}
	}
	return nil
}

// keys are those that a provider has published: kept, and read again for a token
// of a key that is not among them.
type keys struct {
	url    string
	client *http.Client
	reads  atomic.Int64 // that began

	mu  sync.Mutex
	set oidc.KeySet
}

func newKeys(url string, client *http.Client) *keys {
	k := &keys{url: url}
	k.client = &http.Client{Timeout: client.Timeout, Transport: noted{client.Transport, &k.reads}}
	k.renew()
	return k
}

// noted counts requests.
type noted struct {
	next http.RoundTripper
	n    *atomic.Int64
}

func (c noted) RoundTrip(r *http.Request) (*http.Response, error) {
	c.n.Add(1)
	return c.next.RoundTrip(r)
}

// renew forgets what was read.
func (k *keys) renew() oidc.KeySet {
	set := oidc.NewRemoteKeySet(oidc.ClientContext(context.Background(), k.client), k.url)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.set = set
	return set
}

func (k *keys) verify(ctx context.Context, token string) ([]byte, error) {
	k.mu.Lock()
	set := k.set
	k.mu.Unlock()
	before := k.reads.Load()
	payload, err := set.VerifySignature(ctx, token)
	if err == nil || k.reads.Load() != before {
		return payload, err
	}
	// No read began: the answer is of one that may be older than the token's key.
	return k.renew().VerifySignature(ctx, token)
}

// keySet tells keys that cannot be read from a signature that is wrong.
type keySet struct {
	keys *keys
	down error
}

func (k *keySet) VerifySignature(ctx context.Context, token string) ([]byte, error) {
	payload, err := k.keys.verify(ctx, token)
	if err != nil && strings.HasPrefix(err.Error(), "fetching keys") {
		k.down = err
	}
	return payload, err
}

// IssuerOf is what an unchecked token says of its issuer.
func IssuerOf(raw string) (string, error) {
	if len(raw) > maxToken {
		return "", bad("the token has more than %d bytes", maxToken)
	}
	var said struct {
		Issuer string `json:"iss"`
	}
	parts := strings.Split(raw, ".")
	if len(parts) == 3 {
		payload, err := base64.RawURLEncoding.DecodeString(parts[1])
		if err == nil && json.Unmarshal(payload, &said) == nil && said.Issuer != "" {
			return said.Issuer, nil
		}
	}
	return "", bad("this is no token of OpenID Connect")
}

// Flow is the code flow of a login at a provider.
type Flow struct {
	Provider *Provider
	ClientID string
	Secret   string // empty for a public client
	Redirect string // the address of the callback
	Scopes   []string
	// Claims are those that a login needs. An ID token that lacks one has the
	// provider be asked at its UserInfo endpoint, where it has one.
	Claims []string
}

func (f *Flow) config(p *found) *oauth2.Config {
	return &oauth2.Config{ClientID: f.ClientID, ClientSecret: f.Secret, RedirectURL: f.Redirect, Endpoint: p.Endpoint(), Scopes: f.Scopes}
}

// Start returns the address at which a person logs in.
func (f *Flow) Start(ctx context.Context, state, nonce, verifier string) (string, error) {
	p, err := f.Provider.provider(ctx)
	if err != nil {
		return "", err
	}
	return f.config(p).AuthCodeURL(state, oidc.Nonce(nonce), oauth2.S256ChallengeOption(verifier)), nil
}

// Finish trades a code for what the provider says of the person.
func (f *Flow) Finish(ctx context.Context, code, nonce, verifier string) (Claims, error) {
	p, err := f.Provider.provider(ctx)
	if err != nil {
		return Claims{}, err
	}
	ctx, cancel := context.WithTimeout(oidc.ClientContext(ctx, f.Provider.client), within)
	defer cancel()
	token, err := f.config(p).Exchange(ctx, code, oauth2.VerifierOption(verifier))
	var refused *oauth2.RetrieveError
	switch {
	case errors.As(err, &refused) && refused.Response != nil && refused.Response.StatusCode < 500:
		return Claims{}, cay.Wrap(cay.Unauthenticated, err, "the login provider refused the code").WithCode(cay.CodeLoginFailed).
			WithHint("begin the login again")
	case err != nil:
		return Claims{}, errDown(f.Provider.issuer, err)
	}
	raw, _ := token.Extra("id_token").(string)
	if raw == "" {
		return Claims{}, cay.Errorf(cay.Unauthenticated, "the login provider gave no ID token").WithCode(cay.CodeLoginFailed)
	}
	claims, err := f.Provider.Verify(ctx, raw, f.ClientID)
	if err == nil && (nonce == "" || claims.Nonce != nonce) {
		err = cay.Errorf(cay.Unauthenticated, "the ID token is of another login").WithCode(cay.CodeLoginFailed)
	}
	if err == nil {
		err = f.more(ctx, p, token, &claims)
	}
	return claims, err
}

// more adds to the claims of an ID token those that the provider tells at its
// UserInfo endpoint alone, as it may do with all that scopes ask for (OpenID
// Connect Core 1.0, 5.4). They replace no claim of the token. A provider that is
// asked must answer: without its groups a person would lose roles.
func (f *Flow) more(ctx context.Context, p *found, token *oauth2.Token, claims *Claims) error {
	lacks := func(name string) bool { _, ok := claims.All[name]; return !ok }
	if p.UserInfoEndpoint() == "" || !slices.ContainsFunc(f.Claims, lacks) {
		return nil
	}
	info, err := p.UserInfo(ctx, oauth2.StaticTokenSource(token))
	if err != nil {
		return errDown(f.Provider.issuer, err)
	}
	if info.Subject != claims.Subject { // 5.3.2
		return cay.Errorf(cay.Unauthenticated, "the login provider tells of another person than its ID token").WithCode(cay.CodeLoginFailed)
	}
	told := map[string]any{}
	if err := info.Claims(&told); err != nil {
		return errDown(f.Provider.issuer, err)
	}
	if email, ok := claims.All["email"]; ok && email != told["email"] { // it is of another address
		delete(told, "email_verified")
	}
	maps.Copy(told, claims.All)
	claims.All = told
	return nil
}
