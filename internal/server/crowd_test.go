package server_test

import (
	"encoding/json"
	"net/http"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/client"
	"github.com/cay-run/cay/internal/server/servertest"
)

// TestManyNodes logs the sizes and times of answers about SCALE_NODES nodes.
func TestManyNodes(t *testing.T) {
	size, err := strconv.Atoi(os.Getenv("SCALE_NODES"))
	if err != nil {
		t.Skip("NOT TESTED HERE: make bench-scale sets SCALE_NODES")
	}
	c := servertest.StartCluster(t, 1, servertest.Steady)
	c.AwaitReady(1)
	c.Crowd(size - 1)
	admin := c.Nodes[0].Admin("")
	all, err := admin.Cluster(t.Context())
	if err != nil || len(all.Nodes) != size {
		t.Fatalf("%d nodes of %d: %v", len(all.Nodes), size, err)
	}
	for _, path := range []string{"/cay/v1/admin/cluster", "/cay/v1/admin/cluster?nodeID=" + all.Nodes[0].ID, "/nodes"} {
		var text []byte
		best := time.Hour
		for range 5 {
			begun := time.Now()
			var status int
			if status, text = adminAsks(t, c.Nodes[0], http.MethodGet, path, ""); status != http.StatusOK || !json.Valid(text) {
				t.Fatalf("%s: %d", path, status)
			}
			best = min(best, time.Since(begun))
		}
		t.Logf("%s, of %d nodes: %d bytes in %s", path, size, len(text), best.Round(10*time.Microsecond))
	}
}

// toldAlone asks each node about one member alone, and about none.
func toldAlone(t *testing.T, c *servertest.Cluster) {
	t.Helper()
	ctx := t.Context()
	all, err := c.Nodes[0].Admin("").Cluster(ctx)
	if err != nil || len(all.Nodes) != len(c.Nodes) {
		t.Fatalf("%+v, %v", all, err)
	}
	for i, w := range c.Nodes {
		n, err := w.Admin("").ClusterNode(ctx, all.Nodes[i].ID)
		if err != nil || n.ID != all.Nodes[i].ID || n.Address != all.Nodes[i].Address {
			t.Errorf("node %s: %+v, %v", all.Nodes[i].ID, n, err)
		}
	}
	var one client.Cluster
	status, text := adminAsks(t, c.Nodes[0], http.MethodGet, "/cay/v1/admin/cluster?nodeID="+all.Nodes[0].ID, "")
	if err := json.Unmarshal(text, &one); err != nil || status != http.StatusOK || len(one.Nodes) != 1 {
		t.Errorf("%d %s: %v", status, text, err)
	}
	if _, err := c.Nodes[1].Admin("").ClusterNode(ctx, "none"); cay.KindOf(err) != cay.NotFound {
		t.Errorf("no member: %v", err)
	}
}
