package main

import (
	"testing"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/client"
)

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
