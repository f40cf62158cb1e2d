package rest_test

import (
	"slices"
	"strings"
	"testing"
	"time"
)

func TestTeamsAndKeys(t *testing.T) {
	w := newWorld(t, "")
	teams := want[[]object](t, w.call("GET", "/teams", ""), 200)
	if len(teams) != 1 || teams[0]["teamID"] != string(w.team.ID) || teams[0]["name"] != w.team.Name || teams[0]["apiKey"] != w.key || teams[0]["isDefault"] != true {
		t.Errorf("teams are %v", teams)
	}
	made := want[object](t, w.call("POST", "/api-keys", `{"name":"ci"}`), 201)
	key := made["key"].(string)
	want[[]object](t, w.callAs(key, "GET", "/sandboxes", ""), 200)
	list := w.call("GET", "/api-keys", "")
	keys := want[[]object](t, list, 200)
	mask := keys[1]["mask"].(object)
	if len(keys) != 2 || keys[1]["name"] != "ci" || keys[1]["key"] != nil || strings.Contains(list.text, key) ||
		mask["prefix"] != "e2b_" || mask["valueLength"] != 40.0 ||
		!strings.HasPrefix(key, "e2b_"+mask["maskedValuePrefix"].(string)) || !strings.HasSuffix(key, mask["maskedValueSuffix"].(string)) {
		t.Errorf("keys are %v", keys)
	}
	path := "/api-keys/" + made["id"].(string)
	wantError(t, w.callAs(w.other, "PATCH", path, `{"name":"theirs"}`), 404, "not found")
	wantError(t, w.call("PATCH", path, `{"name":" "}`), 400, "name")
	want[any](t, w.call("PATCH", path, `{"name":"renamed"}`), 200)
	if keys := want[[]object](t, w.call("GET", "/api-keys", ""), 200); keys[1]["name"] != "renamed" {
		t.Errorf("keys are %v", keys)
	}
	want[[]object](t, w.callAs(key, "GET", "/sandboxes", ""), 200) // it opens what it did
	wantError(t, w.callAs(w.other, "DELETE", path, ""), 404, "not found")
	want[any](t, w.call("DELETE", path, ""), 204)
	wantError(t, w.call("DELETE", path, ""), 404, "not found")
	wantError(t, w.callAs(key, "GET", "/sandboxes", ""), 401, "key")
	for _, body := range []string{`{}`, `{"name":" "}`, `{"name":"a\u0000b"}`, `{"name":"` + strings.Repeat("x", 129) + `"}`} {
		wantError(t, w.call("POST", "/api-keys", body), 400, "name")
	}
}

func TestTeamMetrics(t *testing.T) {
	w := newWorld(t, "")
	w.create(`{"templateID":"base"}`)
	w.create(`{"templateID":"base"}`)
	path := "/teams/" + string(w.team.ID) + "/metrics"
	list := want[[]object](t, w.call("GET", path, ""), 200)
	started := func(m object) bool { return m["sandboxStartRate"].(float64) > 0 }
	if len(list) == 0 || list[len(list)-1]["concurrentSandboxes"] != 2.0 || !slices.ContainsFunc(list, started) {
		t.Fatalf("got %v", list)
	}
	if at, err := time.Parse(time.RFC3339, list[0]["timestamp"].(string)); err != nil || at.Before(w.team.CreatedAt.Truncate(time.Second)) {
		t.Errorf("the team is of %s, and its samples begin with %v", w.team.CreatedAt, list[0])
	}
	if most := want[object](t, w.call("GET", path+"/max?metric=concurrent_sandboxes", ""), 200); most["value"] != 2.0 {
		t.Errorf("at most %v", most)
	}
	if none := want[[]object](t, w.call("GET", path+"?start=1&end=2", ""), 200); len(none) != 0 {
		t.Errorf("long ago: %v", none)
	}
	wantError(t, w.call("GET", path+"/max?metric=x", ""), 400, "metric")
	wantError(t, w.call("GET", path+"?start=9&end=2", ""), 400, "start")
	wantError(t, w.callAs(w.other, "GET", path, ""), 403, "not yours")
}
