package server_test

import (
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/client"
	"github.com/cay-run/cay/internal/server/servertest"
)

// scopes are those that x-scope of an operation names. Besides names of scopes it
// is none, for an operation that is open; any, for one that each credential may
// use; person, for one of the person who asks.
func (op operation) scopes(t *testing.T) (list []cay.Scopes) {
	t.Helper()
	if op.scope == "none" || op.scope == "any" || op.scope == "person" {
		return nil
	}
	for _, name := range strings.Fields(op.scope) {
		scope, err := cay.ScopesOf([]string{name})
		if err != nil || len(scope.Names()) != 1 {
			t.Fatalf("%s: x-scope %q is no scope: %v", op.id, name, err)
		}
		list = append(list, scope)
	}
	if len(list) == 0 {
		t.Fatalf("%s has no x-scope: name the scopes that it needs, or any, person or none", op.id)
	}
	return list
}

// gives are the scopes of the role that an operation gives away: a caller has
// those as well, or is refused.
var gives = map[string]cay.Scopes{
	"addMember":     cay.Viewer.Scopes(),
	"setMemberRole": cay.Viewer.Scopes(),
}

// keyring makes keys of the first team and of a stranger's as they are needed.
type keyring struct {
	t     *testing.T
	w     *servertest.World
	of    string // a team, by id
	known map[cay.Scopes]string
}

func (k *keyring) with(scopes cay.Scopes) string {
	k.t.Helper()
	if key, ok := k.known[scopes]; ok {
		return key
	}
	made, err := k.w.Admin(k.of).CreateAPIKey(k.t.Context(), client.NewAPIKey{Name: "ring", Scopes: scopes.Names()})
	if err != nil {
		k.t.Fatal(err)
	}
	k.known[scopes] = made.Key
	return made.Key
}

