package server_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/cay-run/cay/internal/server/servertest"
)

// The documents that identity tokens are checked with need no key, name the
// server's address, and last over a start.
func TestIdentityDocuments(t *testing.T) {
	w := servertest.New(t)
	w.Config.PublicURL = "https://api.example.com/"
	w.Start()
	get := func(path string) string {
		t.Helper()
		code, text := call(t, w, "", http.MethodGet, path, "")
		if code != http.StatusOK {
			t.Fatalf("%s: %d %s", path, code, text)
		}
		return text
	}
	var about struct {
		Issuer string `json:"issuer"`
		Keys   string `json:"jwks_uri"`
	}
	if err := json.Unmarshal([]byte(get("/.well-known/openid-configuration")), &about); err != nil {
		t.Fatal(err)
	}
	path, ours := strings.CutPrefix(about.Keys, "https://api.example.com")
	if about.Issuer != "https://api.example.com" || !ours {
		t.Errorf("the document says %+v", about)
	}
	keys := get(path)
	if !strings.Contains(keys, `"RS256"`) || strings.Contains(keys, `"d"`) {
		t.Errorf("the keys are %s", keys)
	}
	if code, _ := call(t, w, "", http.MethodPost, path, ""); code != http.StatusMethodNotAllowed {
		t.Errorf("a POST is answered with %d", code)
	}
	w.Stop()
	w.Start()
	if get(path) != keys {
		t.Error("the keys are others after a start")
	}
}
