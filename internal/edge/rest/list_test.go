package rest_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control/fleet"
	"github.com/cay-run/cay/internal/edge/rest"
	"github.com/cay-run/cay/internal/store"
)

// sdkFilter writes a metadata filter as the SDKs do: escaped, as a query
// string, inside a query.
func sdkFilter(pairs ...string) string {
	inner := url.Values{}
	for i := 0; i < len(pairs); i += 2 {
		inner.Set(url.PathEscape(pairs[i]), url.PathEscape(pairs[i+1]))
	}
	return url.QueryEscape(inner.Encode())
}

func ids(list []object) (out []string) {
	for _, b := range list {
		out = append(out, b["sandboxID"].(string))
	}
	return out
}

func TestListPages(t *testing.T) {
	w := newWorld(t, "")
	if r := w.call("GET", "/v2/sandboxes", ""); strings.TrimSpace(r.text) != "[]" || r.header.Get("X-Total-Running") != "0" {
		t.Errorf("an empty list is %q, %v", r.text, r.header)
	}
	made := map[string]bool{}
	for i := range 7 {
		made[w.create(fmt.Sprintf(`{"templateID":"base","metadata":{"n":"%d"}}`, i))["sandboxID"].(string)] = true
	}
	for _, order := range []string{"asc", "desc"} {
		var seen []string
		token := ""
		for {
			r := w.call("GET", "/v2/sandboxes?limit=3&state=running%2Cpaused&order="+order+"&nextToken="+url.QueryEscape(token), "")
			seen = append(seen, ids(want[[]object](t, r, 200))...)
			if r.header.Get("X-Total-Running") != "7" {
				t.Errorf("X-Total-Running is %q", r.header.Get("X-Total-Running"))
			}
			if token = r.header.Get("X-Next-Token"); token == "" {
				break
			}
			other := map[string]string{"asc": "desc", "desc": "asc"}[order]
			wantError(t, w.call("GET", "/v2/sandboxes?order="+other+"&nextToken="+token, ""), 400, "nextToken")
		}
		slices.Sort(seen)
		if len(slices.Compact(seen)) != 7 {
			t.Errorf("%s: the pages hold %v", order, seen)
		}
		for _, id := range seen {
			if !made[id] {
				t.Errorf("%s: %s was never made", order, id)
			}
		}
	}
}

func TestListFilters(t *testing.T) {
	w := newWorld(t, "")
	odd := `{"templateID":"base","metadata":{"user name":"a&b=c+d%20ü","all":"1"}}`
	first := w.create(odd)["sandboxID"].(string)
	second := w.create(`{"templateID":"base","metadata":{"all":"1"}}`)["sandboxID"].(string)
	detail := want[object](t, w.call("GET", "/sandboxes/"+first, ""), 200)
	started := detail["startedAt"].(string)

	for query, wanted := range map[string][]string{
		"metadata=" + sdkFilter("all", "1"):                             {first, second},
		"metadata=" + sdkFilter("user name", "a&b=c+d%20ü", "all", "1"): {first},
		"metadata=" + sdkFilter("all", "2"):                             {},
		"metadata=all%3D1":                                              {first, second},
		"state=running":                                                 {first, second},
		"state=paused":                                                  {},
		"template=base":                                                 {first, second},
		"template=" + string(w.base.ID):                                 {first, second},
		"template=unknown":                                              {},
		"startedAfter=" + url.QueryEscape(started):                      {first, second},
		"startedAfter=" + url.QueryEscape("2999-01-01T00:00:00Z"):       {},
		"template=base&state=running&metadata=" + sdkFilter("user name", ""): {},
	} {
		got := ids(want[[]object](t, w.call("GET", "/v2/sandboxes?"+query, ""), 200))
		slices.Sort(got)
		slices.Sort(wanted)
		if !slices.Equal(got, wanted) {
			t.Errorf("%s finds %v, want %v", query, got, wanted)
		}
	}
	if got := ids(want[[]object](t, w.call("GET", "/sandboxes?metadata="+sdkFilter("user name", "a&b=c+d%20ü"), ""), 200)); !slices.Equal(got, []string{first}) {
		t.Errorf("v1 finds %v", got)
	}
	for query, field := range map[string]string{
		"limit=0": "limit", "limit=101": "limit", "limit=-5": "limit", "limit=x": "limit",
		"state=sleeping": "state", "order=up": "order", "nextToken=%21": "nextToken", "nextToken=aGk": "nextToken",
		"startedAfter=yesterday": "startedAfter", "template=base:x": "template", "metadata=%25zz": "metadata",
	} {
		wantError(t, w.call("GET", "/v2/sandboxes?"+query, ""), 400, field)
	}
}