// voids makes credentials that open nothing any more, with the status and the
// code that each gets.
func voids(t *testing.T, w *servertest.World, team cay.TeamID) map[string]void {
	t.Helper()
	ctx, admin := t.Context(), w.Admin("")
	key := func(team string) client.APIKey {
		k, err := w.Admin(team).CreateAPIKey(ctx, client.NewAPIKey{Name: "void"})
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	for _, name := range []string{"disabled", "removed"} {
		if _, err := admin.CreateTeam(ctx, name); err != nil {
			t.Fatal(err)
		}
	}
	gone, ofDisabled, ofRemoved := key(string(team)), key("disabled"), key("removed")
	_, err := admin.DisableTeam(ctx, "disabled", false)
	err = errors.Join(err, w.Admin(string(team)).RemoveAPIKey(ctx, gone.ID), admin.RemoveTeam(ctx, "removed", true))
	if err != nil {
		t.Fatal(err)
	}
	return map[string]void{
		"a removed key":         {gone.Key, http.StatusUnauthorized, ""},
		"a removed team's key":  {ofRemoved.Key, http.StatusUnauthorized, ""},
		"a disabled team's key": {ofDisabled.Key, http.StatusForbidden, cay.CodeTeamDisabled},
	}
}

type void struct {
	key    string
	status int
	code   string
}

// Every operation of both contracts asks for the scopes that its x-scope names,
// and for no others; credentials that are over open none.
func TestScopesOfEveryOperation(t *testing.T) {
	w := servertest.Start(t)
	w.Stop()
	stranger, _ := w.AddTeam("stranger")
	expired := w.AddKey(cay.APIKey{Team: stranger.ID, Name: "old", ExpiresAt: time.Now().Add(-time.Minute)})
	w.Start()
	own := belongings(t, w)
	ours := &keyring{t, w, own["teamID"], map[cay.Scopes]string{}}
	theirs := &keyring{t, w, string(stranger.ID), map[cay.Scopes]string{}}
	over := voids(t, w, stranger.ID)
	over["an expired key"] = void{expired, http.StatusUnauthorized, cay.CodeKeyExpired}
	before := possessions(t, w)
	for _, op := range operations(t) {
		needed := op.scopes(t)
		path, body, _ := op.fill(own)
		if op.scope == "none" {
			continue
		}
		for what, v := range over {
			code, text := call(t, w, v.key, op.method, path, body)
			if code != v.status || strings.Contains(text, `"error_code"`) != (v.code != "") || !strings.Contains(text, v.code) {
				t.Errorf("%s with %s: %d %.200s", op.id, what, code, text)
			}
		}
		if op.scope == "person" {
			if code, text := call(t, w, ours.with(cay.TeamScopes), op.method, path, body); code != http.StatusForbidden || !strings.Contains(text, cay.CodePeopleOnly) {
				t.Errorf("%s with a key: %d %.200s", op.id, code, text)
			}
			continue
		}
		var all cay.Scopes
		for _, one := range needed {
			all |= one
			lacks(t, w, op, path, body, ours.with(cay.TeamScopes&^one), one)
		}
		if missing := all &^ cay.Viewer.Scopes(); missing != 0 {
			lacks(t, w, op, path, body, ours.with(cay.Viewer.Scopes()), missing)
		}
		// The stranger has none of what the operation names, so nothing is done to it.
		elsewhere := maps.Clone(own)
		elsewhere["teamID"], elsewhere["personID"] = string(cay.NewTeamID()), string(cay.NewPersonID())
		if strings.HasPrefix(op.id, "getTeamMetrics") {
			elsewhere["teamID"] = string(stranger.ID)
		}
		path, body, _ = op.fill(elsewhere)
		key := theirs.with(all | gives[op.id])
		if all == 0 {
			key = theirs.with(cay.ReadAudit)
		}
		if code, text := call(t, w, key, op.method, path, body); code == http.StatusForbidden || code == http.StatusUnauthorized || code >= 500 && code != http.StatusNotImplemented {
			t.Errorf("%s with %s alone: %d %.200s", op.id, op.scope, code, text)
		}
	}
	if after := possessions(t, w); ofTeam(after) != ofTeam(before) {
		t.Errorf("a caller without the scope changed something:\nbefore %s\nafter  %s", before, after)
	}
}

// ofTeam leaves out the lines of keys, which the test itself makes, and of prices,
// which are of all teams.
func ofTeam(text string) string {
	lines := slices.DeleteFunc(strings.Split(text, "\n"), func(l string) bool {
		return strings.HasPrefix(l, "/api-keys ") || strings.HasPrefix(l, "/cay/v1/prices ")
	})
	return strings.Join(lines, "\n")
}

// lacks checks that an operation is refused for a scope, and says so.
func lacks(t *testing.T, w *servertest.World, op operation, path, body, key string, missing cay.Scopes) {
	t.Helper()
	code, text := call(t, w, key, op.method, path, body)
	if code != http.StatusForbidden || !strings.Contains(text, `"error_code":"`+cay.CodeScope+`"`) || !strings.Contains(text, missing.String()) {
		t.Errorf("%s without %s: %d %.300s", op.id, missing, code, text)
	}
}

// Callers that may not go inside get no tokens, and no sandbox that needs none.
func TestTokensAreForThoseWhoMayGoInside(t *testing.T) {
	w := servertest.Start(t)
	keys := &keyring{t, w, "default", map[cay.Scopes]string{}}
	writer := keys.with(cay.ReadSandboxes | cay.WriteSandboxes)
	create := func(body string) string {
		code, text := call(t, w, writer, "POST", "/sandboxes", body)
		var box struct{ SandboxID string }
		if err := json.Unmarshal([]byte(text), &box); err != nil || code != http.StatusCreated || strings.Contains(text, "ccessToken") {
			t.Fatalf("created: %d %s", code, text)
		}
		return box.SandboxID
	}
	open := create(`{"templateID":"base","secure":false}`)
	if code, text := call(t, w, w.Key, "GET", "/sandboxes/"+open, ""); code != http.StatusOK || !strings.Contains(text, `"envdAccessToken":"`) {
		t.Errorf("it needs no token: %d %s", code, text)
	}
	id := create(`{"templateID":"base","secure":true,"network":{"allowPublicTraffic":false}}`)
	for _, one := range [][2]string{{"GET", "/sandboxes/" + id}, {"POST", "/sandboxes/" + id + "/connect"}, {"POST", "/v2/sandboxes/" + id + "/connect"}, {"POST", "/sandboxes/" + id + "/fork"}} {
		body := ""
		if one[0] == "POST" {
			body = `{"timeout":60}`
		}
		if code, text := call(t, w, writer, one[0], one[1], body); code/100 != 2 || strings.Contains(text, "ccessToken") {
			t.Errorf("%s: %d %s", one, code, text)
		}
		code, text := call(t, w, w.Key, one[0], one[1], body)
		if code/100 != 2 || !strings.Contains(text, `"envdAccessToken":"`) || one[0] == "POST" && !strings.Contains(text, `"trafficAccessToken":"`) {
			t.Errorf("%s by a key that may: %d %s", one, code, text)
		}
	}
}
