package main

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/client"
)

// A status of many nodes shows those that an operator looks for.
func TestRemarkable(t *testing.T) {
	var c client.Cluster
	for i := range 1000 {
		c.Nodes = append(c.Nodes, client.ClusterNode{ID: fmt.Sprint(i), State: string(cay.NodeReady)})
	}
	c.Lead, c.Nodes[7].Draining, c.Nodes[9].State = "3", true, string(cay.NodeSilent)
	var ids []string
	for _, n := range remarkable(c) {
		ids = append(ids, n.ID)
	}
	if want := []string{"3", "7", "9"}; !slices.Equal(ids, want) {
		t.Errorf("of 1000 nodes %v are shown, want %v", ids, want)
	}
	if c.Nodes = c.Nodes[:statusMost]; len(remarkable(c)) != statusMost {
		t.Errorf("of %d nodes %d are shown", statusMost, len(remarkable(c)))
	}
}

// A drain is over when the node has told, long enough after it began, that it has nothing
// left and builds nothing.
func TestLeftOn(t *testing.T) {
	long := time.Now().Add(-time.Minute)
	for name, x := range map[string]struct {
		node  client.ClusterNode
		since time.Time
		left  string
		over  cay.Kind
	}{
		"nothing":         {client.ClusterNode{Draining: true}, long, "", ""},
		"not told yet":    {client.ClusterNode{Draining: true}, time.Now(), ": 0 run, 0 are paused", ""},
		"sandboxes":       {client.ClusterNode{Draining: true, Running: 1, Starting: 1, Paused: 3}, long, ": 2 run, 3 are paused", ""},
		"a build":         {client.ClusterNode{Draining: true, Stuck: "it builds"}, long, ": 0 run, 0 are paused; it builds", ""},
		"undrained":       {client.ClusterNode{Running: 1}, long, "", cay.Conflict},
		"its server ends": {client.ClusterNode{Draining: true, State: string(cay.NodeStopped), Paused: 1}, long, "", cay.Unavailable},
	} {
		left, over := leftOn(x.node, x.since)
		if left != x.left || cay.KindOf(over) != x.over && (over != nil || x.over != "") {
			t.Errorf("%s: %q, %v", name, left, over)
		}
	}
}
