package server_test

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/cay-run/cay/client"
	"github.com/cay-run/cay/internal/machine/host/hosttest"
	"github.com/cay-run/cay/internal/server/servertest"
)

// onEach makes a sandbox on each node of a cluster.
func onEach(t *testing.T, c *servertest.Cluster) []string {
	t.Helper()
	out := make([]string, len(c.Nodes))
	left := len(out)
	var others []string // which keep their places, so that another node is the best in the end
	for begun := time.Now(); left > 0; time.Sleep(20 * time.Millisecond) {
		box, err := c.Nodes[0].Client().Create(t.Context(), client.CreateOptions{Timeout: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		if on := whereOf(c, box.ID); len(on) == 1 && out[on[0]] == "" {
			out[on[0]] = box.ID
			left--
		} else {
			others = append(others, box.ID)
		}
		if time.Since(begun) > time.Minute {
			t.Fatalf("the nodes have %q", out)
		}
	}
	for _, id := range others {
		if err := c.Nodes[0].Client().Kill(t.Context(), id); err != nil {
			t.Error(err)
		}
	}
	return out
}

// The console of any node shows what any node has, and nothing of guests is a page of its
// origin, wherever they run.
func TestConsoleOfAllNodes(t *testing.T) {
	c := servertest.StartCluster(t, 2, servertest.Steady, func(w *servertest.World) { w.Config.ConsoleListen = "127.0.0.1:0" })
	c.AwaitReady(2)
	ids := onEach(t, c)
	token, status, text := opened(t, c.Nodes[0], "key", c.Nodes[0].Key)
	if status != http.StatusCreated {
		t.Fatalf("%d %s", status, text)
	}
	for i, w := range c.Nodes {
		_, port, _ := net.SplitHostPort(w.ConsoleAddr().String())
		for _, origin := range []string{"http://console.localhost", "http://127.0.0.1:" + port} {
			ask := func(method, path, body string, headers ...string) (int, http.Header, string) {
				t.Helper()
				host, url := strings.TrimPrefix(origin, "http://"), w.URL()
				if strings.HasSuffix(origin, port) {
					url = origin
				}
				return atURL(t, url, method, host, path, body, headers...)
			}
			call := func(method, path, body string, want int, contains string) string {
				t.Helper()
				status, h, text := ask(method, "/api"+path, body, "Authorization", "Bearer "+token)
				if status != want || !strings.Contains(text, contains) {
					t.Errorf("at %s of node %d, %s %s: %d %s", origin, i, method, path, status, text)
				}
				if got := h["Content-Security-Policy"]; len(got) != 1 || !strings.HasPrefix(got[0], "sandbox;") || h.Get("X-Content-Type-Options") != "nosniff" {
					t.Errorf("at %s of node %d, %s %s: %v", origin, i, method, path, h)
				}
				return text
			}
			call("GET", "/v2/sandboxes", "", http.StatusOK, ids[1])
			call("GET", "/sandboxes/metrics?sandbox_ids="+ids[0]+","+ids[1], "", http.StatusOK, "")
			call("GET", "/cay/v1/logs?search=none", "", http.StatusOK, `"complete":true`)
			call("GET", "/sandboxes/inone", "", http.StatusNotFound, "")
			call("POST", "/cay/v1/sandbox-actions", fmt.Sprintf(`{"action":"resume","sandboxIDs":[%q,%q]}`, ids[0], ids[1]), http.StatusOK, ids[1])
			for on, id := range ids {
				call("GET", "/sandboxes/"+id, "", http.StatusOK, id)
				call("GET", "/cay/v1/sandboxes/"+id+"/events", "", http.StatusOK, id)
				call("POST", "/sandboxes/"+id+"/timeout", `{"timeout":3000}`, http.StatusNoContent, "")
				call("POST", "/cay/v1/tickets", fmt.Sprintf(`{"sandboxID":%q,"purpose":"port","port":%d}`, id, hosttest.AppPort), http.StatusCreated, "ticket")
				var access struct{ EnvdAccessToken string }
				_ = json.Unmarshal([]byte(call("POST", "/cay/v1/sandboxes/"+id+"/access", "", http.StatusOK, "")), &access)
				for given, want := range map[string]int{access.EnvdAccessToken: http.StatusOK, "wrong": http.StatusUnauthorized} {
					status, _, text := ask("GET", "/agent/envs", "", "E2b-Sandbox-Id", id, "E2b-Sandbox-Port", "49983", "X-Access-Token", given)
					if status != want {
						t.Errorf("at %s of node %d, the agent on node %d: %d %s", origin, i, on, status, text)
					}
				}
				for _, path := range []string{"/", "/sandboxes/" + id, fmt.Sprintf("/s/%s/%d/", id, hosttest.AppPort)} {
					status, h, text := ask("GET", path, "", "E2b-Sandbox-Id", id, "E2b-Sandbox-Port", fmt.Sprint(hosttest.AppPort), "Accept", "text/html")
					if status != http.StatusOK && status != http.StatusNotImplemented || !strings.Contains(text, "Cay") || len(h["Content-Security-Policy"]) != 1 || !strings.Contains(h.Get("Content-Security-Policy"), "frame-ancestors 'none'") {
						t.Errorf("at %s of node %d, the page %s: %d %v %.200s", origin, i, path, status, h, text)
					}
				}
			}
			if _, _, text := ask("GET", "/settings.json", ""); !strings.Contains(text, "ports") {
				t.Errorf("at %s of node %d, the settings: %s", origin, i, text)
			}
		}
		// A client cannot say that it came in there.
		if _, _, text := at(t, w, "GET", "127.0.0.1", "/settings.json", "", "Cay-Hop-Alone", "1"); strings.Contains(text, "ports") {
			t.Errorf("the one port of node %d, as the console's: %s", i, text)
		}
	}
}
