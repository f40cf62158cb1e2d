package oidc_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/auth/oidc"
	"github.com/cay-run/cay/internal/auth/oidc/oidctest"
)

func code(t *testing.T, err error) string {
	t.Helper()
	if err == nil {
		return ""
	}
	return cay.CodeOf(err)
}

// Each wrong token has a code of its own, and none is taken.
func TestVerify(t *testing.T) {
	idp, other := oidctest.New(t), oidctest.New(t)
	p := oidc.New(idp.URL, nil)
	now := time.Now()
	at := func(d time.Duration) int64 { return now.Add(d).Unix() }
	none := func(claims map[string]any) string {
		b, _ := json.Marshal(claims)
		enc := base64.RawURLEncoding.EncodeToString
		return enc([]byte(`{"alg":"none"}`)) + "." + enc(b) + "."
	}
	good, endless := idp.Claims("cay", nil), idp.Claims("cay", nil)
	delete(endless, "exp")
	for name, tc := range map[string]struct {
		token string
		want  string
	}{
		"good":                     {idp.Sign(good), ""},
		"good for two":             {idp.Sign(idp.Claims("", map[string]any{"aud": []string{"x", "cay"}, "azp": "cay"})), ""},
		"a little late":            {idp.Sign(idp.Claims("cay", map[string]any{"exp": at(-30 * time.Second)})), ""},
		"a little early":           {idp.Sign(idp.Claims("cay", map[string]any{"nbf": at(50 * time.Second), "iat": at(50 * time.Second)})), ""},
		"over":                     {idp.Sign(idp.Claims("cay", map[string]any{"exp": at(-61 * time.Second)})), cay.CodeTokenExpired},
		"to come":                  {idp.Sign(idp.Claims("cay", map[string]any{"nbf": at(5 * time.Minute)})), cay.CodeTokenEarly},
		"issued in the future":     {idp.Sign(idp.Claims("cay", map[string]any{"iat": at(5 * time.Minute)})), cay.CodeTokenEarly},
		"without an end":           {idp.Sign(endless), cay.CodeTokenInvalid},
		"an end that is a text":    {idp.Sign(idp.Claims("cay", map[string]any{"exp": "never"})), cay.CodeTokenSignature},
		"for another audience":     {idp.Sign(idp.Claims("else", nil)), cay.CodeTokenAudience},
		"for a longer audience":    {idp.Sign(idp.Claims("cay2", nil)), cay.CodeTokenAudience},
		"issued to another client": {idp.Sign(idp.Claims("", map[string]any{"aud": []string{"x", "cay"}, "azp": "x"})), cay.CodeTokenAudience},
		"without a subject":        {idp.Sign(idp.Claims("cay", map[string]any{"sub": ""})), cay.CodeTokenInvalid},
		"unsigned":                 {none(good), cay.CodeTokenSignature},
		"the public key as secret": {idp.SignWith(jose.HS256, jose.JSONWebKey{Key: idp.PublicKey(), KeyID: idp.KeyID()}, good), cay.CodeTokenSignature},
		"another's key":            {other.Sign(good), cay.CodeTokenSignature},
		"another's name":           {idp.Sign(other.Claims("cay", nil)), cay.CodeTokenSignature},
		"signature cut off":        {strings.Join(strings.Split(idp.Sign(good), ".")[:2], ".") + ".", cay.CodeTokenSignature},
		"no token":                 {"nothing", cay.CodeTokenSignature},
		"huge":                     {strings.Repeat("a", 17<<10), cay.CodeTokenInvalid},
	} {
		claims, err := p.Verify(t.Context(), tc.token, "cay")
		if got := code(t, err); got != tc.want || err != nil && cay.KindOf(err) != cay.Unauthenticated {
			t.Errorf("%s: %q, %v", name, got, err)
		}
		if err == nil && claims.Subject != "somebody" {
			t.Errorf("%s: %+v", name, claims)
		}
	}
}

