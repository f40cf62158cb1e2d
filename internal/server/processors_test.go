package server_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/cay-run/cay/client"
	"github.com/cay-run/cay/internal/server/servertest"
)

// Memory goes on where a processor has what it relies on: named snapshots start, drained
// sandboxes go, and those of a lost node resume on such a node alone, while there is one.
func TestProcessors(t *testing.T) {
	t.Parallel() // it waits more than it works
	ctx := t.Context()
	processors := [][]string{{"avx", "sse"}, {"sse"}, {"avx", "sse"}}
	n := 0
	c := servertest.StartCluster(t, len(processors), servertest.Quick, func(w *servertest.World) {
		w.Machine.Features = processors[n]
		n++
	})
	const first, lacks, able = 0, 1, 2
	c.AwaitReady(3)
	on := func(node, front int) string {
		t.Helper()
		for range 60 {
			if id := remembers(t, c, front, true); slices.Equal(whereOf(c, id), []int{node}) {
				return id
			}
		}
		t.Fatalf("no sandbox is made on node %d", node)
		return ""
	}
	source := on(first, lacks)
	named := made(t, c.Nodes[lacks], "POST", "/sandboxes/"+source+"/snapshots", "{}", "snapshotID")
	for i := range 12 {
		w := c.Nodes[i%3]
		id := made(t, w, "POST", "/sandboxes", `{"templateID":"`+named+`","timeout":3600}`, "sandboxID")
		at := whereOf(c, id)
		if code, text := intoSandbox(t, w, id, "GET", "/", nil); slices.Contains(at, lacks) || code != http.StatusOK || text != source {
			t.Errorf("of a snapshot, on node %v it answers %d %q", at, code, text)
		}
	}

	moved := []string{source, on(first, able), on(first, first), on(first, lacks)}
	drained := nodeOf(t, c.Nodes[first])
	if err := c.Nodes[lacks].Admin("").DrainNode(ctx, drained, true); err != nil {
		t.Fatal(err)
	}
	awaitNode(t, c, drained, func(n client.ClusterNode) bool { return n.Draining && n.Running+n.Starting+n.Paused == 0 })
	for _, id := range moved {
		if at := whereOf(c, id); !slices.Equal(at, []int{able}) {
			t.Errorf("sandbox %s has moved to %v", id, at)
		}
		isItself(t, c.Nodes[lacks], id)
	}

	// No other node has its processor now: they stay, and the node says why.
	second := nodeOf(t, c.Nodes[able])
	if err := c.Nodes[lacks].Admin("").DrainNode(ctx, second, true); err != nil {
		t.Fatal(err)
	}
	awaitNode(t, c, second, func(n client.ClusterNode) bool { return strings.Contains(n.Stuck, "processor") })
	for _, id := range moved {
		isItself(t, c.Nodes[lacks], id)
	}
	t.Run("lost", func(t *testing.T) { lostWith(t, c, moved, lacks, able) })
}

// lostWith loses a node whose sandboxes are paused. One of the two others has its processor.
func lostWith(t *testing.T, c *servertest.Cluster, boxes []string, lacks, able int) {
	longRun(t, "CLUSTER_CUTS")
	ctx := t.Context()
	first, second := nodeOf(t, c.Nodes[0]), nodeOf(t, c.Nodes[able])
	for _, id := range []string{first, second} {
		if err := c.Nodes[lacks].Admin("").UndrainNode(ctx, id); err != nil {
			t.Fatal(err)
		}
	}
	for _, id := range boxes {
		if err := c.Nodes[lacks].Client().PauseDurably(ctx, id, false); err != nil {
			t.Fatal(err)
		}
	}
	c.Nodes[able].Stop()
	awaitGone(t, c.Nodes[lacks], second)
	for i, id := range boxes {
		w := c.Nodes[i%2]
		if code, text := intoSandbox(t, w, id, "GET", "/", nil); code != http.StatusOK || text != id || !slices.Equal(whereOf(c, id), []int{0}) {
			t.Errorf("of a lost node, on %v: %d %q", whereOf(c, id), code, text)
		}
	}
}
