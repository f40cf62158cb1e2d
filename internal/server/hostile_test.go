package server_test

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/crypto/ssh"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/client"
	"github.com/cay-run/cay/internal/server/servertest"
)

// stranger makes a team and returns a key of it.
func stranger(t *testing.T, w *servertest.World) client.APIKey {
	t.Helper()
	if _, err := w.Admin("").CreateTeam(t.Context(), "stranger"); err != nil {
		t.Fatal(err)
	}
	key, err := w.Admin("stranger").CreateAPIKey(t.Context(), client.NewAPIKey{Name: "k"})
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// A team that opens as many streams of events as it can leaves room for others,
// and gets it back when it closes one.
func TestNoTeamHasAllStreams(t *testing.T) {
	w := servertest.Start(t)
	theirs := stranger(t, w).Key
	tr := &http.Transport{}
	defer tr.CloseIdleConnections()
	open := func(key string) *http.Response {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), "GET", w.URL()+"/cay/v1/events?after=-1", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("X-API-Key", key)
		r.Header.Set("Accept", "text/event-stream")
		resp, err := tr.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { resp.Body.Close() })
		return resp
	}
	for i := range 501 {
		resp := open(theirs)
		if i < 500 && resp.StatusCode != 200 {
			t.Fatalf("the stream %d is refused: %d", i, resp.StatusCode)
		}
		if i == 500 && (resp.StatusCode != http.StatusTooManyRequests || resp.Header.Get("Should-Retry") != "true" || resp.Header.Get("Retry-After") == "") {
			t.Errorf("one too many: %d %v", resp.StatusCode, resp.Header)
		}
	}
	if resp := open(w.Key); resp.StatusCode != 200 {
		t.Errorf("another team gets none: %d", resp.StatusCode)
	}
}

// Links to the console that a team makes and does not use cost others none; the
// oldest of its own go.
func TestNoTeamHasAllConsoleLinks(t *testing.T) {
	w := servertest.Start(t)
	theirs := stranger(t, w).Key
	link := func(key string) string {
		t.Helper()
		code, text := call(t, w, key, "POST", "/cay/v1/console-links", "{}")
		var out struct{ Code string }
		if err := json.Unmarshal([]byte(text), &out); err != nil || code != http.StatusCreated {
			t.Fatalf("%d %s", code, text)
		}
		return out.Code
	}
	ours, first := link(w.Key), link(theirs)
	var last string
	for range 100 {
		last = link(theirs)
	}
	for what, one := range map[string]struct {
		code  string
		opens bool
	}{"of another team": {ours, true}, "the oldest": {first, false}, "the newest": {last, true}} {
		if _, status, text := opened(t, w, "code", one.code); (status == http.StatusCreated) != one.opens {
			t.Errorf("%s: %d %s", what, status, text)
		}
	}
}

// SSH keys, budgets and webhooks of a team are counted exactly, however many
// callers ask at once.
func TestCountsAreExact(t *testing.T) {
	w := servertest.Start(t)
	sshKey := func(int) string {
		public, _, err := ed25519.GenerateKey(rand.Reader)
		if err != nil {
			t.Error(err)
		}
		key, err := ssh.NewPublicKey(public)
		if err != nil {
			t.Error(err)
		}
		text, _ := json.Marshal(map[string]string{"name": "k", "publicKey": strings.TrimSpace(string(ssh.MarshalAuthorizedKey(key)))})
		return string(text)
	}
	for path, one := range map[string]struct {
		most int
		code string
		body func(i int) string
	}{
		"/cay/v1/ssh-keys": {100, cay.CodeTeamLimit, sshKey},
		"/cay/v1/budgets":  {100, cay.CodeTeamLimit, func(int) string { return `{"meter":"creates","limit":"5","period":"day"}` }},
		"/events/webhooks": {cay.MaxWebhooks, cay.CodeWebhookLimit, func(int) string {
			return `{"name":"a","url":"https://127.1/","enabled":false,"events":["sandbox.lifecycle.created"],"signatureSecret":"a secret"}`
		}},
	} {
		var made, refused atomic.Int32
		var all sync.WaitGroup
		for c := range 10 {
			all.Go(func() {
				for i := range one.most/10 + 3 {
					code, text := call(t, w, w.Key, "POST", path, one.body(c*100+i))
					switch {
					case code == http.StatusCreated:
						made.Add(1)
					case code == http.StatusTooManyRequests && strings.Contains(text, one.code):
						refused.Add(1)
					default:
						t.Errorf("%s: %d %s", path, code, text)
					}
				}
			})
		}
		all.Wait()
		if int(made.Load()) != one.most || refused.Load() != 30 {
			t.Errorf("%s: %d were made of %d, %d refused", path, made.Load(), one.most, refused.Load())
		}
	}
	// A budget that is refused leaves no label that is metered.
	code, text := call(t, w, w.Key, "POST", "/cay/v1/budgets", `{"meter":"creates","limit":"5","period":"day","metadata":{"left":"x"}}`)
	if labels, err := w.Client().UsageLabels(t.Context()); code != http.StatusTooManyRequests || err != nil || len(labels) > 0 {
		t.Errorf("%d %s: %v, %v", code, text, labels, err)
	}
}

