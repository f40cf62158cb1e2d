package server_test

import (
	"testing"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/client"
	"github.com/cay-run/cay/internal/server/servertest"
)

// A snapshot starts on every node at once, from the disk of the node that made it, while the bucket
// is away, whether the records tell which node that is or not.
func TestStartsBeforeTheCopy(t *testing.T) {
	t.Parallel() // it waits more than it works
	ctx := t.Context()
	c := servertest.StartCluster(t, 2, servertest.Steady)
	c.AwaitReady(2)
	box, err := c.Nodes[0].Client().Create(ctx, client.CreateOptions{Timeout: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	back := hideBucket(t, c.Bucket)
	defer back()
	for _, known := range []bool{true, false} {
		made, err := c.Nodes[0].Client().Snapshot(ctx, box.ID, "")
		if err != nil {
			t.Fatal(err)
		}
		if !known {
			c.Database.Exec(t, databaseOf(t, c), `UPDATE builds SET made_on = ''`)
		}
		on, begun := map[int]bool{}, time.Now()
		for i := 0; len(on) < 2; i++ {
			if i > 60 {
				t.Fatalf("all sandboxes are on %v", on)
			}
			next, err := c.Nodes[i%2].Client().Create(ctx, client.CreateOptions{Template: made.ID, Timeout: time.Hour})
			if err != nil {
				t.Fatal(err)
			}
			on[whereOf(c, next.ID)[0]] = true
		}
		if took := time.Since(begun); took > 30*time.Second {
			t.Errorf("its node known: %t: it took %s", known, took)
		}
	}
}

// A paused sandbox whose node is away has 503, and one whose node is gone before it copied the
// snapshot is lost; it is there again with its node.
func TestLostSnapshot(t *testing.T) {
	clusterCuts(t)
	ctx := t.Context()
	c := servertest.StartCluster(t, 2, servertest.Quick)
	c.AwaitReady(2)
	victim, other := c.Nodes[1], c.Nodes[0]
	var id string
	for i := 0; id == ""; i++ {
		if i > 60 {
			t.Fatal("no sandbox was placed on the node")
		}
		box, err := other.Client().Create(ctx, client.CreateOptions{Timeout: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		if whereOf(c, box.ID)[0] == 1 {
			id = box.ID
		}
	}
	back := hideBucket(t, c.Bucket)
	if err := other.Client().Pause(ctx, id); err != nil {
		t.Fatal(err)
	}
	node := nodeOf(t, victim)
	victim.Stop()
	back()
	if _, err := other.Client().Connect(ctx, id, time.Hour); cay.KindOf(err) != cay.Unavailable {
		t.Errorf("while its node is away: %v", err)
	}
	awaitGone(t, other, node)
	for range 2 { // which changes nothing
		if _, err := other.Client().Connect(ctx, id, time.Hour); cay.CodeOf(err) != cay.CodeLost {
			t.Errorf("when its node is gone: %v", err)
		}
	}
	victim.Start()
	for begun := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		_, err := other.Client().Connect(ctx, id, time.Hour)
		if err == nil {
			break
		}
		if time.Since(begun) > time.Minute {
			t.Fatalf("when its node is back: %v", err)
		}
	}
}
