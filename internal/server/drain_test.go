package server_test

import (
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/client"
	"github.com/cay-run/cay/internal/server/servertest"
)

// remembers makes a sandbox whose memory has its own id.
func remembers(t *testing.T, c *servertest.Cluster, front int, auto bool) string {
	t.Helper()
	box, err := c.Nodes[front].Client().Create(t.Context(), client.CreateOptions{Timeout: time.Hour, AutoResume: auto})
	if err != nil {
		t.Fatal(err)
	}
	if code, text := intoSandbox(t, c.Nodes[front], box.ID, "PUT", "/", strings.NewReader(box.ID)); code != http.StatusOK {
		t.Fatal(code, text)
	}
	return box.ID
}

// isItself checks that a sandbox has the memory that it had.
func isItself(t *testing.T, w *servertest.World, id string) {
	t.Helper()
	if code, text := intoSandbox(t, w, id, "GET", "/", nil); code != http.StatusOK || text != id {
		t.Errorf("sandbox %s answers %d %q", id, code, text)
	}
}

// A node that is drained gives all that it has to others: what runs goes on there with
// its memory while clients ask, what is paused resumes there, and the node can go.
func TestDrain(t *testing.T) {
	ctx := t.Context()
	c := servertest.StartCluster(t, 3, servertest.Steady)
	c.AwaitReady(3)
	const victim = 1
	var run, slept, elsewhere []string
	for i := 0; len(slept) < 3; i++ { // placed by turns, roughly
		if i > 60 {
			t.Fatalf("of %d sandboxes %d and %d are on node %d", i, len(run), len(slept), victim)
		}
		switch id := remembers(t, c, i%3, i%2 == 0); {
		case !slices.Equal(whereOf(c, id), []int{victim}):
			elsewhere = append(elsewhere, id)
		case len(run) <= len(slept):
			run = append(run, id)
		default:
			slept = append(slept, id)
			if err := c.Nodes[i%3].Client().Pause(ctx, id); err != nil {
				t.Fatal(err)
			}
		}
	}
	hasSaid(t, c, run[0], "before it moves")
	stop := make(chan struct{})
	var asking sync.WaitGroup
	for i, id := range run {
		asking.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				code, text := intoSandbox(t, c.Nodes[i%3], id, "GET", "/", nil)
				again := code == http.StatusServiceUnavailable || code == http.StatusBadGateway // its connection broke
				if !again && (code != http.StatusOK || text != id) {
					t.Errorf("while it moves, sandbox %s answers %d %q", id, code, text)
					return
				}
			}
		})
	}
	drained := nodeOf(t, c.Nodes[victim])
	if err := c.Nodes[0].Admin("").DrainNode(ctx, drained, true); err != nil {
		t.Fatal(err)
	}
	awaitNode(t, c, drained, func(n client.ClusterNode) bool {
		return n.Draining && n.Running+n.Starting+n.Paused == 0 && n.Stuck == ""
	})
	close(stop)
	asking.Wait()
	for i, id := range run {
		if on := whereOf(c, id); len(on) != 1 || on[0] == victim {
			t.Errorf("sandbox %s, which ran, is on %v", id, on)
		}
		isItself(t, c.Nodes[i%3], id)
		info, err := c.Nodes[victim].Client().Info(ctx, id)
		if left := time.Until(info.EndAt); err != nil || left < 50*time.Minute || left > time.Hour {
			t.Errorf("it has %s left: %v", left, err)
		}
	}
	hasSaid(t, c, run[0], "after it has moved")
	for i, w := range c.Nodes {
		said := slices.DeleteFunc(saidBy(t, w, run[0]), func(line string) bool { return !strings.Contains(line, "it") })
		if want := []string{"before it moves", "after it has moved"}; !slices.Equal(said, want) {
			t.Errorf("the log at front %d is %q", i, said)
		}
		if f := search(t, w, "it+moves"); len(f.Lines) != 1 || f.Lines[0].SandboxID != run[0] || !f.Complete {
			t.Errorf("front %d finds %+v", i, f)
		}
	}
	for i, id := range slept {
		if on := whereOf(c, id); len(on) != 0 {
			t.Errorf("sandbox %s, which is paused, runs on %v", id, on)
		}
		if _, err := c.Nodes[(victim+i)%3].Client().Connect(ctx, id, time.Hour); err != nil {
			t.Error(err)
			continue
		}
		if on := whereOf(c, id); len(on) != 1 || on[0] == victim {
			t.Errorf("sandbox %s resumed on %v", id, on)
		}
		isItself(t, c.Nodes[i%3], id)
	}
	for _, id := range elsewhere {
		isItself(t, c.Nodes[victim], id)
		if told(t, c.Nodes[0], id, cay.SandboxPaused) != 0 {
			t.Errorf("sandbox %s of another node was paused", id)
		}
	}
	if n := len(c.Nodes[victim].Machine.Guests()); n != 0 {
		t.Errorf("the node that is drained has %d guests", n)
	}
	c.Nodes[victim].Stop()
	awaitSearch(t, c.Nodes[0], "it+moves", func(f found) bool {
		return len(f.Lines) == 1 && !f.Complete && slices.Equal(f.Unanswered, []string{drained})
	})
	if err := c.Nodes[0].Admin("").RemoveNode(ctx, drained); err != nil {
		t.Errorf("the removal of a node that is empty: %v", err)
	}
	awaitSearch(t, c.Nodes[2], "it+moves", func(f found) bool { return len(f.Lines) == 1 && f.Complete && f.Unanswered == nil })
	for _, id := range slices.Concat(run, slept) {
		isItself(t, c.Nodes[2], id)
	}
}

