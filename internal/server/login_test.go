package server_test

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/auth/oidc/oidctest"
	"github.com/cay-run/cay/internal/server/servertest"
)

const loginURL = "http://api.cay.test"

// office is a server at whose provider people log in.
type office struct {
	t   *testing.T
	w   *servertest.World
	idp *oidctest.Provider
}

func newOffice(t *testing.T) *office {
	t.Helper()
	o := &office{t, servertest.New(t), oidctest.New(t)}
	o.start(o.idp.URL)
	return o
}

// start starts the server with a provider.
func (o *office) start(issuer string) {
	t := o.t
	t.Helper()
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte(oidctest.Secret+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := &o.w.Config
	c.PublicURL, c.OIDCIssuer, c.OIDCClientID, c.OIDCClientSecretFile = loginURL, issuer, oidctest.ClientID, secret
	c.OIDCRules = []string{"group:platform -> team default as admin", "email:*@example.com -> team default as viewer", "email:*@zitadel.ch -> team default as viewer", "group:ops -> team nowhere as owner"}
	c.OIDCDomains = []string{"example.com", "partner.example", "zitadel.ch"}
	o.w.Start()
}

func ann(more map[string]any) map[string]any {
	out := map[string]any{"sub": "ann", "email": "Ann@example.com", "email_verified": true, "name": "Ann", "groups": []string{"platform"}}
	for name, v := range more {
		out[name] = v
	}
	return out
}

// browser is a person's, with cookies of its own. Every name of the server
// leads to it.
func (o *office) browser() *http.Client {
	jar, _ := cookiejar.New(nil) // never fails
	to := strings.TrimPrefix(o.w.URL(), "http://")
	tr := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		if strings.HasPrefix(address, "api.cay.test:") {
			address = to
		}
		return new(net.Dialer).DialContext(ctx, network, address)
	}}
	return &http.Client{Jar: jar, Transport: tr, CheckRedirect: func(r *http.Request, _ []*http.Request) error {
		if r.URL.Host == "console.cay.localhost:0" { // nothing is there
			return http.ErrUseLastResponse
		}
		return nil
	}}
}

// open has a browser open an address, and returns the page that it ends at.
func (o *office) open(b *http.Client, address string) (int, string) {
	o.t.Helper()
	resp, err := b.Get(address)
	if err != nil {
		o.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		o.t.Fatal(err)
	}
	if to := resp.Header.Get("Location"); to != "" {
		return resp.StatusCode, to
	}
	return resp.StatusCode, string(text)
}

// program is one that logs a person in.
type program struct {
	o                       *office
	verifier, id, url, code string
}

func (o *office) begin(back string) *program {
	o.t.Helper()
	p := &program{o: o, verifier: rand.Text()}
	sum := sha256.Sum256([]byte(p.verifier))
	body, _ := json.Marshal(map[string]string{"challenge": base64.RawURLEncoding.EncodeToString(sum[:]), "return": back})
	code, text := call(o.t, o.w, "", "POST", "/cay/v1/logins", string(body))
	var got struct{ LoginID, URL, Code string }
	if err := json.Unmarshal([]byte(text), &got); code != http.StatusCreated || err != nil {
		o.t.Fatalf("begin: %d %s", code, text)
	}
	p.id, p.url, p.code = got.LoginID, got.URL, got.Code
	return p
}

func (p *program) redeem(verifier, ticket string) (int, map[string]any) {
	p.o.t.Helper()
	body, _ := json.Marshal(map[string]string{"verifier": verifier, "ticket": ticket})
	code, text := call(p.o.t, p.o.w, "", "POST", "/cay/v1/logins/"+p.id+"/session", string(body))
	var out map[string]any
	if err := json.Unmarshal([]byte(text), &out); err != nil {
		p.o.t.Fatalf("redeem: %d %s", code, text)
	}
	return code, out
}

