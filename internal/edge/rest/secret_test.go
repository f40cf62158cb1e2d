package rest_test

import (
	"fmt"
	"strings"
	"testing"
)

func TestSecrets(t *testing.T) {
	w := newWorld(t, "")
	made := w.call("POST", "/secrets", `{"name":"My-Key","value":"s3cret","metadata":{"a":"b"}}`)
	got := want[object](t, made, 201)
	id, _ := got["secretID"].(string)
	if !strings.HasPrefix(id, "sec_") || got["name"] != "my-key" || got["currentVersion"] != 1.0 || got["metadata"].(object)["a"] != "b" {
		t.Errorf("made %v", got)
	}
	want[object](t, w.call("POST", "/secrets", `{"name":"second","value":"x"}`), 201)
	wantError(t, w.call("POST", "/secrets", `{"name":"MY-KEY","value":"x"}`), 409, "my-key")
	want[object](t, w.call("POST", "/secrets", `{"name":"sec_x","value":"x"}`), 201)
	want[any](t, w.call("DELETE", "/secrets/sec_x", ""), 204)
	wantError(t, w.call("POST", "/secrets", `{"name":"`+id+`","value":"x"}`), 409, "already")
	wantError(t, w.call("POST", "/secrets", `{"name":"a b","value":"x"}`), 400, "name")
	wantError(t, w.call("POST", "/secrets", `{"name":"empty"}`), 400, "value")
	wantError(t, w.call("POST", "/secrets", `{"name":"m","value":"x","metadata":{"`+strings.Repeat("k", 129)+`":""}}`), 400, "metadata")
	for _, ref := range []string{id, "my-key", "My-Key"} {
		if got := want[object](t, w.call("GET", "/secrets/"+ref, ""), 200); got["secretID"] != id {
			t.Errorf("%s found %v", ref, got)
		}
	}
	wantError(t, w.callAs(w.other, "GET", "/secrets/"+id, ""), 404, "not found")
	updated := want[object](t, w.call("POST", "/secrets/my-key", `{"value":"n3w"}`), 200)
	if updated["currentVersion"] != 2.0 || updated["metadata"].(object)["a"] != "b" {
		t.Errorf("updated %v", updated)
	}
	wantError(t, w.call("POST", "/secrets/none", `{"value":"n3w"}`), 404, "not found")
	first := w.call("GET", "/secrets?limit=1", "")
	page := want[[]object](t, first, 200)
	next := first.header.Get("X-Next-Token")
	rest := want[[]object](t, w.call("GET", "/secrets?nextToken="+next, ""), 200)
	if len(page) != 1 || len(rest) != 1 || page[0]["secretID"] == rest[0]["secretID"] {
		t.Errorf("pages %v and %v", page, rest)
	}
	if strings.Contains(made.text+first.text, "s3cret") {
		t.Error("a value is told")
	}
	if value, err := w.control.SecretValue(t.Context(), w.team.ID, "my-key"); value != "n3w" || err != nil {
		t.Errorf("the value is %q, %v", value, err)
	}
	want[object](t, w.call("DELETE", "/secrets/"+id, ""), 204)
	wantError(t, w.call("DELETE", "/secrets/"+id, ""), 404, "not found")
}

// A rule that names a secret which is not there is refused when it is set.
func TestRulesNameSecretsThatAreThere(t *testing.T) {
	w := newWorld(t, "")
	want[object](t, w.callAs(w.other, "POST", "/secrets", `{"name":"theirs","value":"x"}`), 201)
	want[object](t, w.call("POST", "/secrets", `{"name":"ours","value":"x"}`), 201)
	rules := func(value string) string {
		return `{"a.example":[{"transform":{"headers":{"X-Key":"` + value + `"}}}]}`
	}
	create := func(value string) string {
		return `{"templateID":"base","timeout":300,"network":{"rules":` + rules(value) + `}}`
	}
	id := want[object](t, w.call("POST", "/sandboxes", create("Bearer ${e2b.secrets.OURS}")), 201)["sandboxID"].(string)
	path := "/sandboxes/" + id + "/network"
	want[any](t, w.call("PUT", path, `{"rules":`+rules("${e2b.secrets.ours}")+`}`), 204)
	running := len(w.node.Alive())
	for _, value := range []string{"${e2b.secrets.none}", "${e2b.secrets.theirs}", "${e2b.secrets.ours} ${e2b.secrets.none}"} {
		wantError(t, w.call("POST", "/sandboxes", create(value)), 400, "there is no secret")
		wantError(t, w.call("PUT", path, `{"rules":`+rules(value)+`}`), 400, "there is no secret")
	}
	if n := len(w.node.Alive()); n != running {
		t.Errorf("%d instances run, %d before", n, running)
	}
	// One that is removed later does no harm to the sandbox.
	want[any](t, w.call("DELETE", "/secrets/ours", ""), 204)
	want[any](t, w.call("POST", "/sandboxes/"+id+"/pause", `{}`), 204)
	want[any](t, w.call("POST", "/sandboxes/"+id+"/resume", `{}`), 201)
}

func TestMetadataIsBounded(t *testing.T) {
	w := newWorld(t, "")
	entries := func(n int, key, value string) string {
		var out []string
		for i := range n {
			out = append(out, fmt.Sprintf(`"%s%d":"%s"`, key, i, value))
		}
		return `{"templateID":"base","timeout":300,"metadata":{` + strings.Join(out, ",") + `}}`
	}
	want[object](t, w.call("POST", "/sandboxes", entries(64, "k", strings.Repeat("v", 200))), 201)
	for body, text := range map[string]string{
		entries(65, "k", "v"):                        "64 entries",
		entries(1, strings.Repeat("k", 256), "v"):    "256 bytes",
		entries(1, "k", strings.Repeat("v", 16<<10)): "16384 bytes",
		entries(60, "k", strings.Repeat("v", 300)):   "16384 bytes",
		entries(1, `a\u0000b`, "v"):                  "zero byte",
		entries(1, "k", `a\u0000b`):                  "zero byte",
	} {
		wantError(t, w.call("POST", "/sandboxes", body), 400, text)
		wantError(t, w.call("POST", "/v2/sandboxes", body), 400, text)
	}
}