func TestTemplates(t *testing.T) {
	w := newWorld(t, "")
	w.create(`{"templateID":"base"}`)
	for _, path := range []string{"/templates", "/v2/templates", "/v2/templates?limit=1", "/templates?teamID=" + string(w.team.ID)} {
		list := want[[]object](t, w.call("GET", path, ""), 200)
		if len(list) != 1 {
			t.Fatalf("%s: %v", path, list)
		}
		got := list[0]
		if got["templateID"] != string(w.base.ID) || got["buildStatus"] != "ready" || got["spawnCount"] != 1.0 ||
			fmt.Sprint(got["aliases"]) != "[base]" || fmt.Sprint(got["names"]) != "[default/base]" || got["public"] != true ||
			len(got["buildID"].(string)) != 36 || got["lastSpawnedAt"] == nil {
			t.Errorf("%s: %v", path, got)
		}
		if by, there := got["createdBy"]; !there || by != nil {
			t.Errorf("createdBy is %v, %v", by, there)
		}
	}
	for _, path := range []string{"/templates", "/v2/templates"} {
		wantError(t, w.call("GET", path+"?teamID=x", ""), 400, "teamID")
	}
	for _, path := range []string{"/v3/templates", "/v2/templates"} {
		wantError(t, w.call("POST", path, `{"name":"a","alias":"a","teamID":"x"}`), 400, "teamID")
	}
	wantError(t, w.call("GET", "/v2/templates?nextToken=x", ""), 400, "nextToken")

	for _, alias := range []string{"base", "BASE", "default%2Fbase", "base%3Adefault", string(w.base.ID)} {
		got := want[object](t, w.call("GET", "/templates/aliases/"+alias, ""), 200)
		if got["templateID"] != string(w.base.ID) || got["public"] != true {
			t.Errorf("%s: %v", alias, got)
		}
	}
	wantError(t, w.call("GET", "/templates/aliases/none", ""), 404, "not found")
	wantError(t, w.call("GET", "/templates/aliases/other%2Fbase", ""), 404, "not found")
	got := want[object](t, w.call("GET", "/templates/default%2Fbase", ""), 200)
	if builds := got["builds"].([]any); len(builds) != 1 || builds[0].(object)["status"] != "ready" {
		t.Errorf("got %v", got)
	}
	wantError(t, w.call("GET", "/templates/none", ""), 404, "not found")
}

