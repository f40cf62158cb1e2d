package server_test

import (
	"errors"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/server/historytest"
	"github.com/cay-run/cay/internal/server/servertest"
	"github.com/cay-run/cay/internal/store"
)

// Nodes fail in four ways, CLUSTER_CUTS times, while clients do all that they can: what
// they saw of each sandbox is explained by one that is on one machine, nothing acts on two
// nodes, and what is over was ended, or ran on a node that was lost.
func TestHistories(t *testing.T) {
	rounds := clusterCuts(t)
	c := servertest.StartCluster(t, 3, servertest.Quick)
	c.AwaitReady(3)
	at := frontsOf(c)
	for round := range rounds {
		victim := round % 3
		fault := []string{"cut", "restart", "power", "short cut"}[round%4]
		h := clientsOf(at)
		stop, watched := make(chan struct{}), make(chan struct{})
		var workers sync.WaitGroup
		for worker := range 6 {
			workers.Go(func() { h.Work(t.Context(), worker, stop) })
		}
		go func() {
			defer close(watched)
			watch(t, h, c, stop)
		}()
		time.Sleep(time.Second) // load for a while
		from := h.Now()
		fail(t, c, at, victim, fault)
		close(stop)
		workers.Wait()
		<-watched
		if fault == "cut" || fault == "power" {
			h.Lose(from)
		}
		c.AwaitReady(3)
		judge(t, c, h)
		t.Logf("round %d of %d: %s of node %d", round+1, rounds, fault, victim)
	}
}

func frontsOf(c *servertest.Cluster) *historytest.Fronts {
	at := &historytest.Fronts{}
	for i, w := range c.Nodes {
		at.Set(i, front(w))
	}
	return at
}

func clientsOf(at *historytest.Fronts) *historytest.Clients {
	return &historytest.Clients{Histories: historytest.New(), At: at, Whats: historytest.All, Most: 60, Longest: historytest.Longest}
}

// judge ends all that clients have, and reports what no sandbox on one machine would answer.
func judge(t *testing.T, c *servertest.Cluster, h *historytest.Clients) {
	t.Helper()
	for _, wrong := range h.End(t.Context(), 0) {
		t.Error(wrong)
	}
	for _, id := range h.IDs() {
		awaitNowhere(t, c, id)
	}
	report := h.Check()
	for _, wrong := range report.Wrong {
		t.Error(wrong)
	}
	t.Logf("%d sandboxes, %d calls, %d of them without a clear answer", report.Sandboxes, report.Calls, report.Unclear)
}

func front(w *servertest.World) historytest.Front {
	return historytest.Front{API: w.Client(), HTTP: http.DefaultClient}
}

// fail has a node fail, and be a member again.
func fail(t *testing.T, c *servertest.Cluster, at *historytest.Fronts, victim int, fault string) {
	t.Helper()
	w, other := c.Nodes[victim], c.Nodes[(victim+1)%3]
	id := nodeOf(t, w)
	switch fault {
	case "cut":
		c.Links[victim].Cut()
		awaitGone(t, other, id)
		time.Sleep(2 * time.Second) // what goes on elsewhere does, while this one is cut off still
		c.Links[victim].Heal()
		if err := <-w.Ended(); !errors.Is(err, store.ErrTakenOver) {
			t.Errorf("the lost node ended with %v", err)
		}
		w.Forget()
	case "power":
		w.Stop()
		w.Machine.Reboot()
		awaitGone(t, other, id)
	case "restart":
		w.Stop()
	case "short cut":
		c.Links[victim].Cut()
		time.Sleep(2 * time.Second)
		c.Links[victim].Heal()
		time.Sleep(time.Second)
		return
	}
	w.Start()
	at.Set(victim, front(w))
}

// watch fails where a sandbox acts on two nodes at once. A look at one machine after the
// other can see a sandbox that has just moved twice: two looks at the first one tell.
func watch(t *testing.T, h *historytest.Clients, c *servertest.Cluster, stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		case <-time.After(20 * time.Millisecond):
		}
		for _, id := range h.IDs() {
			id := cay.SandboxID(id)
			for i, w := range c.Nodes {
				if !w.Machine.Acts(id) {
					continue
				}
				for j, other := range c.Nodes {
					if j != i && other.Machine.Acts(id) && w.Machine.Acts(id) {
						t.Errorf("sandbox %s acts on nodes %d and %d", id, i, j)
					}
				}
			}
		}
	}
}