var proof = regexp.MustCompile(`name="proof" value="([^"]+)"`)

// answer says yes or no to the question of a page.
func (o *office) answer(b *http.Client, page, say string) (int, string) {
	o.t.Helper()
	m := proof.FindStringSubmatch(page)
	if m == nil {
		o.t.Fatalf("no question: %s", page)
	}
	resp, err := b.PostForm(loginURL+"/cay/v1/login/answer", url.Values{"proof": {m[1]}, "answer": {say}})
	if err != nil {
		o.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text)
}

// login logs a person in to the end, and returns the session's token.
func (o *office) login(claims map[string]any) string {
	o.t.Helper()
	o.idp.LogIn(claims)
	p, b := o.begin(""), o.browser()
	_, page := o.open(b, p.url)
	o.answer(b, page, "yes")
	code, got := p.redeem(p.verifier, "")
	if code != http.StatusCreated {
		o.t.Fatalf("%d %v", code, got)
	}
	return got["token"].(string)
}

// once sends a request over a connection of its own.
var once = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

// as asks with a session.
func (o *office) as(session, method, path, body string) (int, string) {
	o.t.Helper()
	req, err := http.NewRequestWithContext(o.t.Context(), method, o.w.URL()+path, strings.NewReader(body))
	if err != nil {
		o.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+session)
	req.Header.Set("Content-Type", "application/json")
	resp, err := once.Do(req)
	if err != nil {
		o.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text)
}

// A person logs in for a program: at the provider, then by saying that the code
// is the program's. The session acts with the role that the rules give.
func TestLogin(t *testing.T) {
	o := newOffice(t)
	o.idp.LogIn(ann(nil))
	p, b := o.begin(""), o.browser()
	status, page := o.open(b, p.url)
	if status != http.StatusOK || !strings.Contains(page, p.code) || !strings.Contains(page, "ann@example.com") {
		t.Fatalf("%d %s", status, page)
	}
	if status, text := o.answer(b, page, "yes"); status != http.StatusOK || !strings.Contains(text, "logged in") {
		t.Fatalf("%d %s", status, text)
	}
	status, got := p.redeem(p.verifier, "")
	token, _ := got["token"].(string)
	if status != http.StatusCreated || !strings.HasPrefix(token, "cay_session_") {
		t.Fatalf("%d %v", status, got)
	}
	if status, _ := p.redeem(p.verifier, ""); status != http.StatusNotFound {
		t.Errorf("a second session of one login: %d", status)
	}
	if status, text := o.as(token, "GET", "/cay/v1/me", ""); status != http.StatusOK || !strings.Contains(text, `"role":"admin"`) {
		t.Errorf("me: %d %s", status, text)
	}
	if status, text := o.as(token, "POST", "/sandboxes", `{"templateID":"base","timeout":60}`); status != http.StatusCreated {
		t.Errorf("a create: %d %s", status, text)
	}
	if status, text := o.as(token, "GET", "/cay/v1/sessions", ""); status != http.StatusOK || strings.Count(text, `"id"`) != 1 || !strings.Contains(text, `"current":true`) || strings.Contains(text, token) {
		t.Errorf("sessions: %d %s", status, text)
	}
	if status, _ := o.as(token, "POST", "/cay/v1/logout", ""); status != http.StatusNoContent {
		t.Errorf("logout: %d", status)
	}
	if status, text := o.as(token, "GET", "/cay/v1/me", ""); status != http.StatusUnauthorized || !strings.Contains(text, cay.CodeSessionEnded) {
		t.Errorf("after logout: %d %s", status, text)
	}
}

