package server_test

import (
	"encoding/json"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/cay-run/cay/client"
	"github.com/cay-run/cay/internal/server/servertest"
)

// TestLogIsJSON reads every line of a server's life: each is an object with
// the usual keys, and none has a secret.
func TestLogIsJSON(t *testing.T) {
	w := servertest.New(t)
	w.Config.LogFormat = "json"
	w.Start()
	const secret = "sup3rs3cretvalue"
	c := w.Client()
	s, err := c.Create(t.Context(), client.CreateOptions{Template: "base", Timeout: time.Minute, Env: map[string]string{"TOKEN": secret}})
	if err != nil {
		t.Fatal(err)
	}
	for _, call := range []struct{ method, path, body string }{
		{"POST", "/secrets", `{"name":"api","value":"` + secret + `"}`},
		{"POST", "/sandboxes", `{"templateID":"` + secret}, // no JSON
		{"POST", "/sandboxes", `{"templateID":"base","network":{"rules":{"a.test":[{"transform":{"headers":{"X":"${e2b.secrets.nosuch}"}}}]}}}`},
		{"GET", "/files?signature=v1_" + secret, ""},
		{"GET", "/\n\x1b[31m\"}{", ""},
		{"BREW", "/sandboxes", ""},
		{"POST", "/sandboxes/" + s.ID + "/pause", "{}"},
		{"POST", "/sandboxes/" + s.ID + "/resume", "{}"},
		{"DELETE", "/sandboxes/" + s.ID, ""},
	} {
		r, err := http.NewRequestWithContext(t.Context(), call.method, w.URL(), strings.NewReader(call.body))
		if err != nil {
			t.Fatal(err)
		}
		r.URL.Path, r.URL.RawQuery, _ = strings.Cut(call.path, "?")
		r.Header.Set("X-API-Key", w.Key)
		r.Header.Set("Content-Type", "application/json")
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
	}
	w.Stop()
	w.Start()

	key := regexp.MustCompile(`^[a-z][a-zA-Z]*$`)
	lines, requests := 0, 0
	for line := range strings.Lines(w.Log()) {
		lines++
		var got map[string]any
		if err := json.Unmarshal([]byte(line), &got); err != nil {
			t.Errorf("%v: %s", err, line)
			continue
		}
		for _, k := range []string{"time", "level", "msg"} {
			if text, ok := got[k].(string); !ok || text == "" {
				t.Errorf("no %s: %s", k, line)
			}
		}
		for k := range got {
			if !key.MatchString(k) {
				t.Errorf("the key %q: %s", k, line)
			}
		}
		if got["msg"] == "answered" {
			requests++
			if id, _ := got["request"].(string); len(id) != 32 {
				t.Errorf("no id: %s", line)
			}
			if _, ok := got["took"].(float64); !ok {
				t.Errorf("took is no number: %s", line)
			}
		}
		for _, no := range []string{secret, w.Key, s.AccessToken} {
			if no != "" && strings.Contains(line, no) {
				t.Errorf("a secret: %s", line)
			}
		}
	}
	if lines < 20 || requests < 10 {
		t.Errorf("%d lines, %d requests", lines, requests)
	}
}

// A caller finds each of its requests in the log by the id that it chose: also one that needs no line
// for its own sake. A stranger writes none.
func TestChosenIDsAreInTheLog(t *testing.T) {
	w := servertest.New(t)
	w.Config.LogLevel = "info"
	w.Start()
	send := func(id, key, method, path, body string) int {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, w.URL()+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("X-API-Key", key)
		r.Header.Set("Content-Type", "application/json")
		if id != "" {
			r.Header.Set("X-Request-ID", id)
		}
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	for id, call := range map[string]struct {
		key, method, path, body string
		status                  int
		logged                  bool
	}{
		"a-create": {w.Key, "POST", "/sandboxes", `{"templateID":"base"}`, 201, true},
		"a-404":    {w.Key, "GET", "/sandboxes/inone", "", 404, true},
		"a-list":   {w.Key, "GET", "/v2/sandboxes", "", 200, true},
		"stranger": {"e2b_" + strings.Repeat("0", 40), "GET", "/v2/sandboxes", "", 401, false},
	} {
		if status := send(id, call.key, call.method, call.path, call.body); status != call.status {
			t.Errorf("%s: %d", id, status)
		}
		lines := strings.Count(w.Log(), "msg=answered")
		if got := strings.Contains(w.Log(), "request="+id); got != call.logged {
			t.Errorf("%s is in the log: %t, of %d lines", id, got, lines)
		}
	}
	before := strings.Count(w.Log(), "msg=answered")
	send("", w.Key, "GET", "/v2/sandboxes", "")
	if after := strings.Count(w.Log(), "msg=answered"); after != before {
		t.Error("a request without an id of its own has a line")
	}
}