// onNode makes a sandbox that remembers itself on one node.
func onNode(t *testing.T, c *servertest.Cluster, node int) string {
	t.Helper()
	for range 60 {
		id := remembers(t, c, 0, false)
		if slices.Equal(whereOf(c, id), []int{node}) {
			return id
		}
	}
	t.Fatalf("no sandbox comes to node %d", node)
	return ""
}

// The copy to the bucket takes longer than any client waits. A running sandbox resumes on another node at once,
// with the memory that its node gives, while clients ask; a paused one waits for its copy, and is not
// woken; the bucket gets all that it lacks from either node.
func TestDrainBeforeTheCopy(t *testing.T) {
	ctx := t.Context()
	c := servertest.StartCluster(t, 2, servertest.Steady)
	c.AwaitReady(2)
	ran, slept := onNode(t, c, 1), onNode(t, c, 1)
	back := hideBucket(t, c.Bucket)
	if err := c.Nodes[0].Client().Pause(ctx, slept); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var asking sync.WaitGroup
	for front := range c.Nodes {
		asking.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				begun := time.Now()
				code, text := intoSandbox(t, c.Nodes[front], ran, "GET", "/", nil)
				broke := code == http.StatusBadGateway // the connection of one that was under way
				if !broke && (code != http.StatusOK || text != ran) || time.Since(begun) > 10*time.Second {
					t.Errorf("front %d: while it moves it answers %d %q after %s", front, code, text, time.Since(begun))
					return
				}
			}
		})
	}
	drained := nodeOf(t, c.Nodes[1])
	if err := c.Nodes[0].Admin("").DrainNode(ctx, drained, true); err != nil {
		t.Fatal(err)
	}
	awaitNode(t, c, drained, func(n client.ClusterNode) bool { return n.Draining && n.Running+n.Starting == 0 && n.Paused == 1 })
	close(stop)
	asking.Wait()
	if on := whereOf(c, ran); !slices.Equal(on, []int{0}) {
		t.Errorf("what ran is on %v", on)
	}
	isItself(t, c.Nodes[1], ran)
	if n := told(t, c.Nodes[0], ran, cay.SandboxPaused); n != 1 {
		t.Errorf("it was paused %d times", n)
	}
	back()
	awaitNode(t, c, drained, func(n client.ClusterNode) bool {
		return n.Draining && n.Running+n.Starting+n.Paused == 0 && n.Stuck == ""
	})
	c.Nodes[1].Stop()
	if err := c.Nodes[0].Admin("").RemoveNode(ctx, drained); err != nil {
		t.Error(err)
	}
	isItself(t, c.Nodes[0], ran)
	if _, err := c.Nodes[0].Client().Connect(ctx, slept, time.Hour); err != nil {
		t.Fatal(err)
	}
	isItself(t, c.Nodes[0], slept)
}