// Roles follow the provider at each login: a group that is gone takes its role
// along, and a role that was given by hand stays.
func TestRolesFollowTheProvider(t *testing.T) {
	o := newOffice(t)
	role := func(session string) string {
		_, text := o.as(session, "GET", "/cay/v1/me", "")
		return regexp.MustCompile(`"role":"(\w+)"`).FindString(text)
	}
	first := o.login(ann(nil))
	if role(first) != `"role":"admin"` {
		t.Errorf("with the group: %s", role(first))
	}
	second := o.login(ann(map[string]any{"groups": []string{}}))
	if role(second) != `"role":"viewer"` || role(first) != `"role":"viewer"` {
		t.Errorf("without it: %s, %s", role(second), role(first))
	}
	if status, _ := o.as(first, "POST", "/sandboxes", `{"templateID":"base"}`); status != http.StatusForbidden {
		t.Errorf("the older session may still create: %d", status)
	}
	// Out of every rule: the person loses the membership, and is told so.
	o.idp.LogIn(ann(map[string]any{"email": "ann@partner.example", "groups": nil}))
	p, b := o.begin(""), o.browser()
	if status, page := o.open(b, p.url); status != http.StatusForbidden || !strings.Contains(page, "no rule") {
		t.Errorf("%d %s", status, page)
	}
	if status, got := p.redeem(p.verifier, ""); status != http.StatusForbidden || got["error_code"] != cay.CodeLoginRefused {
		t.Errorf("%d %v", status, got)
	}
	if status, text := o.as(first, "GET", "/sandboxes", ""); status/100 == 2 {
		t.Errorf("a session without a team: %d %s", status, text)
	}
	if code, text := call(t, o.w, o.w.Key, "POST", "/cay/v1/members", `{"email":"bob@partner.example","role":"developer"}`); code != http.StatusCreated {
		t.Fatalf("%d %s", code, text)
	}
	bob := o.login(map[string]any{"sub": "bob", "email": "bob@partner.example", "email_verified": true, "groups": []string{"platform"}})
	if role(bob) != `"role":"developer"` {
		t.Errorf("given by hand: %s", role(bob))
	}
}

// A person who may not log in is told why, and gets no record.
func TestLoginRefuses(t *testing.T) {
	o := newOffice(t)
	for name, tc := range map[string]struct {
		claims map[string]any
		text   string
	}{
		"an address that is not verified":        {ann(map[string]any{"email_verified": false}), "not verified"},
		"one that nothing is said of":            {ann(map[string]any{"email_verified": nil}), "not verified"},
		"no address":                             {ann(map[string]any{"email": nil}), "no e-mail"},
		"a domain that is not allowed":           {ann(map[string]any{"email": "ann@else.example"}), "may not log in"},
		"a domain that ends like an allowed one": {ann(map[string]any{"email": "ann@evilexample.com"}), "may not log in"},
		"no rule":                                {ann(map[string]any{"email": "ann@partner.example", "groups": []string{"ops"}}), "no rule"},
	} {
		o.idp.LogIn(tc.claims)
		p, b := o.begin(""), o.browser()
		if status, page := o.open(b, p.url); status != http.StatusForbidden || !strings.Contains(page, tc.text) {
			t.Errorf("%s: %d %s", name, status, page)
		}
	}
	if code, text := call(t, o.w, o.w.Key, "GET", "/cay/v1/members", ""); code != http.StatusOK || strings.Contains(text, "ann") {
		t.Errorf("members: %d %s", code, text)
	}
	o.login(ann(nil))
	// The address is another account's at the provider now.
	o.idp.LogIn(ann(map[string]any{"sub": "mallory"}))
	p, b := o.begin(""), o.browser()
	if status, page := o.open(b, p.url); status != http.StatusForbidden || !strings.Contains(page, "another account") {
		t.Errorf("an address that changed hands: %d %s", status, page)
	}
}

