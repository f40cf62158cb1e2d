package server_test

import (
	"fmt"
	"testing"

	"github.com/cay-run/cay/client"
	"github.com/cay-run/cay/internal/server/servertest"
)

// Each node starts the templates that Cay brings from snapshots of its own, whichever node
// leads: while nodes are upgraded one after the other, they have different engines.
func TestEnginesOfNodes(t *testing.T) {
	t.Parallel() // it waits more than it works
	n := 0
	c := servertest.StartCluster(t, 2, servertest.Steady, func(w *servertest.World) {
		w.Machine.Engine = fmt.Sprint("build", n)
		n++
	})
	c.AwaitReady(2)
	homes := map[string]int{}
	for i := range 20 {
		box, err := c.Nodes[i%2].Client().Create(t.Context(), client.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, at := range whereOf(c, box.ID) {
			homes[c.Nodes[at].Machine.Engine]++
		}
	}
	if len(homes) != 2 {
		t.Errorf("20 sandboxes are made on %v", homes)
	}
}
