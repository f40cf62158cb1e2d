package server_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/cay-run/cay/internal/server/servertest"
)

// TestRequestIDs follows an id from the edge to the node: it is in the answer
// and in the lines of each part.
func TestRequestIDs(t *testing.T) {
	w := servertest.Start(t)
	ask := func(method, path, id, body string) (*http.Response, map[string]any) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, w.URL()+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("X-API-Key", w.Key)
		r.Header.Set("Content-Type", "application/json")
		if id != "" {
			r.Header.Set("X-Request-ID", id)
		}
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		var out map[string]any
		_ = json.NewDecoder(resp.Body).Decode(&out) // some answers have none
		return resp, out
	}
	made, sandbox := ask("POST", "/sandboxes", "make-1", `{"templateID":"base"}`)
	if made.StatusCode != http.StatusCreated || made.Header.Get("X-Request-ID") != "make-1" {
		t.Fatalf("%d %v", made.StatusCode, made.Header)
	}
	id := sandbox["sandboxID"].(string)
	logged := func(message, request string) {
		t.Helper()
		for line := range strings.Lines(w.Log()) {
			if strings.Contains(line, message) && strings.Contains(line, id) {
				if !strings.Contains(line, "request="+request) {
					t.Errorf("the line has another id than %s: %s", request, line)
				}
				return
			}
		}
		t.Errorf("no line says %q of %s", message, id)
	}
	logged("sandbox made", "make-1") // by the node
	ask("DELETE", "/sandboxes/"+id, "end-1", "")
	logged("sandbox ended", "end-1") // by control
	for _, path := range []string{"/sandboxes", "/no/such/route", "/health", "/sandboxes/no-such", "/cay/v1/ssh"} {
		got, _ := ask("GET", path, "", "")
		if id := got.Header.Get("X-Request-ID"); len(id) != 32 || got.Header.Get("X-E2B-Trace-ID") != id {
			t.Errorf("GET %s: %d %v", path, got.StatusCode, got.Header)
		}
	}
}
