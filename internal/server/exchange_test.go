package server_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/client"
	"github.com/cay-run/cay/internal/auth/oidc/oidctest"
	"github.com/cay-run/cay/internal/server/servertest"
)

// withExchange starts a server that takes tokens of a CI's.
func withExchange(t *testing.T, ci *oidctest.Provider) *servertest.World {
	t.Helper()
	w := servertest.New(t)
	rule := cay.ExchangeRule{
		Issuer: ci.URL, Audience: "https://cay.example", Team: "default", Scopes: []string{"sandboxes:read", "sandboxes:write"}, Lifetime: 10 * time.Minute,
		Claims: map[string]string{"repository": "acme/*", "ref_protected": "true"},
	}
	other := rule
	other.Team, other.Claims = "ci", map[string]string{"repository": "acme/app"}
	w.Config.TokenExchange = []cay.ExchangeRule{rule, other}
	w.Start()
	return w
}

var job = map[string]any{"repository": "acme/app", "ref_protected": "true", "sub": "repo:acme/app:ref:refs/heads/main"}

// exchange asks for a key, and returns the answer's status and fields.
func exchange(t *testing.T, w *servertest.World, token string) (int, map[string]any) {
	t.Helper()
	body, _ := json.Marshal(map[string]string{"token": token})
	status, text := call(t, w, "", http.MethodPost, "/cay/v1/token-exchange", string(body))
	var out map[string]any
	if err := json.Unmarshal([]byte(text), &out); err != nil {
		t.Fatalf("%d %s", status, text)
	}
	return status, out
}

// A job of a CI gets a key that does what the rule says and ends by itself; it
// is a key like others, so it is listed and can be removed.
func TestTokenExchange(t *testing.T) {
	ci := oidctest.New(t)
	w := withExchange(t, ci)
	token := ci.Sign(ci.Claims("https://cay.example", job))
	status, got := exchange(t, w, token)
	key, _ := got["key"].(string)
	ends, _ := time.Parse(time.RFC3339, got["expiresAt"].(string))
	if left := time.Until(ends); status != http.StatusCreated || key == "" || left > 10*time.Minute || left < 9*time.Minute {
		t.Fatalf("%d %v", status, got)
	}
	if code, text := call(t, w, key, http.MethodPost, "/sandboxes", `{"templateID":"base","timeout":60}`); code != http.StatusCreated {
		t.Errorf("a create with it: %d %s", code, text)
	}
	if code, text := call(t, w, key, http.MethodPost, "/secrets", `{"name":"A","value":"b"}`); code != http.StatusForbidden || !strings.Contains(text, "secrets:write") {
		t.Errorf("a secret with it: %d %s", code, text)
	}
	admin := cay.Caller{Scopes: cay.AllScopes, From: &cay.Origin{}}
	if ci := (cay.Caller{Scopes: cay.TeamScopes, From: &cay.Origin{}}); ci.Actor().Kind == cay.ActorAdmin || admin.Actor().Kind != cay.ActorAdmin {
		t.Error("records take a job for the operator")
	}
	if code, text := call(t, w, w.Key, http.MethodGet, "/cay/v1/api-keys", ""); code != http.StatusOK || !strings.Contains(text, "repo:acme/app:ref:refs/heads/main") || strings.Contains(text, key) {
		t.Errorf("listed: %d %s", code, text)
	}
	if status, got := exchange(t, w, token); status != http.StatusUnauthorized || got["error_code"] != cay.CodeTokenReplayed {
		t.Errorf("a second time: %d %v", status, got)
	}
	if code, text := call(t, w, w.Key, http.MethodDelete, "/cay/v1/api-keys/"+got["id"].(string), ""); code != http.StatusNoContent {
		t.Errorf("removed: %d %s", code, text)
	}
	if code, _ := call(t, w, key, http.MethodGet, "/sandboxes", ""); code != http.StatusUnauthorized {
		t.Errorf("after its removal: %d", code)
	}
}

