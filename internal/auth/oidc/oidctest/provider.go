// Package oidctest is an OpenID provider for tests: discovery, keys, the code
// flow with PKCE, and every way in which a token can be wrong.
package oidctest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

// The provider's one client.
const (
	ClientID = "cay"
	Secret   = "a secret of the client"
)

// Provider serves at URL until the test ends.
type Provider struct {
	t testing.TB
	// URL is the issuer's name.
	URL string
	// Down has everything fail with 503.
	Down atomic.Bool
	// Asked counts requests for the keys.
	Asked atomic.Int32

	mu     sync.Mutex
	info   func(person map[string]any) (status int, says any)
	tokens map[string]map[string]any // persons, by their access tokens
	person map[string]any            // the claims of the next one to log in
	keys   []jose.JSONWebKey
	codes  map[string]url.Values
	spoil  func(claims map[string]any)
}

// New starts a provider.
func New(t testing.TB) *Provider {
	p := &Provider{t: t, codes: map[string]url.Values{}, tokens: map[string]map[string]any{}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /.well-known/openid-configuration", p.discovery)
	mux.HandleFunc("GET /keys", p.published)
	mux.HandleFunc("GET /authorize", p.authorize)
	mux.HandleFunc("POST /token", p.token)
	mux.HandleFunc("GET /userinfo", p.userInfo)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if p.Down.Load() {
			http.Error(w, "down", http.StatusServiceUnavailable)
			return
		}
		mux.ServeHTTP(w, r)
	}))
	t.Cleanup(srv.Close)
	p.URL = srv.URL
	p.Rotate()
	return p
}

// Rotate has a new key sign, and withdraws the old ones.
func (p *Provider) Rotate() {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		p.t.Fatal(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.keys = []jose.JSONWebKey{{Key: key, KeyID: rand.Text(), Algorithm: string(jose.ES256), Use: "sig"}}
}

// LogIn says who logs in from now on.
func (p *Provider) LogIn(claims map[string]any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.person = claims
}

// Spoil has every ID token of the code flow changed before it is signed; nil
// ends that.
func (p *Provider) Spoil(f func(claims map[string]any)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.spoil = f
}

// Tell has the provider have a UserInfo endpoint, with an answer for a person who
// has logged in. It is called before a server reads the provider's documents.
func (p *Provider) Tell(info func(person map[string]any) (status int, says any)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.info = info
}

func (p *Provider) userInfo(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	person, ok := p.tokens[strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")]
	info := p.info
	p.mu.Unlock()
	if !ok || info == nil {
		http.Error(w, "a wrong token", http.StatusUnauthorized)
		return
	}
	status, says := info(person)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(says)
}

// Claims are those of a good token for an audience, with more of them.
func (p *Provider) Claims(audience string, more map[string]any) map[string]any {
	now := time.Now()
	out := map[string]any{
		"iss": p.URL, "sub": "somebody", "aud": audience, "jti": rand.Text(),
		"iat": now.Unix(), "exp": now.Add(5 * time.Minute).Unix(),
	}
	maps.Copy(out, more)
	return out
}

// Sign signs claims as the provider does.
func (p *Provider) Sign(claims map[string]any) string {
	p.mu.Lock()
	key := p.keys[0]
	p.mu.Unlock()
	return p.SignWith(jose.ES256, key, claims)
}

// SignWith signs claims with any key.
func (p *Provider) SignWith(alg jose.SignatureAlgorithm, key any, claims map[string]any) string {
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: alg, Key: key}, nil)
	if err != nil {
		p.t.Fatal(err)
	}
	text, err := jwt.Signed(signer).Claims(claims).Serialize()
	if err != nil {
		p.t.Fatal(err)
	}
	return text
}

// KeyID and PublicKey are what every client of the provider knows of its key.
func (p *Provider) KeyID() string { p.mu.Lock(); defer p.mu.Unlock(); return p.keys[0].KeyID }

// PublicKey is the published key, in JSON.
func (p *Provider) PublicKey() []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	public := p.keys[0].Public()
	b, err := public.MarshalJSON()
	if err != nil {
		p.t.Fatal(err)
	}
	return b
}

func (p *Provider) discovery(w http.ResponseWriter, _ *http.Request) {
	documents := map[string]any{
		"issuer": p.URL, "authorization_endpoint": p.URL + "/authorize", "token_endpoint": p.URL + "/token", "jwks_uri": p.URL + "/keys",
		"response_types_supported": []string{"code"}, "subject_types_supported": []string{"public"},
		"id_token_signing_alg_values_supported": []string{"ES256", "HS256", "none"},
	}
	p.mu.Lock()
	if p.info != nil {
		documents["userinfo_endpoint"] = p.URL + "/userinfo"
	}
	p.mu.Unlock()
	answer(w, documents)
}

func (p *Provider) published(w http.ResponseWriter, _ *http.Request) {
	p.Asked.Add(1)
	p.mu.Lock()
	defer p.mu.Unlock()
	set := jose.JSONWebKeySet{}
	for _, k := range p.keys {
		set.Keys = append(set.Keys, k.Public())
	}
	answer(w, set)
}

// authorize logs the person in without a question.
func (p *Provider) authorize(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	if q.Get("client_id") != ClientID || q.Get("response_type") != "code" || q.Get("code_challenge_method") != "S256" || q.Get("nonce") == "" {
		http.Error(w, "a wrong request: "+r.URL.RawQuery, http.StatusBadRequest)
		return
	}
	code := rand.Text()
	p.mu.Lock()
	p.codes[code] = q
	p.mu.Unlock()
	back := url.Values{"code": {code}, "state": {q.Get("state")}}
	http.Redirect(w, r, q.Get("redirect_uri")+"?"+back.Encode(), http.StatusFound)
}

// token trades a code, once, with the client's secret and the verifier.
func (p *Provider) token(w http.ResponseWriter, r *http.Request) {
	id, secret, ok := r.BasicAuth()
	if !ok {
		id, secret = r.PostFormValue("client_id"), r.PostFormValue("client_secret")
	}
	if s, err := url.QueryUnescape(secret); err == nil && ok {
		secret = s
	}
	p.mu.Lock()
	asked, found := p.codes[r.PostFormValue("code")]
	delete(p.codes, r.PostFormValue("code"))
	person, spoil := maps.Clone(p.person), p.spoil
	p.mu.Unlock()
	sum := sha256.Sum256([]byte(r.PostFormValue("code_verifier")))
	if id != ClientID || secret != Secret || !found || asked.Get("redirect_uri") != r.PostFormValue("redirect_uri") ||
		base64.RawURLEncoding.EncodeToString(sum[:]) != asked.Get("code_challenge") {
		w.WriteHeader(http.StatusBadRequest)
		answer(w, map[string]any{"error": "invalid_grant"})
		return
	}
	claims := p.Claims(ClientID, person)
	claims["nonce"] = asked.Get("nonce")
	if spoil != nil {
		spoil(claims)
	}
	access := rand.Text()
	p.mu.Lock()
	p.tokens[access] = person
	p.mu.Unlock()
	answer(w, map[string]any{"access_token": access, "token_type": "Bearer", "id_token": p.Sign(claims)})
}

func answer(w http.ResponseWriter, v any) {
	b, _ := json.Marshal(v)
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(b)))
	_, _ = w.Write(b)
}
