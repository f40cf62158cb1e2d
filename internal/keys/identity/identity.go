// Package identity makes the tokens by which sandboxes prove outside who they
// are, and publishes the keys that they are checked with: JWTs of this
// installation, as OpenID Connect and SPIFFE have them.
package identity

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"log/slog"
	"net"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/cay-run/cay"
)

const (
	// Lifetime is how long a token is good for.
	Lifetime = 5 * time.Minute
	// reuse is how much of its life a token must have left to be sent again.
	reuse = Lifetime / 2
	// maxTokens bounds how many are kept to be sent again.
	maxTokens = 4096
	// algorithm is the one that every cloud takes.
	algorithm = jose.RS256
)

// Where the documents are, below the issuer's address.
const (
	DiscoveryPath = "/.well-known/openid-configuration"
	KeysPath      = "/.well-known/jwks.json"
)

// Issuer makes tokens. Its methods are safe for concurrent use.
type Issuer struct {
	url    string
	domain string // of subjects
	ring   ring

	mu     sync.Mutex
	tokens map[holder]token
}

// holder is what tokens are kept by.
type holder struct {
	sandbox  cay.SandboxID
	audience string
}

type token struct {
	text string
	ends time.Time
}

// Open returns the issuer whose keys lie below a directory. Its name is the
// address at which others find its documents.
func Open(dir, address string, log *slog.Logger) (*Issuer, error) {
	at, err := url.Parse(address)
	if err != nil || at.Host == "" {
		return nil, cay.Errorf(cay.Invalid, "the address %q of this server is no URL", address)
	}
	keys, err := openRing(dir, log)
	if err != nil {
		return nil, err
	}
	return &Issuer{url: strings.TrimSuffix(address, "/"), domain: trustDomain(at.Host), ring: keys, tokens: map[holder]token{}}, nil
}

var trustName = regexp.MustCompile(`^[a-z0-9._-]{1,255}$`)

// trustDomain is the part of a host that names an installation in SPIFFE ids:
// without a port, and without the label of the API.
func trustDomain(host string) string {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.TrimPrefix(strings.ToLower(host), "api.")
	if !trustName.MatchString(host) { // an IPv6 address
		return "cay.localhost"
	}
	return host
}

// URL is the issuer's name.
func (i *Issuer) URL() string { return i.url }

// Subject is the name of a sandbox in its tokens.
func (i *Issuer) Subject(team cay.TeamID, id cay.SandboxID) string {
	return "spiffe://" + i.domain + "/team/" + string(team) + "/sandbox/" + string(id)
}

// claims are what a token says. One audience is written as a text: some clouds
// take no list.
type claims struct {
	Issuer   string           `json:"iss"`
	Subject  string           `json:"sub"`
	Audience string           `json:"aud"`
	IssuedAt *jwt.NumericDate `json:"iat"`
	Expiry   *jwt.NumericDate `json:"exp"`
	ID       string           `json:"jti"`
}

// Token returns a token of a sandbox for an audience. One that has more than
// half of its life left is returned again.
func (i *Issuer) Token(team cay.TeamID, id cay.SandboxID, audience string) (string, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	now := time.Now()
	key := holder{id, audience}
	if t, ok := i.tokens[key]; ok && t.ends.Sub(now) > reuse {
		return t.text, nil
	}
	text, err := i.mint(claims{
		Issuer: i.url, Subject: i.Subject(team, id), Audience: audience,
		IssuedAt: jwt.NewNumericDate(now), Expiry: jwt.NewNumericDate(now.Add(Lifetime)), ID: randomID(),
	}, now)
	if err != nil {
		return "", err
	}
	i.keep(key, token{text, now.Add(Lifetime)}, now)
	return text, nil
}

func (i *Issuer) mint(c claims, now time.Time) (string, error) {
	key, err := i.ring.signer(now)
	if err != nil {
		return "", err
	}
	signer, err := jose.NewSigner(
		jose.SigningKey{Algorithm: algorithm, Key: jose.JSONWebKey{Key: key.private, KeyID: key.id}},
		(&jose.SignerOptions{}).WithType("JWT"),
	)
	if err == nil {
		var text string
		if text, err = jwt.Signed(signer).Claims(c).Serialize(); err == nil {
			return text, nil
		}
	}
	return "", cay.Wrap(cay.Internal, err, "an identity token cannot be signed")
}

// keep keeps a token to be sent again, and forgets those that are not any more.
func (i *Issuer) keep(key holder, t token, now time.Time) {
	if len(i.tokens) >= maxTokens {
		for k, old := range i.tokens {
			if old.ends.Sub(now) <= reuse {
				delete(i.tokens, k)
			}
		}
		if len(i.tokens) >= maxTokens {
			clear(i.tokens)
		}
	}
	i.tokens[key] = t
}

func randomID() string {
	var b [16]byte
	rand.Read(b[:]) // never fails: it ends the program instead
	return base64.RawURLEncoding.EncodeToString(b[:])
}

// Discovery is the document at DiscoveryPath.
func (i *Issuer) Discovery() []byte {
	b, _ := json.Marshal(map[string]any{ // texts always marshal
		"issuer":                                i.url,
		"jwks_uri":                              i.url + KeysPath,
		"response_types_supported":              []string{"id_token"},
		"subject_types_supported":               []string{"public"},
		"id_token_signing_alg_values_supported": []string{string(algorithm)},
		"claims_supported":                      []string{"iss", "sub", "aud", "iat", "exp", "jti"},
	})
	return b
}

// Keys is the document at KeysPath: the public keys that tokens are or will
// soon be signed with, and those of tokens that are not over.
func (i *Issuer) Keys() ([]byte, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	keys, err := i.ring.published(time.Now())
	if err != nil {
		return nil, err
	}
	set := jose.JSONWebKeySet{}
	for _, k := range keys {
		set.Keys = append(set.Keys, jose.JSONWebKey{Key: k.private.Public(), KeyID: k.id, Algorithm: string(algorithm), Use: "sig"})
	}
	return json.Marshal(set)
}

// Keep has the keys stay as they are, and makes one if there is none: of several
// servers that share them each would else make another one.
func (i *Issuer) Keep() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.ring.kept = true
	return i.ring.turn(time.Now())
}