// Names that look or fold alike are one name or none: no team, person or secret
// takes another's place.
func TestNamesThatCollide(t *testing.T) {
	w := servertest.Start(t)
	ctx := t.Context()
	admin := w.Admin("")
	if _, err := admin.CreateTeam(ctx, "kelvin"); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"Kelvin", "\u212aelvin", "kelvin ", " kelvin", "kelv\u0131n", "\u043aelvin", "kelvin\u200b", "kelvin\x00", "kelvin/x", "..", strings.Repeat("k", 64), ""} {
		if _, err := admin.CreateTeam(ctx, name); cay.KindOf(err) != cay.Invalid {
			t.Errorf("a team %q: %v", name, err)
		}
	}
	if _, err := admin.CreateTeam(ctx, "kelvin"); cay.CodeOf(err) != cay.CodeNameTaken {
		t.Errorf("a name that is taken: %v", err)
	}
	if _, err := admin.CreateTeam(ctx, "other"); err != nil {
		t.Fatal(err)
	}
	if _, err := admin.RenameTeam(ctx, "other", "kelvin"); cay.CodeOf(err) != cay.CodeNameTaken {
		t.Errorf("renamed to a name that is taken: %v", err)
	}
	ours := w.Admin("default")
	if _, err := ours.AddMember(ctx, "kate@example.com", "", "viewer"); err != nil {
		t.Fatal(err)
	}
	for _, email := range []string{"\u212aate@example.com", "kate@\u212aexample.com", "\u043aate@example.com", "kate\u200b@example.com", "ka\u0301te@example.com", "kate@example.com\r\nX: y", "kate+\"@example.com"} {
		if _, err := ours.AddMember(ctx, email, "", "viewer"); cay.KindOf(err) != cay.Invalid {
			t.Errorf("a person %q: %v", email, err)
		}
	}
	if _, err := ours.AddMember(ctx, " KATE@Example.COM ", "", "viewer"); cay.CodeOf(err) != cay.CodeNameTaken {
		t.Errorf("in other letters: %v", err)
	}
	if code, text := call(t, w, w.Key, "POST", "/secrets", `{"name":"TOKEN","value":"x"}`); code != http.StatusCreated {
		t.Fatal(code, text)
	}
	for name, want := range map[string]int{"token": 409, "\u212aey": 400, "tok\u0435n": 400, "to ken": 400} {
		if code, text := call(t, w, w.Key, "POST", "/secrets", fmt.Sprintf(`{"name":%q,"value":"x"}`, name)); code/100 != 4 || want == 409 && code != 409 {
			t.Errorf("a secret %q: %d %s", name, code, text)
		}
	}
}