// Nothing in a token's header says which key it is checked with, but the name of
// one that the provider has published.
func TestKeysThatTokensName(t *testing.T) {
	idp := oidctest.New(t)
	var asked atomic.Int32
	evil := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
	t.Cleanup(evil.Close)
	p := oidc.New(idp.URL, nil)
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	sign := func(kid string, options *jose.SignerOptions) string {
		t.Helper()
		key := jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: private, KeyID: kid}}
		signer, err := jose.NewSigner(key, options)
		if err != nil {
			t.Fatal(err)
		}
		token, err := jwt.Signed(signer).Claims(idp.Claims("cay", nil)).Serialize()
		if err != nil {
			t.Fatal(err)
		}
		return token
	}
	with := func(name jose.HeaderKey, value any) *jose.SignerOptions {
		return (&jose.SignerOptions{}).WithHeader(name, value)
	}
	for name, token := range map[string]string{
		"a key that is not published":     sign("new", nil),
		"a key with the name of another":  sign(idp.KeyID(), nil),
		"no name":                         sign("", nil),
		"a path":                          sign("../../../../dev/null", nil),
		"a query":                         sign("x' OR 1=1 --", nil),
		"a zero byte":                     sign("\x00", nil),
		"the token's own key":             sign("own", &jose.SignerOptions{EmbedJWK: true}),
		"keys elsewhere":                  sign(idp.KeyID(), with("jku", evil.URL+"/keys")),
		"a certificate elsewhere":         sign(idp.KeyID(), with("x5u", evil.URL+"/cert")),
		"a critical header, not known":    sign(idp.KeyID(), with("crit", []string{"cay"})),
		"keys elsewhere, of another name": sign("other", with("jku", evil.URL+"/keys")),
	} {
		if _, err := p.Verify(t.Context(), token, "cay"); code(t, err) != cay.CodeTokenSignature {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := asked.Load(); n != 0 {
		t.Errorf("an address of a token was asked %d times", n)
	}
	if _, err := p.Verify(t.Context(), idp.Sign(idp.Claims("cay", nil)), "cay"); err != nil {
		t.Errorf("a good one: %v", err)
	}
}

// The names of issuers and audiences are compared as they are written.
func TestNamesAreExact(t *testing.T) {
	idp := oidctest.New(t)
	p := oidc.New(idp.URL, nil)
	for name, claims := range map[string]map[string]any{
		"a slash behind":    {"iss": idp.URL + "/"},
		"capitals":          {"iss": strings.ToUpper(idp.URL)},
		"a list of issuers": {"iss": []string{idp.URL}},
		"none":              {"iss": ""},
		"of another scheme": {"iss": strings.Replace(idp.URL, "http:", "https:", 1)},
	} {
		if _, err := p.Verify(t.Context(), idp.Sign(idp.Claims("cay", claims)), "cay"); code(t, err) != cay.CodeTokenSignature {
			t.Errorf("issuer, %s: %v", name, err)
		}
	}
	for name, audience := range map[string]any{
		"none": []string{}, "others": []string{"a", "b"}, "a part": "ca", "capitals": "CAY", "a space": "cay ", "a pattern": "*", "empty": "",
		"all in one": "x cay", "a list in a text": `["cay"]`,
	} {
		if _, err := p.Verify(t.Context(), idp.Sign(idp.Claims("", map[string]any{"aud": audience})), "cay"); code(t, err) != cay.CodeTokenAudience {
			t.Errorf("audience, %s: %v", name, err)
		}
	}
	if _, err := p.Verify(t.Context(), idp.Sign(idp.Claims("", map[string]any{"aud": "cay"})), ""); code(t, err) != cay.CodeTokenAudience {
		t.Errorf("for no audience: %v", err)
	}
}

// A provider that answers without end is away.
func TestEndlessAnswers(t *testing.T) {
	var srv *httptest.Server
	var sent atomic.Int64
	srv = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/keys" {
			_ = json.NewEncoder(w).Encode(map[string]any{
				"issuer": srv.URL, "authorization_endpoint": srv.URL, "token_endpoint": srv.URL, "jwks_uri": srv.URL + "/keys",
				"id_token_signing_alg_values_supported": []string{"ES256"},
			})
			return
		}
		_, _ = io.WriteString(w, `{"keys": [`)
		for block := strings.Repeat(" ", 64<<10); ; {
			n, err := io.WriteString(w, block)
			if sent.Add(int64(n)); err != nil {
				return
			}
		}
	}))
	t.Cleanup(srv.Close)
	idp := oidctest.New(t)
	p := oidc.New(srv.URL, nil)
	_, err := p.Verify(t.Context(), idp.Sign(idp.Claims("cay", map[string]any{"iss": srv.URL})), "cay")
	if code(t, err) != cay.CodeProviderDown {
		t.Errorf("after %d bytes: %v", sent.Load(), err)
	}
}

// A key that the provider has made since is read when a token names it; tokens
// of a key that it withdrew are taken for an hour at most.
func TestKeysOfProvidersChange(t *testing.T) {
	idp := oidctest.New(t)
	p := oidc.New(idp.URL, nil)
	verify := func() error {
		_, err := p.Verify(t.Context(), idp.Sign(idp.Claims("cay", nil)), "cay")
		return err
	}
	if err := verify(); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := verify(); err != nil {
			t.Fatal(err)
		}
	}
	if n := idp.Asked.Load(); n != 1 {
		t.Errorf("the keys were read %d times", n)
	}
	for range 100 { // the read before may not have ended in all its parts
		idp.Rotate()
		if err := verify(); err != nil {
			t.Errorf("after a change of the key: %v", err)
		}
	}
}

// A provider that is away gives an answer that says so, not one that blames the
// token, and is asked again later.
func TestProviderDown(t *testing.T) {
	idp := oidctest.New(t)
	idp.Down.Store(true)
	p := oidc.New(idp.URL, nil)
	var wg sync.WaitGroup
	for range 5 {
		wg.Go(func() {
			_, err := p.Verify(t.Context(), idp.Sign(idp.Claims("cay", nil)), "cay")
			if cay.KindOf(err) != cay.Unavailable || code(t, err) != cay.CodeProviderDown {
				t.Errorf("got %v", err)
			}
		})
	}
	wg.Wait()
	idp.Down.Store(false)
	p = oidc.New(idp.URL, nil)
	if _, err := p.Verify(t.Context(), idp.Sign(idp.Claims("cay", nil)), "cay"); err != nil {
		t.Fatal(err)
	}
	idp.Down.Store(true) // what is known goes on working; an unknown key cannot be read
	if _, err := p.Verify(t.Context(), idp.Sign(idp.Claims("cay", nil)), "cay"); err != nil {
		t.Errorf("with keys that are known: %v", err)
	}
	idp.Rotate()
	if _, err := p.Verify(t.Context(), idp.Sign(idp.Claims("cay", nil)), "cay"); code(t, err) != cay.CodeProviderDown {
		t.Errorf("with a key that is not: %v", err)
	}
}

func TestIssuerOf(t *testing.T) {
	idp := oidctest.New(t)
	if got, err := oidc.IssuerOf(idp.Sign(idp.Claims("x", nil))); got != idp.URL || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	for _, text := range []string{"", "..", "a.b.c", "a.e30.c", strings.Repeat("a.", 20<<10)} {
		if got, err := oidc.IssuerOf(text); err == nil {
			t.Errorf("%.20q: %q", text, got)
		}
	}
}
