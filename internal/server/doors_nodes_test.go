package server_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/cay-run/cay"
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

// Each way to a server leads to what all nodes have, at any node.
func TestDoorsOfAllNodes(t *testing.T) {
	agent := servertest.RealAgent(t, t.TempDir())
	c := servertest.StartCluster(t, 2, servertest.Steady, func(w *servertest.World) {
		w.Config.ConsoleListen, w.Machine.Agent = "127.0.0.1:0", agent
		w.Config.WebhookOpen = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	})
	c.AwaitReady(2)
	ids := onEach(t, c)
	t.Run("console", func(t *testing.T) { consoles(t, c, ids) })
	t.Run("tools", func(t *testing.T) {
		for i, w := range c.Nodes {
			s := tools(t, w, w.Key, "any")
			for on, id := range ids {
				if err := w.Client().Pause(t.Context(), id); err != nil { // the tool wakes it
					t.Fatal(err)
				}
				if text, _, failed := use(t, s, "execute_command", map[string]any{"sandbox_id": id, "command": "echo a$((1+1))"}); failed || strings.TrimSpace(text) != "a2" {
					t.Errorf("at node %d, a sandbox of node %d: %s", i, on, text)
				}
			}
		}
	})
	t.Run("streams", func(t *testing.T) {
		for i, w := range c.Nodes {
			for on, id := range ids {
				for _, of := range []string{"", id} {
					if took := hears(t, w, of, id); took > 10*time.Second { // a stream looks by itself after 15
						t.Errorf("at node %d, the stream of %q has what is asked about a sandbox of node %d after %s", i, of, on, took)
					}
				}
			}
		}
	})
	t.Run("webhooks", func(t *testing.T) { delivers(t, c, ids[1]) })
	t.Run("audit log", func(t *testing.T) {
		for i, w := range c.Nodes {
			var whole struct {
				Rows, Signed int
				Broken       *struct{}
				Key          string
			}
			asAdmin(t, w, "GET", "/cay/v1/admin/audit/verification", "", &whole)
			key, err := w.Operator().AuditKey(t.Context())
			if err != nil || whole.Rows < 5 || whole.Signed != whole.Rows || whole.Broken != nil || whole.Key != key {
				t.Errorf("at node %d: %+v, key %s, %v", i, whole, key, err)
			}
		}
	})
}

// hears is how long a stream of events, of all or of a sandbox, takes to have one of a
// sandbox that another node records.
func hears(t *testing.T, w *servertest.World, of, id string) time.Duration {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var asked time.Time
	var question string
	for e, err := range w.Client().Events(ctx, client.EventOptions{Sandbox: of, Follow: true}) {
		if err != nil {
			t.Fatal(err)
		}
		if asked.IsZero() {
			a, err := w.Client().AskApproval(ctx, client.NewApproval{SandboxID: id, Title: "may I"})
			if err != nil {
				t.Fatal(err)
			}
			asked, question = time.Now(), a.ID
		}
		if e.Type == string(cay.ApprovalRequested) && e.Data["approval"] == question {
			break
		}
	}
	return time.Since(asked)
}

// delivers has a webhook told of a sandbox's end once, and of the next one by the node that
// leads then.
func delivers(t *testing.T, c *servertest.Cluster, id string) {
	in := openInbox(t)
	hook := made(t, c.Nodes[1], "POST", "/events/webhooks",
		fmt.Sprintf(`{"name":"mine","url":%q,"events":["sandbox.lifecycle.killed"],"signatureSecret":"an old secret","enabled":true}`, in.URL), "id")
	told := func(want string) {
		t.Helper()
		if _, body := in.next(t); body["sandboxId"] != want {
			t.Errorf("it was told %v, not of %s", body, want)
		}
	}
	if err := c.Nodes[0].Client().Kill(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	told(id)
	for i, w := range c.Nodes {
		d := recorded(t, w, hook, 1+i)
		if len(d.Data) != 1 || len(d.Data[0].Attempts) != 1+i {
			t.Fatalf("at node %d: %+v", i, d)
		}
		if err := w.Client().RedeliverWebhook(t.Context(), hook, d.Data[0].EventID); err != nil {
			t.Fatal(err)
		}
		told(id)
	}
	recorded(t, c.Nodes[1], hook, 3)
	c.Nodes[0].Stop()
	awaitLead(t, c.Nodes[1])
	next, err := c.Nodes[1].Client().Create(t.Context(), client.CreateOptions{Timeout: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Nodes[1].Client().Kill(t.Context(), next.ID); err != nil {
		t.Fatal(err)
	}
	told(next.ID)
	if d := recorded(t, c.Nodes[1], hook, 4); len(d.Data) != 2 || len(in.got) != 0 {
		t.Errorf("%d are left, of %+v", len(in.got), d)
	}
	c.Nodes[0].Start()
}

// consoles tries the console of each node, which shows what all nodes have, and at whose
// origin nothing of guests is a page, wherever they run.
func consoles(t *testing.T, c *servertest.Cluster, ids []string) {
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

// awaitLead waits until a node reaches the one that leads.
func awaitLead(t *testing.T, w *servertest.World) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !w.ReachesLead(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("no node leads")
		}
	}
}
