package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
)

// A login prints where to go, waits, and keeps the session where this user alone
// reads it; commands use it, with the team that was named; a logout forgets it.
func TestLoginCommands(t *testing.T) {
	var asked atomic.Int32
	var team, bearer atomic.Value
	ended := false
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		team.Store(r.Header.Get("X-Team-ID"))
		bearer.Store(r.Header.Get("Authorization"))
		switch r.Method + " " + r.URL.Path {
		case "POST /cay/v1/logins":
			_, _ = w.Write([]byte(`{"loginID":"l1","url":"https://api.example/cay/v1/login?id=l1","code":"BCDF-GHJK","expiresAt":"2100-01-01T00:00:00Z"}`))
		case "POST /cay/v1/logins/l1/session":
			if asked.Add(1) == 1 {
				w.WriteHeader(http.StatusAccepted)
				return
			}
			_, _ = w.Write([]byte(`{"token":"cay_session_x","session":{"id":"s"},"person":{"id":"p","email":"ann@example.com","teams":[{"id":"t1","name":"default","role":"admin"}]}}`))
		case "GET /cay/v1/me":
			_, _ = w.Write([]byte(`{"id":"p","email":"ann@example.com","teams":[{"id":"t1","name":"default","role":"admin"}]}`))
		case "POST /cay/v1/logout":
			ended = true
			w.WriteHeader(http.StatusNoContent)
		default:
			http.Error(w, r.URL.Path, http.StatusTeapot)
		}
	}))
	defer srv.Close()
	home := t.TempDir()
	env := []string{"HOME=" + home, "E2B_API_URL=" + srv.URL}
	code, out, errs := invoke(t, env, "login", "--no-browser")
	if code != 0 || !strings.Contains(errs, "https://api.example/cay/v1/login?id=l1") || !strings.Contains(errs, "BCDF-GHJK") || !strings.Contains(out, "ann@example.com") {
		t.Fatalf("login: %d %s %s", code, out, errs)
	}
	path := filepath.Join(home, ".config", "cay", "sessions.json")
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 || strings.Contains(out+errs, "cay_session_x") {
		t.Errorf("kept: %v, %v; told %s %s", info, err, out, errs)
	}
	if code, out, _ := invoke(t, env, "whoami"); code != 0 || !strings.Contains(out, "ann@example.com") || !strings.Contains(out, "admin") {
		t.Errorf("whoami: %d %s", code, out)
	}
	if bearer.Load() != "Bearer cay_session_x" || team.Load() != "t1" {
		t.Errorf("asked with %v for %v", bearer.Load(), team.Load())
	}
	if code, out, _ := invoke(t, append(env, "CAY_TEAM=other"), "whoami", "--json"); code != 0 || !json.Valid([]byte(out)) || team.Load() != "other" {
		t.Errorf("CAY_TEAM: %d %s, %v", code, out, team.Load())
	}
	if invoke(t, append(env, "E2B_API_KEY=e2b_0000000000000000000000000000000000000000"), "whoami"); bearer.Load() != "" {
		t.Errorf("a key goes before a session: %v", bearer.Load())
	}
	if code, _, errs := invoke(t, env, "logout"); code != 0 || !ended {
		t.Errorf("logout: %d %s", code, errs)
	}
	if code, _, errs := invoke(t, env, "whoami"); code == 0 || !strings.Contains(errs, "cay login") {
		t.Errorf("after logout: %d %s", code, errs)
	}
}
