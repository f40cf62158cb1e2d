package rest_test

import (
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
	wantError(t, w.call("POST", "/secrets", `{"name":"sec_x","value":"x"}`), 400, "name")
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
