package server_test

import (
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/client"
	"github.com/cay-run/cay/internal/server/servertest"
)

// Each verb of a tree of checkpoints does its work, or says what to do, wherever the sandboxes of the
// tree are: a fork on its parent's node or on another one, the parent running, paused, or on a node
// that is drained.
func TestTreeOfTwoNodes(t *testing.T) {
	t.Parallel() // it waits more than it works
	c := servertest.StartCluster(t, 2, servertest.Steady)
	c.AwaitReady(2)
	for _, far := range []bool{false, true} {
		for _, parent := range []string{"runs", "is paused", "is drained"} {
			t.Run(fmt.Sprintf("far %t, parent %s", far, parent), func(t *testing.T) { treeVerbs(t, c, far, parent) })
		}
	}
	t.Run("a checkpoint that another node needs", func(t *testing.T) {
		ctx, w := t.Context(), c.Nodes[1]
		id, point := rooted(t, c)
		fork := forkOn(t, c, point, 1)
		if err := w.Client().RemoveCheckpoint(ctx, point); cay.KindOf(err) != cay.Conflict {
			t.Errorf("it is removed: %v", err)
		}
		for _, one := range []string{fork, id} {
			if err := w.Client().Kill(ctx, one); err != nil {
				t.Error(err)
			}
		}
	})
}

// rooted makes a sandbox on the first node with a checkpoint, after which it remembers something else.
func rooted(t *testing.T, c *servertest.Cluster) (id, point string) {
	t.Helper()
	for range 60 {
		if id = remembers(t, c, 1, true); slices.Equal(whereOf(c, id), []int{0}) {
			made, err := c.Nodes[1].Client().Checkpoint(t.Context(), id, "", "")
			if err != nil {
				t.Fatal(err)
			}
			says(t, c.Nodes[1], id, "later")
			return id, made.ID
		}
		if err := c.Nodes[1].Client().Kill(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	t.Fatal("no sandbox is made on the first node")
	return "", ""
}

// drains has the first node be drained, without an end of what runs there, or no more, and waits until
// that is known.
func drains(t *testing.T, c *servertest.Cluster, is bool) {
	t.Helper()
	first, admin := nodeOf(t, c.Nodes[0]), c.Nodes[1].Admin("")
	err := admin.UndrainNode(t.Context(), first)
	if is {
		err = admin.DrainNode(t.Context(), first, false)
	}
	if err != nil {
		t.Fatal(err)
	}
	var seen time.Time
	renewals := 0
	awaitNode(t, c, first, func(n client.ClusterNode) bool {
		if n.Draining == is && n.SeenAt.After(seen) {
			seen = *n.SeenAt
			renewals++
		}
		return renewals > 2
	})
}

// forkOn makes a fork of a checkpoint of the first node there or on the second, which makes it while
// the first is drained.
func forkOn(t *testing.T, c *servertest.Cluster, point string, node int) string {
	t.Helper()
	if node == 1 {
		drains(t, c, true)
		defer drains(t, c, false)
	}
	forks, err := c.Nodes[1].Client().ForkCheckpoint(t.Context(), point, 1, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if at := whereOf(c, forks[0].ID); !slices.Equal(at, []int{node}) {
		t.Fatalf("a fork is on %v, not %d", at, node)
	}
	return forks[0].ID
}

func treeVerbs(t *testing.T, c *servertest.Cluster, far bool, parent string) {
	ctx, w := t.Context(), c.Nodes[1]
	api := w.Client()
	id, point := rooted(t, c)
	on := 0
	if far {
		on = 1
	}
	fork := forkOn(t, c, point, on)
	is := func(what, id, want string) {
		t.Helper()
		if code, text := intoSandbox(t, w, id, "GET", "/", nil); code != http.StatusOK || text != want {
			t.Errorf("%s: it answers %d %q, not %q", what, code, text, want)
		}
	}
	is("the fork", fork, id)
	switch parent {
	case "is paused":
		if err := api.Pause(ctx, id); err != nil {
			t.Fatal(err)
		}
	case "is drained":
		drains(t, c, true)
		defer drains(t, c, false)
	}
	for _, of := range []string{id, fork} {
		tree, err := api.Tree(ctx, of)
		if err != nil || len(tree.Checkpoints) != 1 || len(tree.Branches) != 2 {
			t.Errorf("the tree of %s: %+v, %v", of, tree, err)
		}
		// The root images of machines in memory cannot be compared: both sides are found before that.
		if _, err := api.Changes(ctx, of, point); cay.KindOf(err) == cay.NotFound || cay.KindOf(err) == cay.Unavailable {
			t.Errorf("what changed in %s: %v", of, err)
		}
	}
	if _, err := api.Label(ctx, point, "named"); err != nil {
		t.Error(err)
	}
	says(t, w, fork, "astray")
	if _, err := api.Rollback(ctx, fork, point); err != nil {
		t.Errorf("a fork goes back to the checkpoint of its parent: %v", err)
	}
	is("after a rollback", fork, id)
	own, err := api.Checkpoint(ctx, fork, "", "")
	if err != nil {
		t.Fatal(err)
	}
	says(t, w, fork, "promoted")
	if _, err := api.Rollback(ctx, id, own.ID); cay.KindOf(err) != cay.Conflict {
		t.Errorf("back to a checkpoint of another branch: %v", err)
	}
	_, err = api.Promote(ctx, id, fork)
	if far && parent == "is drained" {
		if cay.KindOf(err) != cay.Unavailable || cay.CodeOf(err) != cay.CodeNodeAway {
			t.Errorf("a promotion into a sandbox of a drained node: %v", err)
		}
		is("a fork that was not promoted", fork, "promoted")
	} else {
		if err != nil {
			t.Errorf("it is not promoted: %v", err)
		}
		if parent == "is paused" {
			if _, err := api.Connect(ctx, id, time.Hour); err != nil {
				t.Error(err)
			}
		}
		is("after a promotion", id, "promoted")
		if _, err := api.Info(ctx, fork); cay.KindOf(err) != cay.NotFound {
			t.Errorf("a fork that was promoted is there: %v", err)
		}
	}
	for _, one := range []string{fork, id} {
		if err := api.Kill(ctx, one); err != nil && cay.KindOf(err) != cay.NotFound {
			t.Error(err)
		}
	}
	if err := api.RemoveCheckpoint(ctx, point); err != nil {
		t.Errorf("the checkpoint of sandboxes that are over: %v", err)
	}
}
