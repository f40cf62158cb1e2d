package server_test

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/client"
	"github.com/cay-run/cay/internal/machine/host/hosttest"
	"github.com/cay-run/cay/internal/server/servertest"
	"github.com/cay-run/cay/internal/store"
)

// lossy makes a sandbox that goes on when its machine is lost, and writes to its memory.
func lossy(t *testing.T, w *servertest.World, loss bool) string {
	t.Helper()
	box, err := w.Client().Create(t.Context(), client.CreateOptions{Timeout: time.Hour, ResumeOnHostLoss: loss})
	if err != nil {
		t.Fatal(err)
	}
	return box.ID
}

func says(t *testing.T, w *servertest.World, id, text string) {
	t.Helper()
	if code, answer := intoSandbox(t, w, id, "PUT", "/", strings.NewReader(text)); code != http.StatusOK {
		t.Fatal(code, answer)
	}
}

// awaitMemory waits until a sandbox runs, and checks what it remembers.
func awaitMemory(t *testing.T, w *servertest.World, id, want string) {
	t.Helper()
	for begun := time.Now(); time.Since(begun) < time.Minute; time.Sleep(20 * time.Millisecond) {
		if info, err := w.Client().Info(t.Context(), id); err == nil && info.State == "running" {
			if code, text := intoSandbox(t, w, id, "GET", "/", nil); code != http.StatusOK || text != want {
				t.Errorf("sandbox %s answers %d %q, not %q", id, code, text, want)
			}
			return
		}
	}
	info, err := w.Client().Info(t.Context(), id)
	t.Fatalf("sandbox %s does not run again: %+v, %v", id, info, err)
}

// checkpointed takes a checkpoint, and waits until the bucket has it where there is one.
func checkpointed(t *testing.T, w *servertest.World, id string, bucket bool) string {
	t.Helper()
	made, err := w.Client().Checkpoint(t.Context(), id, "", "")
	if err != nil {
		t.Fatal(err)
	}
	for begun := time.Now(); bucket; time.Sleep(20 * time.Millisecond) {
		tree, err := w.Client().Tree(t.Context(), id)
		i := slices.IndexFunc(tree.Checkpoints, func(c client.Checkpoint) bool { return c.ID == made.ID })
		if err == nil && i >= 0 && tree.Checkpoints[i].ReplicatedAt != nil {
			break
		}
		if time.Since(begun) > time.Minute {
			t.Fatalf("checkpoint %s is not in the bucket: %+v, %v", made.ID, tree, err)
		}
	}
	return made.ID
}

// wentOn checks the event that says from which moment a sandbox goes on.
func wentOn(t *testing.T, w *servertest.World, id, snapshot string) {
	t.Helper()
	for e, err := range w.Client().Events(t.Context(), client.EventOptions{Sandbox: id}) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Type != string(cay.SandboxPaused) || e.Reason != cay.ReasonHostLost {
			continue
		}
		if at, err := time.Parse(time.RFC3339, e.Data["savedAt"]); err != nil || at.After(e.At) || time.Since(at) > time.Hour || snapshot != "" && e.Data["snapshot"] != snapshot {
			t.Errorf("sandbox %s: %+v (%v)", id, e, err)
		}
		return
	}
	t.Errorf("no event says from which moment sandbox %s goes on", id)
}

// A machine alone that reboots has those go on that asked for it, from the newest
// checkpoint that they come from; others are over.
func TestGoesOnAfterAReboot(t *testing.T) {
	ctx := t.Context()
	w := servertest.Start(t)
	api := w.Client()
	kept, back, without, plain, slept := lossy(t, w, true), lossy(t, w, true), lossy(t, w, true), lossy(t, w, false), lossy(t, w, true)
	for _, id := range []string{kept, back, plain} {
		says(t, w, id, "first")
		first := checkpointed(t, w, id, false)
		says(t, w, id, "second")
		checkpointed(t, w, id, false)
		if id == back {
			if _, err := api.Rollback(ctx, id, first); err != nil {
				t.Fatal(err)
			}
		}
		says(t, w, id, "lost")
	}
	says(t, w, slept, "paused")
	if err := api.Pause(ctx, slept); err != nil {
		t.Fatal(err)
	}
	w.Stop()
	w.Machine.Reboot()
	w.Start()
	awaitMemory(t, w, kept, "second")
	awaitMemory(t, w, back, "first")
	wentOn(t, w, kept, "")
	for _, id := range []string{without, plain} {
		if _, err := w.Client().Info(ctx, id); cay.KindOf(err) != cay.NotFound {
			t.Errorf("sandbox %s: %v", id, err)
		}
	}
	if info, err := w.Client().Info(ctx, slept); err != nil || info.State != "paused" || info.OnHostLoss != "resume" {
		t.Errorf("what was paused is %+v, %v", info, err)
	}
	if info, err := w.Client().Info(ctx, kept); err != nil || time.Until(info.EndAt) < 50*time.Minute || time.Until(info.EndAt) > time.Hour {
		t.Errorf("it ends at %s: %v", info.EndAt, err)
	}
	// Again, without a checkpoint since: the state that it went on from is kept.
	w.Stop()
	w.Machine.Reboot()
	w.Start()
	awaitMemory(t, w, kept, "second")
	if _, err := w.Client().Connect(ctx, slept, time.Hour); err != nil {
		t.Fatal(err)
	}
	says(t, w, slept, "lost")
	w.Stop()
	w.Machine.Reboot()
	w.Start()
	awaitMemory(t, w, slept, "paused") // from what it was resumed from
}

