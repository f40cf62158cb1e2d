package server_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/client"
	"github.com/cay-run/cay/internal/server/servertest"
	"github.com/cay-run/cay/internal/store/pgtest"
)

// The machine of the records dies, CLUSTER_CUTS times, and its synchronous standby is
// promoted, while clients do all that they can: nothing that was acknowledged is lost, what
// runs answers all the time, and creates are back within seconds.
func TestFailover(t *testing.T) {
	rounds := clusterCuts(t)
	primary := pgtest.Start(t)
	standby := primary.Standby(t)
	both := "," + standby.Dir() // each node's own link leads to the first one
	c := servertest.StartClusterOn(t, primary, 3, servertest.Steady, func(w *servertest.World) { w.Config.DatabaseURL += both })
	c.AwaitReady(3)
	at := frontsOf(c)
	for round := range rounds {
		away := time.Duration(rand.IntN(3000)) * time.Millisecond
		if round%5 == 4 { // longer than a request waits
			away = 15 * time.Second
		}
		h := clientsOf(at)
		stop := make(chan struct{})
		var running sync.WaitGroup
		for worker := range 6 {
			running.Go(func() { h.Work(t.Context(), worker, stop) })
		}
		running.Go(func() { watch(t, h, c, stop) })
		running.Go(func() { answersAlways(t, c, stop) })
		time.Sleep(time.Second) // load for a while
		primary.Stop(syscall.SIGKILL)
		time.Sleep(away)
		standby.Promote()
		back := createsAgain(t, c.Nodes[round%3])
		time.Sleep(time.Second) // load on the new one
		close(stop)
		running.Wait()
		judge(t, c, h)
		rowsAreInstances(t, c)
		t.Logf("round %d of %d: away for %s, creates were back %s after the new primary", round+1, rounds, away, back.Round(time.Millisecond))
		primary.Follow(standby)
		primary, standby = standby, primary
	}
}

// createsAgain is how long it takes until a create succeeds.
func createsAgain(t *testing.T, w *servertest.World) time.Duration {
	t.Helper()
	begun := time.Now()
	for time.Since(begun) < 30*time.Second {
		box, err := w.Client().Create(t.Context(), client.CreateOptions{Timeout: time.Hour})
		if err == nil {
			took := time.Since(begun)
			if err := w.Client().Kill(t.Context(), box.ID); err != nil {
				t.Error(err)
			}
			return took
		}
	}
	t.Error("there are no creates half a minute after the new primary")
	return time.Since(begun)
}

// answersAlways asks a sandbox that runs, straight and through another node, whatever
// happens to the records.
func answersAlways(t *testing.T, c *servertest.Cluster, stop <-chan struct{}) {
	box, err := c.Nodes[0].Client().Create(t.Context(), client.CreateOptions{Timeout: time.Hour})
	if err != nil {
		t.Error(err)
		return
	}
	longest, asked := time.Duration(0), 0
	for ended := false; !ended; asked++ {
		select {
		case <-stop:
			ended = true
		case <-time.After(10 * time.Millisecond):
		}
		begun := time.Now()
		if code, text := intoSandbox(t, c.Nodes[asked%3], box.ID, http.MethodGet, "/", nil); code != http.StatusOK {
			t.Errorf("request %d into a sandbox that runs: %d %s", asked, code, text)
		}
		longest = max(longest, time.Since(begun))
	}
	if err := c.Nodes[1].Client().Kill(t.Context(), box.ID); err != nil {
		t.Error(err)
	}
	t.Logf("a sandbox was asked %d times, for %s at most", asked, longest.Round(time.Millisecond))
}

// rowsAreInstances waits until each sandbox that runs by the records has an instance, and
// each instance a record that says so; then it ends all.
func rowsAreInstances(t *testing.T, c *servertest.Cluster) {
	t.Helper()
	var differ []string
	for begun := time.Now(); time.Since(begun) < time.Minute; time.Sleep(100 * time.Millisecond) {
		list, err := c.Nodes[0].Client().List(t.Context())
		if err != nil {
			continue
		}
		differ = nil
		runs := map[cay.SandboxID]bool{}
		for _, box := range list {
			runs[cay.SandboxID(box.ID)] = box.State == "running"
			if on := whereOf(c, box.ID); box.State == "running" && len(on) != 1 {
				differ = append(differ, fmt.Sprintf("sandbox %s runs by its record, and on nodes %v", box.ID, on))
			}
		}
		for i, w := range c.Nodes {
			for _, g := range w.Machine.Guests() {
				if id := cay.SandboxID(g.Memory().SandboxID); !runs[id] {
					differ = append(differ, fmt.Sprintf("an instance of sandbox %q lives on node %d", id, i))
				}
			}
		}
		if differ == nil {
			for _, box := range list {
				_ = c.Nodes[0].Client().Kill(t.Context(), box.ID) // it may have ended
			}
			return
		}
	}
	t.Errorf("after a minute:\n%s", strings.Join(differ, "\n"))
}