// Headers that come twice, or contradict each other, open no more than the least of
// them.
func TestTricksWithHeaders(t *testing.T) {
	w := servertest.Start(t)
	theirs := stranger(t, w)
	teams, err := w.Admin("").Teams(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ours := teams[0].ID
	box, err := w.Client().Create(t.Context(), client.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ask := func(path string, h http.Header) int {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), "GET", w.URL()+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header = h
		tr := &http.Transport{}
		defer tr.CloseIdleConnections()
		resp, err := tr.RoundTrip(r)
		if err != nil {
			return 400
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	wrong := "e2b_" + strings.Repeat("0", 40)
	for what, h := range map[string]http.Header{
		"another team by id":              {"X-Api-Key": {theirs.Key}, "X-Team-Id": {ours}},
		"another team by name":            {"X-Api-Key": {theirs.Key}, "X-Team-Id": {"default"}},
		"two teams":                       {"X-Api-Key": {theirs.Key}, "X-Team-Id": {"stranger", "default"}},
		"an empty token of the operator":  {"X-Api-Key": {theirs.Key}, "X-Admin-Token": {""}, "X-Team-Id": {"default"}},
		"a wrong token of the operator":   {"X-Api-Key": {w.Key}, "X-Admin-Token": {"x"}},
		"a wrong key before the right":    {"X-Api-Key": {wrong, w.Key}},
		"two keys in one line":            {"X-Api-Key": {theirs.Key + "," + w.Key}},
		"a key with a space":              {"X-Api-Key": {w.Key + " x"}},
		"a wrong key beside a bearer":     {"X-Api-Key": {wrong}, "Authorization": {"Bearer " + w.Key}},
		"another's key beside a bearer":   {"X-Api-Key": {theirs.Key}, "Authorization": {"Bearer " + w.Key}},
		"a bearer of no key":              {"Authorization": {"Basic " + w.Key}},
		"the path of another":             {"X-Api-Key": {theirs.Key}, "X-Original-Url": {"/health"}, "X-Rewrite-Url": {"/health"}},
		"a method of another":             {"X-Api-Key": {theirs.Key}, "X-Http-Method-Override": {"DELETE"}},
		"an address that is trusted":      {"X-Forwarded-For": {"127.0.0.1"}, "Forwarded": {"for=127.0.0.1"}},
		"a key in a cookie":               {"Cookie": {"X-API-Key=" + w.Key}},
		"a sandbox's id beside its route": {"X-Api-Key": {theirs.Key}, "X-Sandbox-Id": {box.ID}},
	} {
		if code := ask("/sandboxes/"+box.ID, h); code != 401 && code != 404 && code != 400 {
			t.Errorf("%s: %d", what, code)
		}
	}
	for _, path := range []string{"//sandboxes/" + box.ID, "/./sandboxes/" + box.ID, "/x/../sandboxes/" + box.ID, "/SANDBOXES/" + box.ID, "/health/../sandboxes/" + box.ID, "/health/%2e%2e/sandboxes/" + box.ID, "/sandboxes/" + strings.ToUpper(box.ID), "/sandboxes/" + box.ID + "%00", "/sandboxes/" + box.ID + "/"} {
		if code := ask(path, http.Header{"X-Api-Key": {theirs.Key}}); code/100 == 2 {
			t.Errorf("%s of another team: %d", path, code)
		}
		if code := ask(path, http.Header{}); code/100 == 2 {
			t.Errorf("%s without a key: %d", path, code)
		}
	}
}

// Metadata is bounded before anything is made of it.
func TestHugeMetadata(t *testing.T) {
	w := servertest.Start(t)
	key := stranger(t, w)
	many := map[string]string{}
	for i := range 65 {
		many[fmt.Sprint("k", i)] = "v"
	}
	for what, metadata := range map[string]map[string]string{
		"many": many, "a long value": {"a": strings.Repeat("x", 17<<10)}, "a long name": {strings.Repeat("x", 17<<10): "a"}, "long letters": {"a": strings.Repeat("\u20ac", 6<<10)},
	} {
		text, err := json.Marshal(metadata)
		if err != nil {
			t.Fatal(err)
		}
		for path, body := range map[string]string{
			"/sandboxes":       `{"templateID":"base","metadata":` + string(text) + `}`,
			"/v2/sandboxes":    `{"templateID":"base","metadata":` + string(text) + `}`,
			"/cay/v1/api-keys": `{"name":"k","metadata":` + string(text) + `}`,
			"/secrets":         `{"name":"S","value":"v","metadata":` + string(text) + `}`,
		} {
			if code, said := call(t, w, key.Key, "POST", path, body); code != 400 {
				t.Errorf("%s of %s: %d %.200s", what, path, code, said)
			}
		}
	}
	if list, err := w.ClientOf(key.Key).List(t.Context()); err != nil || len(list) > 0 {
		t.Errorf("it left %v, %v", list, err)
	}
}