// TestMoreTemplatesThanOneAnswerLists: the older list, which has no pages, says
// where the pages are.
func TestMoreTemplatesThanOneAnswerLists(t *testing.T) {
	const most = 5000
	w := newWorld(t, "")
	add := func(n int) {
		t.Helper()
		err := w.store.Tx(t.Context(), func(tx store.Store) error {
			for range n {
				if err := tx.AddTemplate(t.Context(), cay.Template{ID: cay.NewTemplateID(), Team: w.team.ID, CreatedAt: time.Now()}); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	add(most - 1) // base is there
	if got := want[[]object](t, w.call("GET", "/templates", ""), 200); len(got) != most {
		t.Errorf("%d templates are listed", len(got))
	}
	add(1)
	wantError(t, w.call("GET", "/templates", ""), 400, "GET /v2/templates")
	r := w.call("GET", "/v2/templates?limit=100", "")
	if got := want[[]object](t, r, 200); len(got) != 100 || r.header.Get("X-Next-Token") == "" {
		t.Errorf("a page has %d templates; the next one is %q", len(got), r.header.Get("X-Next-Token"))
	}
}

func TestMetricsOfYoungSandboxes(t *testing.T) {
	w := newWorld(t, "")
	id := w.create(`{"templateID":"base"}`)["sandboxID"].(string)
	if r := w.call("GET", "/sandboxes/"+id+"/metrics?start=1&end=2", ""); r.status != 200 || strings.TrimSpace(r.text) != "[]" {
		t.Errorf("got %d %s", r.status, r.text)
	}
	got := want[object](t, w.call("GET", "/sandboxes/metrics?sandbox_ids="+id+",inone", ""), 200)
	if got["sandboxes"] == nil {
		t.Errorf("got %v", got)
	}
	wantError(t, w.call("GET", "/sandboxes/metrics", ""), 400, "sandbox_ids")
	wantError(t, w.call("GET", "/sandboxes/metrics?sandbox_ids="+strings.Repeat("a,", 101)+"a", ""), 400, "sandbox_ids")
	wantError(t, w.call("GET", "/sandboxes/"+id+"/metrics?start=-1", ""), 400, "start")
	wantError(t, w.call("GET", "/sandboxes/"+id+"/metrics?end=x", ""), 400, "end")
}

func TestRoutesThatAreNot(t *testing.T) {
	w := newWorld(t, "")
	wantError(t, w.callAs("", "GET", "/", ""), 404, "not found")
	wantError(t, w.callAs("", "GET", "/sandboxes/a/b/c/d", ""), 404, "not found")
	wantError(t, w.callAs("", "PUT", "/sandboxes", ""), 405, "PUT")
	wantError(t, w.call("GET", "/volumes", `{}`), 501, "keeps no volumes")
	const build = "/builds/01234567-89ab-4def-8123-456789abcdef"
	for _, path := range []string{"/templates", "/templates/base", "/templates/base" + build} {
		r := w.call("POST", path, `{"dockerfile":"FROM debian"}`)
		wantError(t, r, 410, "POST /v3/templates")
		wantRetry(t, r, 410, cay.Retry{})
	}
}

// TestMalformedIDs has ids that nothing can have: they are refused as such,
// for a team's own and for any other's key.
func TestMalformedIDs(t *testing.T) {
	w := newWorld(t, "")
	for _, id := range []string{"a%2Fb", "A", "i_1", "%00", "..%2F", strings.Repeat("a", 65), "%C3%BC"} {
		for _, route := range []struct{ method, path, body, field string }{
			{"GET", "/sandboxes/%s", "", "sandboxID"},
			{"DELETE", "/sandboxes/%s", "", "sandboxID"},
			{"POST", "/sandboxes/%s/connect", `{"timeout":60}`, "sandboxID"},
			{"POST", "/v2/sandboxes/%s/connect", "", "sandboxID"},
			{"POST", "/sandboxes/%s/pause", "", "sandboxID"},
			{"POST", "/sandboxes/%s/resume", "", "sandboxID"},
			{"POST", "/sandboxes/%s/fork", "", "sandboxID"},
			{"POST", "/sandboxes/%s/snapshots", "", "sandboxID"},
			{"POST", "/sandboxes/%s/timeout", `{"timeout":60}`, "sandboxID"},
			{"POST", "/sandboxes/%s/refreshes", "", "sandboxID"},
			{"PUT", "/sandboxes/%s/network", "{}", "sandboxID"},
			{"GET", "/sandboxes/%s/metrics", "", "sandboxID"},
			{"GET", "/sandboxes/%s/logs", "", "sandboxID"},
			{"GET", "/v2/sandboxes/%s/logs", "", "sandboxID"},
			{"GET", "/cay/v1/sandboxes/%s/end", "", "sandboxID"},
			{"POST", "/cay/v1/checkpoints/%s/fork", "", "checkpointID"},
			{"GET", "/templates/base/builds/%s/status", "", "buildID"},
			{"DELETE", "/api-keys/%s", "", "keyID"},
		} {
			path := strings.ReplaceAll(route.path, "%s", id)
			wantError(t, w.call(route.method, path, route.body), 400, route.field)
		}
	}
	wantError(t, w.call("GET", "/sandboxes/inone-00000000", ""), 404, "doesn't exist")
}

// TestTimeoutsBeyondTheLimit are refused before a sandbox is looked for.
func TestTimeoutsBeyondTheLimit(t *testing.T) {
	w := newWorld(t, "")
	const late = `{"templateID":"none","timeout":999999999}`
	for _, path := range []string{
		"/sandboxes", "/v2/sandboxes", "/sandboxes/inone/connect", "/v2/sandboxes/inone/connect", "/sandboxes/inone/resume",
		"/sandboxes/inone/timeout", "/sandboxes/inone/fork", "/cay/v1/checkpoints/snone/fork",
	} {
		wantError(t, w.call("POST", path, late), 400, "timeout")
	}
}

func TestDefaultTemplates(t *testing.T) {
	w := newWorld(t, "")
	w.create(`{"templateID":"base"}`)
	ours := want[[]object](t, w.call("GET", "/default-templates", ""), 200)
	theirs := want[[]object](t, w.callAs(w.other, "GET", "/default-templates", ""), 200)
	if len(ours) != 1 || len(theirs) != 1 {
		t.Fatalf("%v, and for another team %v", ours, theirs)
	}
	for _, got := range []object{ours[0], theirs[0]} {
		if got["isDefault"] != true || got["description"] != "what base is for" || got["buildStatus"] != "ready" {
			t.Errorf("got %v", got)
		}
	}
	if ours[0]["spawnCount"] != 1.0 || theirs[0]["spawnCount"] != 0.0 || theirs[0]["lastSpawnedAt"] != nil || theirs[0]["buildCount"] != 0.0 {
		t.Errorf("its usage is %v, and for another team %v", ours[0], theirs[0])
	}
	one := want[object](t, w.call("GET", "/templates/base", ""), 200)
	if one["isDefault"] != true || one["buildID"] == "" || one["cpuCount"] != 2.0 || one["buildStatus"] != "ready" || one["envdVersion"] == "" {
		t.Errorf("described as %v", one)
	}
	if _, err := w.control.Publish(t.Context(), fleet.Publication{
		Team: w.team.ID, Names: []string{"own"}, Snapshot: "s2", RecipeDigest: "x",
	}); err != nil {
		t.Fatal(err)
	}
	list := want[[]object](t, w.call("GET", "/templates", ""), 200)
	for _, one := range list {
		if _, there := one["isDefault"]; there != (fmt.Sprint(one["aliases"]) == "[base]") {
			t.Errorf("listed as %v", one)
		}
	}
	if again := want[[]object](t, w.call("GET", "/default-templates", ""), 200); len(again) != 1 {
		t.Errorf("default templates are %v", again)
	}
}

func TestPanicsAreErrors(t *testing.T) {
	recorder := httptest.NewRecorder() // a face without a control panics
	handler := rest.New(rest.Config{})
	request := httptest.NewRequest(http.MethodGet, "/sandboxes", nil)
	request.Header.Set("X-API-Key", "e2b_"+strings.Repeat("0", 40))
	handler.ServeHTTP(recorder, request)
	wantError(t, reply{recorder.Code, recorder.Header(), recorder.Body.String()}, 500, "internal error")
}

// FuzzRequests sends arbitrary ids, tokens, filters and bodies: every answer
// is one of those that SDKs know, and errors are JSON with their own status.
func FuzzRequests(f *testing.F) {
	w := newWorld(f, "")
	f.Add("i0", "bm90aGluZw", "a%3Db", `{"templateID":"base","timeout":1}`)
	f.Add("..", "MjAyMy0xMS0xNFQyMjoxMzoyMC4wMDBaX19pYQ", "%", `{"timeout":1e400}`)
	f.Add("a/b%2F", "", "=&=&a", `{"templateID":"x:y","network":{"allowOut":["::1%lo"]}}`)
	f.Add("", strings.Repeat("A", 300), "a=b;c", `[null]`)
	f.Fuzz(func(t *testing.T, id, token, filter, body string) {
		escaped := url.PathEscape(id)
		for _, target := range []struct{ method, path string }{
			{"GET", "/sandboxes/" + escaped},
			{"POST", "/sandboxes/" + escaped + "/timeout"},
			{"POST", "/v2/sandboxes/" + escaped + "/connect"},
			{"POST", "/v2/sandboxes"},
			{"GET", "/v2/sandboxes?nextToken=" + url.QueryEscape(token) + "&metadata=" + url.QueryEscape(filter)},
			{"GET", "/templates/aliases/" + escaped},
		} {
			recorder := httptest.NewRecorder()
			request := httptest.NewRequest(target.method, target.path, strings.NewReader(body))
			request.Header.Set("X-API-Key", w.key)
			w.handler.ServeHTTP(recorder, request)
			switch recorder.Code {
			case 200, 201, 204:
			case 400, 403, 404, 405, 413, 501:
				wantError(t, reply{recorder.Code, recorder.Header(), recorder.Body.String()}, recorder.Code, "")
			default:
				t.Fatalf("%s %s with %q: %d %s", target.method, target.path, body, recorder.Code, recorder.Body)
			}
		}
	})
}
