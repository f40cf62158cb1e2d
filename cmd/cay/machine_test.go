package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// Commands about a machine ask, with --node, for that of a node.
func TestMachinesOfNodes(t *testing.T) {
	answers := map[string]string{
		"GET checks":                    `[{"name":"cache","status":"ok","detail":"1 GiB"},{"name":"port","status":"fail","detail":"taken","hint":"stop it"}]`,
		"GET garbage":                   `[{"kind":"layer","name":"old","bytes":2048}]`,
		"DELETE garbage":                `[]`,
		"GET package-cache":             `{"files":3,"bytes":4096,"limitBytes":8192,"hits":7}`,
		"DELETE package-cache":          `{"files":2,"bytes":1024}`,
		"GET storage":                   `{"dataDirectory":"/data/there","own":true,"device":"/dev/loop7","direct":true,"bytes":1073741824,"freeBytes":1024}`,
		"GET snapshots":                 `[{"snapshotID":"s1","kind":"memory","sandboxID":"i1","bytes":5,"createdAt":"2026-11-01T00:00:00Z"},{"snapshotID":"s2","kind":"files","bytes":6,"createdAt":"2026-11-01T00:00:00Z","evicted":true}]`,
		"GET snapshots/s1/verification": `{"snapshotID":"s1","damage":"pages.img"}`,
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, ok := answers[r.Method+" "+strings.TrimPrefix(r.URL.Path, "/cay/v1/admin/")]
		if !ok || r.URL.Query().Get("nodeID") != "n1" || r.Header.Get("X-Admin-Token") != "admin" {
			w.WriteHeader(404)
			body = `{"code":404,"message":"not found"}`
		}
		_, _ = w.Write([]byte(body))
	}))
	t.Cleanup(server.Close)
	env := []string{"CAY_ADMIN_TOKEN=admin", "E2B_API_URL=" + server.URL, "CAY_DATA_DIR=" + t.TempDir()}
	for _, x := range []struct {
		args string
		code int
		want string // in what it writes
	}{
		{"doctor", 1, "taken"},
		{"gc -n", 0, "old"},
		{"gc", 0, "nothing to remove"},
		{"cache", 0, "4.1 kB"},
		{"cache clear", 0, "2 files removed"},
		{"storage", 0, "/dev/loop7"},
		{"snapshot list", 0, "bucket"},
		{"snapshot verify", 1, "✗ s1  pages.img"},
		{"snapshot verify s2", 1, "not found"},
	} {
		code, out, errs := invoke(t, env, append(strings.Fields(x.args), "--node", "n1")...)
		if code != x.code || !strings.Contains(out+errs, x.want) {
			t.Errorf("cay %s: %d, %s%s", x.args, code, out, errs)
		}
		if code, out, errs := invoke(t, env, append(strings.Fields(x.args), "--node", "n2")...); code == 0 || !strings.Contains(errs, "not found") {
			t.Errorf("cay %s of no node: %d, %s%s", x.args, code, out, errs)
		}
	}
}