// Mixed up parts of logins come to nothing: states, nonces, browsers, issuers,
// programs, answers.
func TestLoginMixups(t *testing.T) {
	o := newOffice(t)
	o.idp.LogIn(ann(nil))
	callback := func(b *http.Client, query string) (int, string) {
		return o.open(b, loginURL+"/cay/v1/login/callback?"+query)
	}
	stranger := o.browser()
	if status, _ := callback(stranger, "state=x&code=y"); status != http.StatusNotFound {
		t.Errorf("an unknown state: %d", status)
	}
	if status, _ := callback(stranger, "code=y"); status != http.StatusNotFound {
		t.Errorf("no state: %d", status)
	}
	// halfway has a browser stop before it comes back, and returns what it would come back with.
	halfway := func(p *program) (*http.Client, string) {
		b := o.browser()
		var back string
		b.CheckRedirect = func(r *http.Request, _ []*http.Request) error {
			if r.URL.Path == "/cay/v1/login/callback" {
				back = r.URL.RawQuery
				return http.ErrUseLastResponse
			}
			return nil
		}
		o.open(b, p.url)
		return b, back
	}
	p := o.begin("")
	_, back := halfway(p)
	if status, page := callback(stranger, back); status != http.StatusUnauthorized || !strings.Contains(page, "another browser") {
		t.Errorf("another browser: %d %s", status, page)
	}
	p = o.begin("")
	b, back := halfway(p)
	if status, page := callback(b, back+"&iss=https%3A%2F%2Fevil.example"); status != http.StatusUnauthorized || !strings.Contains(page, "another provider") {
		t.Errorf("another issuer: %d %s", status, page)
	}
	if status, got := p.redeem(p.verifier, ""); status != http.StatusUnauthorized || got["error_code"] != cay.CodeLoginFailed {
		t.Errorf("and then: %d %v", status, got)
	}
	p = o.begin("")
	b, back = halfway(p)
	b.CheckRedirect = nil
	if status, _ := callback(b, back); status != http.StatusOK {
		t.Errorf("in time: %d", status)
	}
	if status, _ := callback(b, back); status != http.StatusNotFound {
		t.Errorf("a second time: %d", status)
	}
	o.idp.Spoil(func(c map[string]any) { c["nonce"] = "another" })
	p = o.begin("")
	if status, page := o.open(o.browser(), p.url); status != http.StatusUnauthorized || !strings.Contains(page, "another login") {
		t.Errorf("another nonce: %d %s", status, page)
	}
	o.idp.Spoil(func(c map[string]any) { c["aud"] = "another" })
	p = o.begin("")
	if status, _ := o.open(o.browser(), p.url); status != http.StatusUnauthorized {
		t.Errorf("another audience: %d", status)
	}
	o.idp.Spoil(nil)

	p = o.begin("")
	b = o.browser()
	_, page := o.open(b, p.url)
	if status, got := p.redeem("wrong", ""); status != http.StatusNotFound || got["error_code"] != cay.CodeLoginUnknown {
		t.Errorf("another program: %d %v", status, got)
	}
	m := proof.FindStringSubmatch(page)
	req, _ := http.NewRequest("POST", loginURL+"/cay/v1/login/answer", strings.NewReader(url.Values{"proof": {m[1]}, "answer": {"yes"}}.Encode()))
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("Sec-Fetch-Site", "cross-site")
	resp, err := b.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusForbidden {
		t.Errorf("an answer from another site: %d", resp.StatusCode)
	}
	if status, _ := o.answer(stranger, page, "yes"); status != http.StatusUnauthorized {
		t.Errorf("an answer of another browser: %d", status)
	}
	if status, _ := o.answer(b, page, "no"); status != http.StatusOK {
		t.Errorf("no: %d", status)
	}
	if status, got := p.redeem(p.verifier, ""); status != http.StatusUnauthorized || got["error_code"] != cay.CodeLoginFailed {
		t.Errorf("after a no: %d %v", status, got)
	}
}