// In a cluster those go on elsewhere from what the bucket has, once, and the node that
// comes back ends what it still runs of them.
func TestGoesOnElsewhere(t *testing.T) {
	ctx := t.Context()
	c := servertest.StartCluster(t, 3, servertest.Steady)
	c.AwaitReady(3)
	const victim = 1
	front := c.Nodes[0]
	onVictim := func(loss bool) string {
		t.Helper()
		for range 60 {
			id := lossy(t, front, loss)
			if slices.Equal(whereOf(c, id), []int{victim}) {
				return id
			}
		}
		t.Fatal("no sandbox is placed on the victim")
		return ""
	}
	kept, without, plain, slept := onVictim(true), onVictim(true), onVictim(false), onVictim(true)
	points := map[string]string{}
	for _, id := range []string{kept, plain} {
		says(t, front, id, "kept")
		points[id] = checkpointed(t, front, id, true)
		says(t, front, id, "lost")
	}
	says(t, front, slept, "paused")
	if err := front.Client().PauseDurably(ctx, slept, false); err != nil {
		t.Fatal(err)
	}
	w := c.Nodes[victim]
	loseNode(t, w)
	awaitMemory(t, front, kept, "kept")
	wentOn(t, front, kept, points[kept])
	for _, id := range []string{without, plain} {
		awaitKilled(t, front, id)
	}
	if info, err := front.Client().Info(ctx, slept); err != nil || info.State != "paused" {
		t.Errorf("what was paused is %+v, %v", info, err)
	}
	if _, err := c.Nodes[2].Client().Connect(ctx, slept, time.Hour); err != nil {
		t.Error(err)
	}
	awaitMemory(t, c.Nodes[2], slept, "paused")
	says(t, front, kept, "new") // which the other must not change
	w.Start()
	for _, id := range []string{kept, slept} {
		if on := whereOf(c, id); len(on) != 1 || on[0] == victim {
			t.Errorf("sandbox %s runs on %v", id, on)
		}
	}
	if n := len(w.Machine.Guests()); n != 0 {
		t.Errorf("the node that came back has %d guests", n)
	}
	awaitMemory(t, w, kept, "new")
}

// loseNode stops a node's server and has the records say that the node is gone.
func loseNode(t *testing.T, w *servertest.World) {
	t.Helper()
	lost := cay.NodeID(nodeOf(t, w))
	w.Stop()
	w.Records(func(db *store.DB) {
		if gone, err := db.LoseNode(t.Context(), lost, -time.Hour); err != nil || !gone {
			t.Fatal(gone, err)
		}
	})
}