// A sandbox whose way to another node a client's pause comes into stays paused, and a pause that was
// durable is in the bucket.
func TestPauseOnTheWay(t *testing.T) {
	ctx := t.Context()
	c := servertest.StartCluster(t, 2, servertest.Steady)
	c.AwaitReady(2)
	id := onNode(t, c, 1)
	drained := nodeOf(t, c.Nodes[1])
	if err := c.Nodes[0].Admin("").DrainNode(ctx, drained, true); err != nil {
		t.Fatal(err)
	}
	for {
		err := c.Nodes[0].Client().PauseDurably(ctx, id, false)
		if err == nil {
			break
		}
		if cay.KindOf(err) != cay.Unavailable {
			t.Fatal(err)
		}
	}
	awaitNode(t, c, drained, func(n client.ClusterNode) bool {
		return n.Draining && n.Running+n.Starting+n.Paused == 0 && n.Stuck == ""
	})
	if info, err := c.Nodes[0].Client().Info(ctx, id); err != nil || info.State != "paused" || info.Replicated == nil || !*info.Replicated {
		t.Errorf("what was paused durably is %+v, %v", info, err)
	}
	if _, err := c.Nodes[0].Client().Connect(ctx, id, time.Hour); err != nil {
		t.Fatal(err)
	}
	isItself(t, c.Nodes[0], id)
}

// A sandbox that cannot move keeps running where it is: no other node takes any.
func TestDrainThatCannot(t *testing.T) {
	ctx := t.Context()
	c := servertest.StartCluster(t, 2, servertest.Steady)
	c.AwaitReady(2)
	admin, api := c.Nodes[0].Admin(""), c.Nodes[0].Client()
	first, second := nodeOf(t, c.Nodes[0]), nodeOf(t, c.Nodes[1])
	id := onNode(t, c, 1)
	here := func(when string) {
		t.Helper()
		isItself(t, c.Nodes[0], id)
		if on := whereOf(c, id); !slices.Equal(on, []int{1}) {
			t.Fatalf("%s: it runs on %v", when, on)
		}
	}
	// Nothing takes it.
	for _, node := range []string{first, second} {
		if err := admin.DrainNode(ctx, node, node == second); err != nil {
			t.Fatal(err)
		}
	}
	awaitNode(t, c, second, func(n client.ClusterNode) bool { return strings.Contains(n.Stuck, "no node") })
	here("no other node takes any")

	// With waiting nothing is paused, and what its client pauses goes.
	if err := admin.UndrainNode(ctx, first); err != nil {
		t.Fatal(err)
	}
	if err := admin.DrainNode(ctx, second, false); err != nil {
		t.Fatal(err)
	}
	here("it waits")
	if err := api.Pause(ctx, id); err != nil {
		t.Fatal(err)
	}
	awaitNode(t, c, second, func(n client.ClusterNode) bool { return n.Paused+n.Running+n.Starting == 0 })
	if _, err := api.Connect(ctx, id, time.Hour); err != nil {
		t.Fatal(err)
	}
	isItself(t, c.Nodes[1], id)
	if on := whereOf(c, id); !slices.Equal(on, []int{0}) {
		t.Errorf("it resumed on %v", on)
	}
}

