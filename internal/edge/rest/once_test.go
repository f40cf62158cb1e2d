package rest_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/cay-run/cay"
)

func (w *world) createWith(key, path, body string) reply {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.t.Context(), "POST", w.url+path, strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	req.Header.Set("X-API-KEY", w.key)
	req.Header.Set("Idempotency-Key", key)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return reply{resp.StatusCode, resp.Header, string(text)}
}

func TestIdempotentCreate(t *testing.T) {
	w := newWorld(t, "")
	for _, path := range []string{"/sandboxes", "/v2/sandboxes"} {
		key := "a/b" + path
		first := want[object](t, w.createWith(key, path, `{"templateID":"base","metadata":{"a":"1","b":"2"}}`), 201)
		again := want[object](t, w.createWith(key, path, `{"metadata":{"b":"2","a":"1"},"templateID":"base"}`), 201)
		if first["sandboxID"] != again["sandboxID"] || first["envdAccessToken"] != again["envdAccessToken"] {
			t.Errorf("made %v, then %v", first, again)
		}
		other := w.createWith(key, path, `{"templateID":"base"}`)
		wantError(t, other, 422, "another request")
		if code := want[object](t, other, 422)["error_code"]; code != cay.CodeKeyMismatch {
			t.Errorf("another request with the key has the code %v", code)
		}
		escaped := strings.ReplaceAll(key, "/", "%2F")
		found := want[object](t, w.call("GET", "/cay/v1/idempotency-keys/"+escaped, ""), 200)
		if found["sandboxID"] != first["sandboxID"] || found["state"] != "running" {
			t.Errorf("found %v", found)
		}
		wantError(t, w.callAs(w.other, "GET", "/cay/v1/idempotency-keys/"+escaped, ""), 404, "not found")
	}
	wantError(t, w.createWith(strings.Repeat("k", 256), "/sandboxes", `{"templateID":"base"}`), 400, "255")
	if n := len(w.node.Alive()); n != 2 {
		t.Errorf("%d instances", n)
	}
}
