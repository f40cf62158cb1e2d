package server_test

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/client"
	"github.com/cay-run/cay/internal/server/servertest"
)

// A team from its first day to its last: made with a key, renamed, disabled,
// enabled, removed with all that it has, while another team notices nothing.
func TestTeamsLife(t *testing.T) {
	w := servertest.Start(t)
	ctx := t.Context()
	admin := w.Admin("")
	team, err := admin.CreateTeam(ctx, "blue")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := admin.CreateTeam(ctx, "blue"); cay.KindOf(err) != cay.Conflict || cay.CodeOf(err) != cay.CodeNameTaken {
		t.Errorf("a second team of the name: %v", err)
	}
	for _, name := range []string{"", "Blue", "a/b", "-a", "x y", strings.Repeat("x", 64), string(cay.NewTeamID()), "blaü"} {
		if _, err := admin.CreateTeam(ctx, name); cay.KindOf(err) != cay.Invalid {
			t.Errorf("a team called %q: %v", name, err)
		}
	}
	key, err := w.Admin("blue").CreateAPIKey(ctx, client.NewAPIKey{Name: "first"})
	if err != nil {
		t.Fatal(err)
	}
	blue := w.ClientOf(key.Key)
	box, err := blue.Create(ctx, client.CreateOptions{Timeout: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	paused, err := blue.Create(ctx, client.CreateOptions{Timeout: time.Hour})
	if err := errors.Join(err, blue.Pause(ctx, paused.ID)); err != nil {
		t.Fatal(err)
	}
	belongingsOf(t, w, key.Key, box.ID)
	ours, err := w.Client().Create(ctx, client.CreateOptions{Timeout: time.Hour})
	if err != nil {
		t.Fatal(err)
	}

	if _, err := admin.RenameTeam(ctx, team.ID, "default"); cay.CodeOf(err) != cay.CodeNameTaken {
		t.Errorf("renamed to a name that is taken: %v", err)
	}
	if got, err := admin.RenameTeam(ctx, "blue", "navy"); err != nil || got.Name != "navy" || got.ID != team.ID {
		t.Errorf("renamed: %+v, %v", got, err)
	}
	got, err := admin.DisableTeam(ctx, "navy", false)
	if err != nil || !got.Disabled || got.DisabledAt == nil {
		t.Errorf("disabled: %+v, %v", got, err)
	}
	if _, err := blue.List(ctx); cay.CodeOf(err) != cay.CodeTeamDisabled {
		t.Errorf("its key: %v", err)
	}
	if list, err := w.Admin("navy").List(ctx); err != nil || len(list) != 2 {
		t.Errorf("the operator sees %v, %v", list, err)
	}
	if got, err := admin.DisableTeam(ctx, "navy", true); err != nil || got.Disabled {
		t.Errorf("enabled: %+v, %v", got, err)
	}
	if _, err := blue.List(ctx); err != nil {
		t.Errorf("its key after that: %v", err)
	}

	err = admin.RemoveTeam(ctx, "navy", false)
	if cay.CodeOf(err) != cay.CodeTeamNotEmpty || !strings.Contains(err.Error(), "1 running sandboxes, 1 paused sandboxes, 2 templates and snapshots, 1 API keys, 1 secrets") {
		t.Errorf("removed though it has things: %v", err)
	}
	if err := admin.RemoveTeam(ctx, "navy", true); err != nil {
		t.Fatal(err)
	}
	if _, err := blue.List(ctx); cay.KindOf(err) != cay.Unauthenticated || cay.CodeOf(err) != "" {
		t.Errorf("its key after its end: %v", err)
	}
	if _, err := admin.Team(ctx, team.ID); cay.KindOf(err) != cay.NotFound {
		t.Errorf("it is still there: %v", err)
	}
	if err := admin.RemoveTeam(ctx, "default", true); cay.KindOf(err) != cay.Conflict {
		t.Errorf("the first team was removed: %v", err)
	}
	if _, err := admin.CreateTeam(ctx, "navy"); err != nil {
		t.Errorf("its name is not free: %v", err)
	}
	if list, err := w.Client().List(ctx); err != nil || len(list) != 1 || list[0].ID != ours.ID {
		t.Errorf("the other team has %v, %v", list, err)
	}
}

// belongingsOf gives a team a template, a snapshot and a secret.
func belongingsOf(t *testing.T, w *servertest.World, key, sandbox string) {
	t.Helper()
	for _, one := range [][2]string{
		{"/v3/templates", `{"name":"mine"}`}, {"/sandboxes/" + sandbox + "/snapshots", `{"name":"saved"}`},
		{"/secrets", `{"name":"S","value":"v"}`}, {"/cay/v1/sandboxes/" + sandbox + "/checkpoints", `{}`},
	} {
		if code, text := call(t, w, key, "POST", one[0], one[1]); code/100 != 2 {
			t.Fatalf("%s: %d %s", one[0], code, text)
		}
	}
}

// send sends a request with headers and returns the answer.
func send(t *testing.T, w *servertest.World, header map[string]string, method, path, body string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, w.URL()+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	for name, value := range header {
		req.Header.Set(name, value)
	}
	tr := &http.Transport{}
	defer tr.CloseIdleConnections()
	resp, err := tr.RoundTrip(req)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	defer resp.Body.Close()
	saysRetry(t, method+" "+path, resp)
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

// A person has in each team the role of a member there, by one access token; a
// team keeps an owner, and roles are given by those who have as much.
func TestPeople(t *testing.T) {
	w := servertest.Start(t)
	ctx := t.Context()
	admin, ours := w.Admin(""), w.Admin("default")
	if _, err := admin.CreateTeam(ctx, "blue"); err != nil {
		t.Fatal(err)
	}
	blue := w.Admin("blue")
	ann, err := ours.AddMember(ctx, " Ann@Example.com", "Ann", "owner")
	if err != nil || ann.Email != "ann@example.com" {
		t.Fatalf("%+v, %v", ann, err)
	}
	again, err := blue.AddMember(ctx, "ann@example.com", "another name", "viewer")
	if err != nil || again.ID != ann.ID || again.Name != "Ann" {
		t.Fatalf("the same person in another team is %+v, %v", again, err)
	}
	if _, err := blue.AddMember(ctx, "ann@example.com", "", "developer"); cay.KindOf(err) != cay.Conflict {
		t.Errorf("twice in a team: %v", err)
	}
	for _, bad := range [][2]string{{"", "viewer"}, {"x", "viewer"}, {"Ann <a@b.c>", "viewer"}, {"b@c.d", "boss"}, {"b@c.d", ""}} {
		if _, err := blue.AddMember(ctx, bad[0], "", bad[1]); cay.KindOf(err) != cay.Invalid {
			t.Errorf("%v: %v", bad, err)
		}
	}
	token, err := admin.CreateTokenFor(ctx, ann.ID, "laptop")
	if err != nil {
		t.Fatal(err)
	}
	as := func(team string) map[string]string {
		return map[string]string{"Authorization": "Bearer " + token.Token, "X-Team-ID": team}
	}
	for _, one := range []struct {
		team, method, path, body string
		code                     int
		text                     string
	}{
		{"", "GET", "/teams", "", 200, `"name":"blue"`},
		{"", "GET", "/v2/sandboxes", "", 400, "X-Team-ID"},
		{"default", "GET", "/v2/sandboxes", "", 200, ""},
		{"default", "POST", "/api-keys", `{"name":"anns"}`, 201, `"email":"ann@example.com"`},
		{"blue", "GET", "/v2/sandboxes", "", 200, ""},
		{"blue", "POST", "/sandboxes", `{"templateID":"base"}`, 403, "sandboxes:write"},
		{"blue", "GET", "/api-keys", "", 403, "keys:read"},
		{"none", "GET", "/v2/sandboxes", "", 404, "not found"},
		{"default", "DELETE", "/cay/v1/members/" + ann.ID, "", 409, "last_owner"},
		{"default", "PATCH", "/cay/v1/members/" + ann.ID, `{"role":"viewer"}`, 409, "last_owner"},
		{"blue", "GET", "/cay/v1/admin/teams", "", 403, "admin"},
		{"", "POST", "/access-tokens", `{"name":"second"}`, 201, `"token":"sk_e2b_`},
		{"", "GET", "/cay/v1/access-tokens", "", 200, "laptop"},
	} {
		if code, text := send(t, w, as(one.team), one.method, one.path, one.body); code != one.code || !strings.Contains(text, one.text) {
			t.Errorf("in %q %s %s: %d %s", one.team, one.method, one.path, code, text)
		}
	}
	if code, text := call(t, w, w.Key, "POST", "/access-tokens", `{"name":"x"}`); code != 403 || !strings.Contains(text, cay.CodePeopleOnly) {
		t.Errorf("an access token for a key: %d %s", code, text)
	}
	// A key of the team does not make owners, and an owner does.
	if _, err := w.Client().AddMember(ctx, "bob@example.com", "", "owner"); cay.CodeOf(err) != cay.CodeOwnersOnly {
		t.Errorf("an owner by a key: %v", err)
	}
	if code, text := send(t, w, as("default"), "POST", "/cay/v1/members", `{"email":"bob@example.com","role":"owner"}`); code != 201 {
		t.Errorf("an owner by an owner: %d %s", code, text)
	}
	if code, text := send(t, w, as("default"), "PATCH", "/cay/v1/members/"+ann.ID, `{"role":"admin"}`); code != 204 {
		t.Errorf("one of two owners: %d %s", code, text)
	}
	if code, text := send(t, w, as("default"), "POST", "/cay/v1/members", `{"email":"cyd@example.com","role":"owner"}`); code != 403 || !strings.Contains(text, cay.CodeOwnersOnly) {
		t.Errorf("an owner by an admin: %d %s", code, text)
	}
	small, err := w.Client().CreateAPIKey(ctx, client.NewAPIKey{Name: "small", Scopes: []string{"keys:read", "keys:write"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.ClientOf(small.Key).AddMember(ctx, "cyd@example.com", "", "viewer"); cay.CodeOf(err) != cay.CodeScope || !strings.Contains(err.Error(), "sandboxes:read") {
		t.Errorf("a member who may more than the key: %v", err)
	}
	if code, text := send(t, w, as(""), "DELETE", "/access-tokens/"+token.ID, ""); code != 204 {
		t.Errorf("removing it: %d %s", code, text)
	}
	if code, text := send(t, w, as(""), "GET", "/teams", ""); code != 401 {
		t.Errorf("a removed token: %d %s", code, text)
	}
}

// A key that is kept to a template and to metadata makes sandboxes of nothing
// else, in none of the ways there are, and a key that it makes is kept as well.
func TestBoundsOfAKey(t *testing.T) {
	w := servertest.Start(t)
	ctx := t.Context()
	kept, err := w.Client().CreateAPIKey(ctx, client.NewAPIKey{Name: "kept", Templates: []string{"base"}, Metadata: map[string]string{"app": "x"}})
	if err != nil {
		t.Fatal(err)
	}
	other, err := w.Client().Create(ctx, client.CreateOptions{Template: "code-interpreter-python", Timeout: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	said, err := w.Client().Create(ctx, client.CreateOptions{Timeout: time.Hour, Metadata: map[string]string{"app": "y"}})
	if err != nil {
		t.Fatal(err)
	}
	sandbox := func(key, body string) (code int, text, id string) {
		code, text = call(t, w, key, "POST", "/sandboxes", body)
		var box struct{ SandboxID string }
		_ = json.Unmarshal([]byte(text), &box)
		return code, text, box.SandboxID
	}
	code, text, mine := sandbox(kept.Key, `{"templateID":"base","metadata":{"a":"b"}}`)
	if code != 201 {
		t.Fatalf("%d %s", code, text)
	}
	if _, text := call(t, w, kept.Key, "GET", "/sandboxes/"+mine, ""); !strings.Contains(text, `"app":"x"`) || !strings.Contains(text, `"a":"b"`) {
		t.Errorf("its metadata: %s", text)
	}
	taken := made(t, w, "POST", "/sandboxes/"+mine+"/snapshots", `{"name":"taken"}`, "snapshotID")
	checkpoint := made(t, w, "POST", "/cay/v1/sandboxes/"+other.ID+"/checkpoints", `{}`, "checkpointID")
	build := made(t, w, "POST", "/v3/templates", `{"name":"built"}`, "buildID")
	for _, one := range []struct {
		path, body string
		code       int
	}{
		{"/sandboxes", `{"templateID":"code-interpreter-python"}`, 403},
		{"/sandboxes", `{"templateID":"base","metadata":{"app":"y"}}`, 403},
		{"/sandboxes", `{"templateID":"` + taken + `"}`, 403},
		{"/sandboxes", `{"templateID":"base:default","metadata":{"app":"x"}}`, 201},
		{"/sandboxes/" + mine + "/fork", `{}`, 201},
		{"/sandboxes/" + other.ID + "/fork", `{}`, 403},
		{"/sandboxes/" + said.ID + "/fork", `{}`, 403},
		{"/cay/v1/checkpoints/" + checkpoint + "/fork", `{}`, 403},
		{"/v2/templates/built/builds/" + build, `{"fromTemplate":"code-interpreter-python"}`, 403},
		{"/cay/v1/api-keys", `{"name":"more","templates":["code-interpreter-python"]}`, 403},
		{"/cay/v1/api-keys", `{"name":"more","metadata":{"app":"y"}}`, 403},
		{"/api-keys", `{"name":"same"}`, 201},
	} {
		code, text := call(t, w, kept.Key, "POST", one.path, one.body)
		if code != one.code || code == 403 && !strings.Contains(text, cay.CodeBounds) {
			t.Errorf("%s %s: %d %s", one.path, one.body, code, text)
		}
	}
	same, err := w.Client().APIKeys(ctx)
	if err != nil || same[len(same)-1].Name != "same" || same[len(same)-1].Metadata["app"] != "x" || len(same[len(same)-1].Templates) != 1 {
		t.Errorf("the key that it made: %+v, %v", same, err)
	}
}

// A key makes none that may more, or lasts longer.
func TestAKeyMakesNoGreaterKey(t *testing.T) {
	w := servertest.Start(t)
	ctx := t.Context()
	end := time.Now().Add(time.Hour).UTC().Truncate(time.Second)
	small, err := w.Client().CreateAPIKey(ctx, client.NewAPIKey{Name: "small", Scopes: []string{"keys:write", "sandboxes:read"}, ExpiresAt: &end})
	if err != nil {
		t.Fatal(err)
	}
	late := end.Add(time.Minute).Format(time.RFC3339)
	for _, one := range []struct {
		method, path, body string
		code               int
		holds              string
	}{
		{"POST", "/cay/v1/api-keys", `{"name":"a","scopes":["sandboxes:write"]}`, 403, "sandboxes:write"},
		{"POST", "/cay/v1/api-keys", `{"name":"a","scopes":["owner"]}`, 403, "sandboxes:write"},
		{"POST", "/cay/v1/api-keys", `{"name":"a","scopes":["admin"]}`, 403, "admin"},
		{"POST", "/cay/v1/api-keys", `{"name":"a","scopes":["sandbox"]}`, 400, "scopes are"},
		{"POST", "/cay/v1/api-keys", `{"name":"a","expiresAt":"` + late + `"}`, 403, "expires at"},
		{"POST", "/cay/v1/api-keys", `{"name":"a","expiresAt":"2020-01-01T00:00:00Z"}`, 400, "not ahead"},
		{"POST", "/cay/v1/api-keys", `{"name":"a","scopes":["sandboxes:read"]}`, 201, end.Format(time.RFC3339)},
		{"POST", "/api-keys", `{"name":"b"}`, 201, "e2b_"},
		{"PATCH", "/cay/v1/api-keys/" + small.ID, `{"neverExpires":true}`, 403, "expires at"},
		{"PATCH", "/cay/v1/api-keys/" + small.ID, `{"expiresAt":"` + late + `"}`, 403, "expires at"},
	} {
		if code, text := call(t, w, small.Key, one.method, one.path, one.body); code != one.code || !strings.Contains(text, one.holds) {
			t.Errorf("%s %s: %d %s", one.path, one.body, code, text)
		}
	}
	// A key of before scopes may all that there is in its team, and not make an operator of itself.
	if code, text := call(t, w, w.Key, "POST", "/cay/v1/api-keys", `{"name":"a","scopes":["admin"]}`); code != 403 || !strings.Contains(text, "all teams") {
		t.Errorf("an operator's key by a team's: %d %s", code, text)
	}
	list, err := w.Client().APIKeys(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range list {
		if k.CreatedBy == small.ID && (strings.Join(k.Scopes, " ") != "sandboxes:read" && strings.Join(k.Scopes, " ") != "sandboxes:read keys:write" || k.ExpiresAt == nil || !k.ExpiresAt.Equal(end)) {
			t.Errorf("it made %+v", k)
		}
	}
}

// The operator's routes of E2B's: what runs is counted and ended team by team,
// and a machine that is drained takes nothing new.
func TestOperatorsRoutes(t *testing.T) {
	w := servertest.Start(t)
	ctx := t.Context()
	token, err := w.Operator().AdminToken(ctx)
	if err != nil {
		t.Fatal(err)
	}
	blue, err := w.Admin("").CreateTeam(ctx, "blue")
	if err != nil {
		t.Fatal(err)
	}
	as := func(method, path, body string) (int, string) {
		return send(t, w, map[string]string{"X-Admin-Token": token}, method, path, body)
	}
	answers := func(method, path, body string, want int, holds string) string {
		t.Helper()
		code, text := as(method, path, body)
		if code != want || !strings.Contains(text, holds) {
			t.Errorf("%s %s: %d %s", method, path, code, text)
		}
		return text
	}
	var made struct{ ID, Key string }
	if err := json.Unmarshal([]byte(answers("POST", "/admin/teams/"+blue.ID+"/api-keys", `{"name":"first"}`, 201, "e2b_")), &made); err != nil {
		t.Fatal(err)
	}
	theirs, ours := w.ClientOf(made.Key), w.Client()
	for range 3 {
		if _, err := theirs.Create(ctx, client.CreateOptions{Timeout: time.Hour}); err != nil {
			t.Fatal(err)
		}
	}
	paused, err := theirs.Create(ctx, client.CreateOptions{Timeout: time.Hour})
	if err := errors.Join(err, theirs.Pause(ctx, paused.ID)); err != nil {
		t.Fatal(err)
	}
	mine, err := ours.Create(ctx, client.CreateOptions{Timeout: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	answers("GET", "/admin/sandboxes/running-counts", "", 200, `"`+blue.ID+`":3`)
	answers("GET", "/nodes", "", 200, `"sandboxCount":4`)
	answers("GET", "/nodes/local", "", 200, `"createSuccesses":5`)
	answers("GET", "/nodes/other", "", 404, "not found")
	answers("POST", "/nodes/local", `{"status":"standby"}`, 400, "status")
	answers("POST", "/nodes/local", `{"status":"draining"}`, 204, "")
	answers("GET", "/nodes/local", "", 200, `"status":"draining"`)
	if _, err := ours.Create(ctx, client.CreateOptions{Timeout: time.Hour}); cay.CodeOf(err) != cay.CodeCapacity {
		t.Errorf("a create on a drained machine: %v", err)
	}
	if code, text := call(t, w, w.Key, "POST", "/sandboxes/"+mine.ID+"/fork", `{}`); !strings.Contains(text, "drains") {
		t.Errorf("a fork on a drained machine: %d %s", code, text)
	}
	if code, text := call(t, w, made.Key, "POST", "/sandboxes/"+paused.ID+"/connect", `{"timeout":60}`); code/100 != 2 {
		t.Errorf("a resume on a drained machine: %d %s", code, text)
	}
	answers("POST", "/nodes/local", `{"status":"ready"}`, 204, "")
	if err := theirs.Pause(ctx, paused.ID); err != nil {
		t.Fatal(err)
	}
	answers("POST", "/admin/teams/"+blue.ID+"/sandboxes/kill", "", 200, `{"failedCount":0,"killedCount":3}`)
	answers("POST", "/admin/teams/"+blue.ID+"/sandboxes/kill", "", 200, `"killedCount":0`)
	answers("POST", "/admin/teams/none/sandboxes/kill", "", 404, "not found")
	answers("POST", "/admin/teams/blue/builds/cancel", "", 200, `"cancelledCount":0`)
	if list, err := theirs.List(ctx); err != nil || len(list) != 1 || list[0].ID != paused.ID {
		t.Errorf("left are %v, %v", list, err)
	}
	if list, err := ours.List(ctx); err != nil || len(list) != 1 {
		t.Errorf("the other team has %v, %v", list, err)
	}
	answers("DELETE", "/admin/teams/blue/api-keys/"+made.ID, "", 204, "")
	answers("DELETE", "/admin/teams/blue/api-keys/"+made.ID, "", 404, "not found")
	if _, err := theirs.List(ctx); cay.KindOf(err) != cay.Unauthenticated {
		t.Errorf("a removed key: %v", err)
	}
	// A restart ends no draining: its operator may have asked for it before one.
	answers("POST", "/nodes/local", `{"status":"draining"}`, 204, "")
	w.Stop()
	w.Start()
	answers("GET", "/nodes/local", "", 200, `"status":"draining"`)
	if _, err := w.Client().Create(ctx, client.CreateOptions{Timeout: time.Hour}); cay.CodeOf(err) != cay.CodeCapacity {
		t.Errorf("a create after a restart: %v", err)
	}
	answers("POST", "/nodes/local", `{"status":"ready"}`, 204, "")
	if _, err := w.Client().Create(ctx, client.CreateOptions{Timeout: time.Hour}); err != nil {
		t.Errorf("a create on a machine that is ready again: %v", err)
	}
}