// Browsers go back to pages of the console and nowhere else, with a ticket that
// is of use to the page alone that has begun.
func TestLoginReturns(t *testing.T) {
	o := newOffice(t)
	for _, back := range []string{
		"https://evil.example/", "//evil.example", "/\\evil.example", "/sandboxes", "javascript:alert(1)", "https://console.cay.localhost:0.evil.example",
		"https://console.cay.localhost:0@evil.example/", "http://api.cay.test/s/ix/3000/",
	} {
		body, _ := json.Marshal(map[string]string{"challenge": strings.Repeat("A", 43), "return": back})
		if code, text := call(t, o.w, "", "POST", "/cay/v1/logins", string(body)); code != http.StatusBadRequest {
			t.Errorf("%s: %d %s", back, code, text)
		}
	}
	o.idp.LogIn(ann(nil))
	p := o.begin("https://console.cay.localhost:0/login")
	status, to := o.open(o.browser(), p.url)
	_, ticket, _ := strings.Cut(to, "&ticket=")
	if status != http.StatusSeeOther || !strings.HasPrefix(to, "https://console.cay.localhost:0/login#login="+p.id) || ticket == "" {
		t.Fatalf("%d %s", status, to)
	}
	for name, wrong := range map[string]string{"no ticket": "", "another": "x"} {
		if status, _ := p.redeem(p.verifier, wrong); status != http.StatusNotFound {
			t.Errorf("%s: %d", name, status)
		}
	}
	if status, got := p.redeem(p.verifier, ticket); status != http.StatusCreated {
		t.Errorf("%d %v", status, got)
	}
}

// A provider that is away has logins answered with 503; keys and sessions go on
// working. A disabled person has nothing at once.
func TestSessionsGoOn(t *testing.T) {
	o := newOffice(t)
	session := o.login(ann(nil))
	o.w.Stop()
	o.idp.Down.Store(true)
	o.w.Start()
	if status, text := o.as(session, "GET", "/sandboxes", ""); status != http.StatusOK {
		t.Errorf("a session: %d %s", status, text)
	}
	if code, _ := call(t, o.w, o.w.Key, "GET", "/sandboxes", ""); code != http.StatusOK {
		t.Errorf("a key: %d", code)
	}
	p := o.begin("")
	if status, page := o.open(o.browser(), p.url); status != http.StatusServiceUnavailable || !strings.Contains(page, "go on working") {
		t.Errorf("a login: %d %s", status, page)
	}
	for _, wrong := range []string{"cay_session_" + strings.Repeat("0", 64), "cay_session_x"} {
		if status, _ := o.as(wrong, "GET", "/sandboxes", ""); status != http.StatusUnauthorized {
			t.Errorf("%s: %d", wrong, status)
		}
	}

	_, text := o.as(session, "GET", "/cay/v1/me", "")
	var me struct{ ID string }
	if err := json.Unmarshal([]byte(text), &me); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	req, _ := http.NewRequestWithContext(ctx, "GET", o.w.URL()+"/cay/v1/events", nil)
	req.Header.Set("Authorization", "Bearer "+session)
	req.Header.Set("Accept", "text/event-stream")
	stream, err := once.Do(req)
	if err != nil || stream.StatusCode != http.StatusOK {
		t.Fatalf("%v, %v", stream, err)
	}
	defer stream.Body.Close()
	token, err := o.w.Operator().AdminToken(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	admin, _ := http.NewRequest("PATCH", o.w.URL()+"/cay/v1/admin/people/"+me.ID, strings.NewReader(`{"disabled":true}`))
	admin.Header.Set("X-Admin-Token", token)
	admin.Header.Set("Content-Type", "application/json")
	resp, err := once.Do(admin)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("disabled: %d", resp.StatusCode)
	}
	if _, err := io.Copy(io.Discard, stream.Body); ctx.Err() != nil {
		t.Errorf("the stream goes on: %v", err)
	}
	if status, _ := o.as(session, "GET", "/sandboxes", ""); status != http.StatusForbidden {
		t.Errorf("a disabled person's session: %d", status)
	}
}