// A private network is on one node: sandboxes are made beside its members, one of another node is
// refused, every front lists all, and a drain brings its members to one node.
func TestNetworkStaysTogether(t *testing.T) {
	ctx := t.Context()
	c := servertest.StartCluster(t, 3, servertest.Steady)
	c.AwaitReady(3)
	const victim = 2
	create := func(front int, near string) string {
		t.Helper()
		box, err := c.Nodes[front].Client().Create(ctx, client.CreateOptions{Timeout: time.Hour, Near: near})
		if err != nil {
			t.Fatal(err)
		}
		return box.ID
	}
	first, other := "", ""
	for i := 0; i < 60 && (first == "" || other == ""); i++ {
		switch id := create(0, ""); {
		case slices.Equal(whereOf(c, id), []int{victim}):
			first = id
		default:
			other = id
		}
	}
	if first == "" || other == "" {
		t.Fatal("all sandboxes are on one node")
	}
	members := []string{first}
	for i := range 3 {
		members = append(members, create(i%3, first))
	}
	for i, id := range members {
		if on := whereOf(c, id); !slices.Equal(on, []int{victim}) {
			t.Errorf("a sandbox beside one of node %d is on %v", victim, on)
		}
		if err := c.Nodes[i%3].Client().Join(ctx, id, "lan", ""); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Nodes[0].Client().Join(ctx, other, "lan", ""); cay.CodeOf(err) != cay.CodeNetworkElsewhere {
		t.Errorf("one of another node joins: %v", err)
	}
	if err := c.Nodes[0].Client().Join(ctx, other, "lan2", ""); err != nil {
		t.Error(err)
	}
	for i, w := range c.Nodes {
		list, err := w.Client().Members(ctx)
		if err != nil || len(list) != len(members)+1 {
			t.Errorf("front %d lists %+v, %v", i, list, err)
		}
	}
	for near, kind := range map[string]cay.Kind{"inone": cay.NotFound, "no/id": cay.NotFound} {
		if _, err := c.Nodes[0].Client().Create(ctx, client.CreateOptions{Near: near}); cay.KindOf(err) != kind {
			t.Errorf("beside %q: %v", near, err)
		}
	}
	drained := nodeOf(t, c.Nodes[victim])
	if err := c.Nodes[0].Admin("").DrainNode(ctx, drained, true); err != nil {
		t.Fatal(err)
	}
	awaitNode(t, c, drained, func(n client.ClusterNode) bool { return n.Draining })
	awaitNode(t, c, drained, func(n client.ClusterNode) bool { return n.Running+n.Starting+n.Paused == 0 })
	at := whereOf(c, first)
	for _, id := range members {
		if on := whereOf(c, id); !slices.Equal(on, at) || slices.Contains(on, victim) {
			t.Errorf("after the drain one member is on %v, another one on %v", at, on)
		}
	}
	create(1, first)
	if err := c.Nodes[0].Client().Join(ctx, create(1, members[3]), "lan", ""); err != nil {
		t.Error(err)
	}
}

// A node that leads and is drained gives the lead away, and leads again where no other
// one takes new sandboxes.
func TestDrainedLead(t *testing.T) {
	ctx := t.Context()
	c := servertest.StartCluster(t, 2, servertest.Steady)
	c.AwaitReady(2)
	admin := c.Nodes[0].Admin("")
	leads := func(want string) {
		t.Helper()
		for begun := time.Now(); time.Since(begun) < time.Minute; time.Sleep(20 * time.Millisecond) {
			if seen, err := admin.Cluster(ctx); err == nil && seen.Lead == want && c.Nodes[0].ReachesLead() {
				return
			}
		}
		t.Fatalf("%s does not lead", want)
	}
	first, second := nodeOf(t, c.Nodes[0]), nodeOf(t, c.Nodes[1])
	leads(first)
	for _, drained := range []string{first, second} { // the second time the other one is drained too
		if err := admin.DrainNode(ctx, drained, false); err != nil {
			t.Fatal(err)
		}
		leads(second)
	}
	if err := admin.UndrainNode(ctx, first); err != nil {
		t.Fatal(err)
	}
	leads(first)
	for i, w := range c.Nodes { // what the one that leads answers, by both
		for begun := time.Now(); ; time.Sleep(20 * time.Millisecond) {
			_, err := w.Client().Templates(ctx)
			if err == nil {
				break
			}
			if cay.KindOf(err) != cay.Unavailable || time.Since(begun) > time.Minute { // it knows with its next renewal
				t.Fatalf("front %d: %v", i, err)
			}
		}
	}
}
