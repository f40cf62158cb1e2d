package server_test

import (
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/zitadel/oidc/v3/example/server/storage"
	"github.com/zitadel/oidc/v3/pkg/op"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/auth/oidc/oidctest"
	"github.com/cay-run/cay/internal/server/servertest"
)

// A person logs in at a certified provider of others, which tells the address at
// its UserInfo endpoint alone.
func TestLoginAtARealProvider(t *testing.T) {
	o := &office{t: t, w: servertest.New(t)}
	var handler http.Handler
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { handler.ServeHTTP(w, r) }))
	defer srv.Close()
	clients := map[string]*storage.Client{
		oidctest.ClientID: storage.WebClient(oidctest.ClientID, oidctest.Secret, loginURL+"/cay/v1/login/callback"),
	}
	people := storage.NewStorageWithClients(storage.NewUserStore(srv.URL), clients)
	provider, err := op.NewProvider(&op.Config{CodeMethodS256: true}, people, op.StaticIssuer(srv.URL),
		op.WithAllowInsecure(), op.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		t.Fatal(err)
	}
	back := op.AuthCallbackURL(provider)
	mux := http.NewServeMux()
	mux.Handle("/", provider)
	mux.Handle("/login/", op.NewIssuerInterceptor(provider.IssuerFromRequest).HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id := r.FormValue("authRequestID") // the page that asks for a name and a password
		if err := people.CheckUsernamePassword("test-user@127.0.0.1", "verysecure", id); err != nil {
			http.Error(w, err.Error(), http.StatusForbidden)
			return
		}
		http.Redirect(w, r, back(r.Context(), id), http.StatusFound)
	}))
	handler = mux
	o.start(srv.URL)

	p, b := o.begin(""), o.browser()
	code, page := o.open(b, p.url)
	if code != http.StatusOK || !strings.Contains(page, "test-user@zitadel.ch") {
		t.Fatalf("%d %s", code, page)
	}
	if code, text := o.answer(b, page, "yes"); code != http.StatusOK {
		t.Fatalf("%d %s", code, text)
	}
	code, got := p.redeem(p.verifier, "")
	if code != http.StatusCreated {
		t.Fatalf("%d %v", code, got)
	}
	session := got["token"].(string)
	for _, one := range []struct {
		method, path, body string
		code               int
	}{
		{"GET", "/v2/sandboxes", "", 200}, {"POST", "/sandboxes", `{"templateID":"base"}`, 403}, {"GET", "/cay/v1/sessions", "", 200},
		{"POST", "/cay/v1/logout", "", 204}, {"GET", "/v2/sandboxes", "", 401},
	} {
		if code, text := o.as(session, one.method, one.path, one.body); code != one.code {
			t.Errorf("%s %s: %d %s", one.method, one.path, code, text)
		}
	}
}

// Claims that a provider tells at its UserInfo endpoint are added to those of the
// ID token, and take the place of none. Half an answer logs no person in.
func TestUserInfo(t *testing.T) {
	all := &office{t, servertest.New(t), oidctest.New(t)}
	all.idp.Tell(func(map[string]any) (int, any) { return http.StatusInternalServerError, nil })
	all.start(all.idp.URL)
	for what, one := range map[string]struct {
		token  map[string]any // its claims besides the subject
		status int
		info   map[string]any
		code   int
		holds  string
	}{
		"all of it is there": {nil, 200, map[string]any{"sub": "ann", "email": "ann@example.com", "email_verified": true, "groups": []string{"platform"}}, 201, ""},
		"as text":            {nil, 200, map[string]any{"sub": "ann", "email": "ann@example.com", "email_verified": "true"}, 201, ""},
		"groups alone": {map[string]any{"email": "ann@example.com", "email_verified": true}, 200,
			map[string]any{"sub": "ann", "groups": []string{"platform"}}, 201, ""},
		"the token's address counts": {map[string]any{"email": "ann@example.com", "email_verified": true}, 200,
			map[string]any{"sub": "ann", "email": "bob@example.com", "email_verified": true}, 201, ""},
		"verified is another address": {map[string]any{"email": "ann@example.com"}, 200,
			map[string]any{"sub": "ann", "email": "bob@example.com", "email_verified": true}, 0, "not verified"},
		"not verified":         {nil, 200, map[string]any{"sub": "ann", "email": "ann@example.com", "email_verified": false}, 0, "not verified"},
		"another person":       {nil, 200, map[string]any{"sub": "bob", "email": "bob@example.com", "email_verified": true}, 0, "another person"},
		"no person":            {nil, 200, map[string]any{"email": "ann@example.com", "email_verified": true}, 0, "another person"},
		"an error":             {map[string]any{"email": "ann@example.com", "email_verified": true}, 500, map[string]any{}, 0, "does not answer"},
		"an error that blames": {map[string]any{"email": "ann@example.com", "email_verified": true}, 401, map[string]any{}, 0, "does not answer"},
		"nothing is lacking":   {map[string]any{"email": "ann@example.com", "email_verified": true, "groups": []string{}}, 500, map[string]any{}, 201, ""},
		"letters that fold":    {nil, 200, map[string]any{"sub": "ann", "email": "\u212aate@example.com", "email_verified": true}, 0, "no e-mail address"},
	} {
		t.Run(what, func(t *testing.T) {
			o := &office{t, all.w, all.idp}
			o.idp.Tell(func(map[string]any) (int, any) { return one.status, one.info })
			claims := map[string]any{"sub": "ann"}
			maps.Copy(claims, one.token)
			o.idp.LogIn(claims)
			p, b := o.begin(""), o.browser()
			resp, err := b.Get(p.url)
			if err != nil {
				t.Fatal(err)
			}
			text, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if err != nil {
				t.Fatal(err)
			}
			page := string(text)
			if one.code == 0 {
				if resp.StatusCode < 400 || !strings.Contains(page, one.holds) {
					t.Errorf("%d %s", resp.StatusCode, page)
				}
				return
			}
			if !strings.Contains(page, "ann@example.com") {
				t.Fatalf("%d %s", resp.StatusCode, page)
			}
			o.answer(b, page, "yes")
			code, got := p.redeem(p.verifier, "")
			if code != one.code {
				t.Fatalf("%d %v", code, got)
			}
			want := http.StatusForbidden // a viewer, by the address
			if one.info["groups"] != nil {
				want = http.StatusCreated
			}
			if code, text := o.as(got["token"].(string), "POST", "/api-keys", `{"name":"k"}`); code != want || want == 403 && !strings.Contains(text, cay.CodeScope) {
				t.Errorf("what the role may: %d %s", code, text)
			}
		})
	}
}
