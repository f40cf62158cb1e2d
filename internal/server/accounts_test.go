package server_test

import (
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