// Two exchanges of one subject are one party: neither decides the other's requests.
func TestExchangesOfASubjectAreOneParty(t *testing.T) {
	ci := oidctest.New(t)
	w := servertest.New(t)
	w.Config.TokenExchange = []cay.ExchangeRule{{
		Issuer: ci.URL, Audience: "https://cay.example", Team: "default", Lifetime: 10 * time.Minute,
		Scopes: []string{"sandboxes:read", "sandboxes:write", "approvals:decide", "keys:write"},
		Claims: map[string]string{"repository": "acme/*"},
	}}
	w.Start()
	keyOf := func(subject string) string {
		t.Helper()
		claims := ci.Claims("https://cay.example", map[string]any{"repository": "acme/app", "sub": subject})
		status, got := exchange(t, w, ci.Sign(claims))
		key, _ := got["key"].(string)
		if status != http.StatusCreated || key == "" {
			t.Fatalf("%d %v", status, got)
		}
		return key
	}
	asker, same, other := keyOf("repo:acme/app:main"), keyOf("repo:acme/app:main"), keyOf("repo:acme/app:review")
	child, err := w.ClientOf(same).CreateAPIKey(t.Context(), client.NewAPIKey{Name: "child"})
	if err != nil {
		t.Fatal(err)
	}
	x := question(t, w.ClientOf(asker), client.NewApproval{})
	for what, key := range map[string]string{"itself": asker, "another of the subject": same, "a key of that one's": child.Key} {
		_, err := w.ClientOf(key).DecideApproval(t.Context(), x.ID, true, "", "")
		wantCode(t, what, err, cay.CodeApprovalOwn)
	}
	if _, err := w.ClientOf(other).DecideApproval(t.Context(), x.ID, true, "", ""); err != nil {
		t.Errorf("another subject: %v", err)
	}
}

// Each fault of a token has a code of its own, and makes no key.
func TestTokenExchangeRefuses(t *testing.T) {
	ci, other := oidctest.New(t), oidctest.New(t)
	w := withExchange(t, ci)
	sign := func(audience string, change map[string]any) string {
		claims := ci.Claims(audience, job)
		for name, v := range change {
			claims[name] = v
		}
		return ci.Sign(claims)
	}
	const us = "https://cay.example"
	ago := func(d time.Duration) int64 { return time.Now().Add(-d).Unix() }
	for name, tc := range map[string]struct {
		token  string
		status int
		code   string
	}{
		"over":                     {sign(us, map[string]any{"exp": ago(2 * time.Minute)}), 401, cay.CodeTokenExpired},
		"to come":                  {sign(us, map[string]any{"nbf": ago(-2 * time.Minute)}), 401, cay.CodeTokenEarly},
		"another audience":         {sign("https://else", nil), 401, cay.CodeTokenAudience},
		"another key":              {other.Sign(ci.Claims(us, job)), 401, cay.CodeTokenSignature},
		"an unknown issuer":        {other.Sign(other.Claims(us, job)), 401, cay.CodeTokenInvalid},
		"another repository":       {sign(us, map[string]any{"repository": "evil/app"}), 403, cay.CodeTokenRefused},
		"a longer name":            {sign(us, map[string]any{"repository": "acme"}), 403, cay.CodeTokenRefused},
		"an unprotected branch":    {sign(us, map[string]any{"ref_protected": "false", "repository": "acme/b"}), 403, cay.CodeTokenRefused},
		"a claim that is left out": {sign(us, map[string]any{"repository": nil}), 403, cay.CodeTokenRefused},
		"a team that is not there": {sign(us, map[string]any{"ref_protected": "no"}), 404, ""},
		"no token":                 {"x", 401, cay.CodeTokenInvalid},
		"nothing":                  {"", 401, cay.CodeTokenInvalid},
	} {
		status, got := exchange(t, w, tc.token)
		code, _ := got["error_code"].(string)
		if status != tc.status || code != tc.code {
			t.Errorf("%s: %d %v", name, status, got)
		}
	}
	ci.Down.Store(true)
	ci.Rotate()
	if status, got := exchange(t, w, sign(us, nil)); status != http.StatusServiceUnavailable || got["error_code"] != cay.CodeProviderDown {
		t.Errorf("away: %d %v", status, got)
	}
	if code, text := call(t, w, w.Key, http.MethodGet, "/api-keys", ""); code != http.StatusOK || strings.Count(text, `"id"`) != 1 {
		t.Errorf("keys go on working and are as many: %d %s", code, text)
	}
}

// Of many that bring one token at once, one gets a key; and an address that
// asks without end is told to wait.
func TestTokenExchangeAtOnce(t *testing.T) {
	ci := oidctest.New(t)
	w := withExchange(t, ci)
	token := ci.Sign(ci.Claims("https://cay.example", job))
	var won, replayed atomic.Int32
	var wg sync.WaitGroup
	for range 5 {
		wg.Go(func() {
			switch status, got := exchange(t, w, token); {
			case status == http.StatusCreated:
				won.Add(1)
			case got["error_code"] == cay.CodeTokenReplayed:
				replayed.Add(1)
			}
		})
	}
	wg.Wait()
	if won.Load() != 1 || replayed.Load() != 4 {
		t.Errorf("%d got a key, %d were refused", won.Load(), replayed.Load())
	}
	for range 1000 { // a minute may end meanwhile, and another begin
		status, got := exchange(t, w, "x")
		if status != http.StatusTooManyRequests {
			continue
		}
		if got["error_code"] != cay.CodeLoginRate {
			t.Errorf("too many: %v", got)
		}
		return
	}
	t.Error("an address may ask without end")
}
