package server_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/client"
	"github.com/cay-run/cay/internal/config"
	"github.com/cay-run/cay/internal/server/servertest"
)

// A front has clients' requests go to nodes and runs nothing; a node that is no front
// runs sandboxes and takes no clients. Both are members.
func TestRoles(t *testing.T) {
	ctx := t.Context()
	c := servertest.StartCluster(t, 1, servertest.Steady)
	c.AwaitReady(1)
	front, node := c.JoinAs(config.RoleFront), c.JoinAs(config.RoleNode)
	c.AwaitReady(3)
	const itself = 1 // the front
	homes := map[int]bool{}
	var ids []string
	for range 10 {
		box, err := front.Client().Create(ctx, client.CreateOptions{Timeout: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		on := whereOf(c, box.ID)
		if len(on) != 1 || on[0] == itself {
			t.Fatalf("a sandbox is on %v", on)
		}
		homes[on[0]] = true
		ids = append(ids, box.ID)
		if code, text := intoSandbox(t, front, box.ID, "PUT", "/", strings.NewReader(box.ID)); code != http.StatusOK {
			t.Errorf("into sandbox %s: %d %s", box.ID, code, text)
		}
	}
	if len(homes) != 2 {
		t.Errorf("all are on nodes %v", homes)
	}
	if err := front.Client().Pause(ctx, ids[0]); err != nil {
		t.Fatal(err)
	}
	if _, err := front.Client().Connect(ctx, ids[0], time.Hour); err != nil {
		t.Fatal(err)
	}
	isItself(t, front, ids[0])
	list, err := front.Client().List(ctx)
	if err != nil || len(list) != len(ids) {
		t.Errorf("the front lists %d sandboxes: %v", len(list), err)
	}
	if _, err := front.Client().Info(ctx, "inone"); cay.KindOf(err) != cay.NotFound {
		t.Errorf("no sandbox: %v", err)
	}
	if code, _ := asked(t, node, node.Key, "", "GET", "/sandboxes", ""); code != http.StatusServiceUnavailable {
		t.Errorf("a node that is no front answers a client with %d", code)
	}
	for _, w := range c.Nodes {
		if code, _ := asked(t, w, w.Key, "", "GET", "/health", ""); code != http.StatusNoContent {
			t.Errorf("its health is %d", code)
		}
	}
	seen, err := front.Admin("").Cluster(ctx)
	if err != nil {
		t.Fatal(err)
	}
	at := slices.IndexFunc(seen.Nodes, func(n client.ClusterNode) bool { return n.ID == nodeOf(t, front) })
	if !seen.Nodes[at].Front || seen.Nodes[at].Running != 0 || seen.Lead == nodeOf(t, front) {
		t.Errorf("the front: %+v, and %s leads", seen.Nodes[at], seen.Lead)
	}
	// It never leads, though no other does.
	c.Nodes[0].Stop()
	node.Stop()
	time.Sleep(10 * servertest.Steady.Renew) // renewals, each of which would take the lead
	if code, text := asked(t, front, front.Key, "", "GET", "/sandboxes", ""); code != http.StatusServiceUnavailable || !strings.Contains(text, "leads") {
		t.Errorf("without nodes the front answers %d %s", code, text)
	}
}
