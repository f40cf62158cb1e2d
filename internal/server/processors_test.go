package server_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

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

	old := on(first, lacks)
	point, err := c.Nodes[able].Client().Checkpoint(ctx, old, "", "")
	if err != nil {
		t.Fatal(err)
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

	// No other node has its processor now: they stay, and the node says why. Files go.
	if err := c.Nodes[lacks].Client().PauseDurably(ctx, old, true); err != nil {
		t.Fatal(err)
	}
	second := nodeOf(t, c.Nodes[able])
	if err := c.Nodes[lacks].Admin("").DrainNode(ctx, second, true); err != nil {
		t.Fatal(err)
	}
	awaitNode(t, c, second, func(n client.ClusterNode) bool { return strings.Contains(n.Stuck, "processor") })
	for _, id := range moved {
		isItself(t, c.Nodes[lacks], id)
	}
	t.Run("tree", func(t *testing.T) { treeOf(t, c, old, point.ID, lacks, able) })
	t.Run("lost", func(t *testing.T) { lostWith(t, c, moved, lacks, able) })
}

// treeOf asks for a checkpoint of a sandbox whose files alone have gone to a node whose processor
// lacks what the memory of the checkpoint relies on.
func treeOf(t *testing.T, c *servertest.Cluster, old, point string, lacks, able int) {
	ctx := t.Context()
	awaitNode(t, c, nodeOf(t, c.Nodes[lacks]), func(n client.ClusterNode) bool { return n.Paused == 1 })
	if _, err := c.Nodes[0].Client().Connect(ctx, old, time.Hour); err != nil {
		t.Fatal(err)
	}
	remembers := func(id string) bool {
		t.Helper()
		code, text := intoSandbox(t, c.Nodes[lacks], id, "GET", "/", nil)
		return code == http.StatusOK && text == old
	}
	// A checkpoint of memory has no files of its own: nothing is made of it, and nothing is lost.
	_, forked := c.Nodes[able].Client().ForkCheckpoint(ctx, point, 1, time.Hour)
	_, back := c.Nodes[able].Client().Rollback(ctx, old, point)
	for what, err := range map[string]error{"fork": forked, "rollback": back} {
		if err == nil || !strings.Contains(err.Error(), "needs a processor with avx") {
			t.Errorf("a %s that no node can make answers %v", what, err)
		}
	}
	if at := whereOf(c, old); !slices.Equal(at, []int{lacks}) {
		t.Errorf("after them the sandbox is on %v", at)
	}

	if err := c.Nodes[lacks].Admin("").UndrainNode(ctx, nodeOf(t, c.Nodes[able])); err != nil {
		t.Fatal(err)
	}
	for front, w := range c.Nodes { // each sees for itself which nodes take sandboxes
		for begun := time.Now(); ; time.Sleep(20 * time.Millisecond) {
			forks, err := w.Client().ForkCheckpoint(ctx, point, 2, time.Hour)
			if err == nil && slices.Equal(whereOf(c, forks[0].ID), []int{able}) {
				for _, one := range forks {
					if !remembers(one.ID) || !slices.Equal(whereOf(c, one.ID), []int{able}) {
						t.Errorf("a fork has not the memory of the checkpoint, on %v", whereOf(c, one.ID))
					}
				}
				break
			}
			if time.Since(begun) > time.Minute {
				t.Fatalf("asked at node %d, forks are not made where their memory goes on: %v", front, err)
			}
		}
	}

	// A sandbox that is paused does not take the checkpoint, which does not start here, and goes on as
	// it was.
	if err := c.Nodes[lacks].Client().Pause(ctx, old); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Nodes[able].Client().Rollback(ctx, old, point); err == nil || !strings.Contains(err.Error(), "needs a processor with avx") {
		t.Errorf("its rollback answers %v", err)
	}
	if _, err := c.Nodes[0].Client().Connect(ctx, old, time.Hour); err != nil {
		t.Error(err)
	}
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