// A sandbox that goes on on another node, by a drain or after a loss, has there what it was
// made with: its variables, its tokens, its secrets' rules and its network.
func TestGoesOnWhole(t *testing.T) {
	ctx := t.Context()
	c := servertest.StartCluster(t, 2, servertest.Steady)
	c.AwaitReady(2)
	front, victim := c.Nodes[0], c.Nodes[1]
	if code, text := call(t, front, front.Key, "POST", "/secrets", `{"name":"KEY","value":"hidden"}`); code != http.StatusCreated {
		t.Fatal(code, text)
	}
	body := `{"templateID":"base","timeout":3600,"secure":true,"onHostLoss":"resume","envVars":{"A":"b"},"metadata":{"of":"one"},
"askCommands":["rm *"],"network":{"allowOut":["example.com"],"denyOut":["0.0.0.0/0"],
"rules":{"example.com":[{"transform":{"headers":{"x-key":"${e2b.secrets.key}"}}}]},"egressProxy":{"address":"proxy.example:1080","username":"u","password":"p"}}}`
	type whole struct {
		Memory hosttest.Memory
		Policy cay.NetworkPolicy
		Told   map[string]any
	}
	look := func(w *servertest.World, id string) whole {
		t.Helper()
		code, text := call(t, front, front.Key, "GET", "/sandboxes/"+id, "")
		told := map[string]any{}
		if err := json.Unmarshal([]byte(text), &told); code != http.StatusOK || err != nil {
			t.Fatal(code, text, err)
		}
		delete(told, "endAt")
		g := w.Machine.Guest(cay.SandboxID(id))
		if g == nil {
			t.Fatalf("sandbox %s runs elsewhere: %v", id, whereOf(c, id))
		}
		return whole{g.Memory(), w.Machine.Policy(cay.SandboxID(id)), told}
	}
	node := nodeOf(t, victim)
	for _, tt := range []struct {
		how string
		end func()
	}{
		{"drained", func() {
			if err := front.Admin("").DrainNode(ctx, node, true); err != nil {
				t.Fatal(err)
			}
			awaitNode(t, c, node, func(n client.ClusterNode) bool { return n.Draining && n.Running+n.Starting+n.Paused == 0 })
			if err := front.Admin("").UndrainNode(ctx, node); err != nil {
				t.Fatal(err)
			}
			awaitNode(t, c, node, func(n client.ClusterNode) bool { return !n.Draining })
		}},
		{"lost", func() { loseNode(t, victim) }},
	} {
		id := ""
		for range 60 {
			if id = made(t, front, "POST", "/sandboxes", body, "sandboxID"); slices.Equal(whereOf(c, id), []int{1}) {
				break
			}
		}
		if code, text := call(t, front, front.Key, "PUT", "/cay/v1/sandboxes/"+id+"/private-network", `{"network":"`+tt.how+`","name":"db"}`); code/100 != 2 {
			t.Fatal(code, text)
		}
		says(t, front, id, "first")
		first := checkpointed(t, front, id, true)
		says(t, front, id, "said")
		checkpointed(t, front, id, true)
		before := look(victim, id)
		tt.end()
		awaitMemory(t, front, id, "said")
		if d := cmp.Diff(before, look(front, id)); d != "" {
			t.Errorf("what was on a node that is %s differs (-before +after):\n%s", tt.how, d)
		}
		if _, err := front.Client().Rollback(ctx, id, first); err != nil { // whose files the other node has
			t.Fatalf("back to a checkpoint that another node took: %v", err)
		}
		awaitMemory(t, front, id, "first")
	}
}

// A node that is cut from the records has what another one may go on with stand still before
// that one does; other sandboxes go on until they are known to be over.
func TestFence(t *testing.T) {
	clusterCuts(t) // its leases are of seconds, which a machine that stalls lets pass
	ctx := t.Context()
	c := servertest.StartCluster(t, 2, servertest.Quick)
	c.AwaitReady(2)
	const victim = 1
	on := func(loss bool) string {
		t.Helper()
		for range 60 {
			if id := lossy(t, c.Nodes[0], loss); slices.Equal(whereOf(c, id), []int{victim}) {
				return id
			}
		}
		t.Fatal("no sandbox is placed on the victim")
		return ""
	}
	fenced, plain := on(true), on(false)
	says(t, c.Nodes[0], fenced, "kept")
	checkpointed(t, c.Nodes[0], fenced, true)
	acts := func(node int, id string) bool { return c.Nodes[node].Machine.Acts(cay.SandboxID(id)) }

	c.Links[victim].Cut()
	for begun := time.Now(); acts(victim, fenced); time.Sleep(5 * time.Millisecond) {
		if acts(0, fenced) {
			t.Fatal("it acts on both nodes")
		}
		if time.Since(begun) > time.Minute {
			t.Fatal("it acts without a lease")
		}
	}
	if !acts(victim, plain) {
		t.Error("a sandbox that asked for nothing stands still")
	}
	awaitMemory(t, c.Nodes[0], fenced, "kept")
	if acts(victim, fenced) {
		t.Error("it acts on both nodes")
	}
	c.Links[victim].Heal()
	<-c.Nodes[victim].Ended()
	c.Nodes[victim].Forget()
	c.Nodes[victim].Start()
	if on := whereOf(c, fenced); !slices.Equal(on, []int{0}) {
		t.Errorf("it runs on %v", on)
	}

	// A lease that comes back in time has it go on.
	c.AwaitReady(2)
	again := on(true)
	c.Links[victim].Cut()
	for begun := time.Now(); acts(victim, again); time.Sleep(5 * time.Millisecond) {
		if time.Since(begun) > time.Minute {
			t.Fatal("it acts without a lease")
		}
	}
	c.Links[victim].Heal()
	for begun := time.Now(); !acts(victim, again); time.Sleep(5 * time.Millisecond) {
		if _, err := c.Nodes[0].Client().Info(ctx, again); cay.KindOf(err) == cay.NotFound {
			t.Skip("this machine stalled for longer than a lease: it was lost")
		}
		if time.Since(begun) > time.Minute {
			t.Fatal("it stands still with a lease")
		}
	}
}
