package server_test

import (
	"slices"
	"testing"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/server/servertest"
)

type foundLine struct {
	SandboxID, Message string
	Timestamp          time.Time
}

// found is what a search in the logs of all sandboxes finds.
type found struct {
	Lines      []foundLine
	Complete   bool
	Sandboxes  int
	Unanswered []string
}

func search(t *testing.T, w *servertest.World, query string) (f found) {
	t.Helper()
	asAdmin(t, w, "GET", "/cay/v1/logs?search="+query, "", &f)
	return f
}

// hasSaid has a sandbox say a line, which its node keeps.
func hasSaid(t *testing.T, c *servertest.Cluster, id, text string) {
	t.Helper()
	on := whereOf(c, id)
	if len(on) != 1 {
		t.Fatalf("sandbox %s runs on %v", id, on)
	}
	c.Nodes[on[0]].Machine.Guest(cay.SandboxID(id)).Say(text)
	for begun := time.Now(); !slices.Contains(saidBy(t, c.Nodes[0], id), text); time.Sleep(50 * time.Millisecond) {
		if time.Since(begun) > 30*time.Second {
			t.Fatalf("the log of sandbox %s is %q", id, saidBy(t, c.Nodes[0], id))
		}
	}
}

// saidBy are the messages of a sandbox's log, oldest first.
func saidBy(t *testing.T, w *servertest.World, id string) (out []string) {
	t.Helper()
	var all struct{ Logs []struct{ Message string } }
	asAdmin(t, w, "GET", "/v2/sandboxes/"+id+"/logs?direction=forward", "", &all)
	for _, l := range all.Logs {
		out = append(out, l.Message)
	}
	return out
}

// awaitSearch waits until a search of logs finds something: nodes see each other with a delay.
func awaitSearch(t *testing.T, w *servertest.World, query string, is func(found) bool) {
	t.Helper()
	for begun := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		f := search(t, w, query)
		if is(f) {
			return
		}
		if time.Since(begun) > 30*time.Second {
			t.Fatalf("the search finds %+v", f)
		}
	}
}
