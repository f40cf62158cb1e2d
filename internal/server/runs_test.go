package server_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/client"
	"github.com/cay-run/cay/internal/server/servertest"
)

// heldRun is a hook whose command waits for a word, and counts how often it began.
type heldRun struct {
	name, home string
	sandbox    string
}

func hold(t *testing.T, c *servertest.Cluster, front int, name, home, sandbox string) heldRun {
	t.Helper()
	h := heldRun{name, home, sandbox}
	if err := syscall.Mkfifo(h.file(".go"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := c.Nodes[front].Client().CreateTrigger(t.Context(), client.TriggerOptions{
		Kind: "hook", Name: &name, Proof: ptr("bearer"), SandboxID: &sandbox, After: ptr("keep"),
		Command: ptr("echo once >> " + h.file("") + "; cat " + h.file(".go") + "; exit 7"), Timeout: ptr(120),
	})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func (h heldRun) file(what string) string { return filepath.Join(h.home, h.name+what) }

// begins starts a run by a front, and waits until its command has begun.
func (h heldRun) begins(t *testing.T, w *servertest.World) (run string) {
	t.Helper()
	begun, err := w.Client().StartRun(t.Context(), h.name, "text/plain", []byte("x"))
	if err != nil {
		t.Fatal(err)
	}
	for at := time.Now(); h.count() == ""; time.Sleep(5 * time.Millisecond) {
		if time.Since(at) > time.Minute {
			run, err := w.Client().TriggerRun(t.Context(), begun.ID)
			t.Fatalf("no command of %s begins: %+v, %v\n%s", h.name, run, err, w.Log())
		}
	}
	return begun.ID
}

func (h heldRun) count() string {
	text, _ := os.ReadFile(h.file(""))
	return string(text)
}

// ends has the command end, and checks what the run came to.
func (h heldRun) ends(t *testing.T, w *servertest.World, run string) {
	t.Helper()
	go os.WriteFile(h.file(".go"), []byte("on\n"), 0)
	var last client.TriggerRun
	var err error
	for at := time.Now(); ; time.Sleep(10 * time.Millisecond) { // for a moment no node may lead
		if last, err = w.Client().TriggerRun(t.Context(), run); err == nil && last.Over() {
			break
		}
		if time.Since(at) > time.Minute {
			t.Fatalf("after a minute: %+v, %v\n%s", last, err, w.Log())
		}
	}
	if last.State != "failed" || last.ExitCode == nil || *last.ExitCode != 7 || last.SandboxID != h.sandbox || last.Attempt != 1 {
		t.Errorf("%s: the run is %+v\n%s", h.name, last, w.Log())
	}
	if h.count() != "once\n" {
		t.Errorf("%s: its command began %q", h.name, h.count())
	}
}

// Runs reach the sandboxes of all nodes, and go on through what may become of a node, of
// the one that leads and of a sandbox.
func TestRunsOfAllNodes(t *testing.T) {
	t.Parallel() // it waits more than it works
	ctx := t.Context()
	home := t.TempDir()
	agent := servertest.RealAgent(t, home)
	c := servertest.StartCluster(t, 3, servertest.Steady, func(w *servertest.World) { w.Machine.Agent = agent })
	c.AwaitReady(3)
	t.Cleanup(func() { // as of hooked
		for at := time.Now(); ; time.Sleep(10 * time.Millisecond) {
			left, err := c.Nodes[2].Client().TriggerRuns(context.WithoutCancel(ctx), client.TriggerRunOptions{State: "running"})
			if err == nil && len(left) == 0 {
				return
			}
			if time.Since(at) > time.Minute {
				t.Fatalf("runs go on: %+v, %v", left, err)
			}
		}
	})
	on := func(node int, o client.CreateOptions) string { // a sandbox of that node
		t.Helper()
		var others []string // which keep their places, so that another node is the best in the end
		defer func() {
			for _, id := range others {
				if err := c.Nodes[0].Client().Kill(ctx, id); err != nil {
					t.Error(err)
				}
			}
		}()
		for at := time.Now(); time.Since(at) < time.Minute; time.Sleep(20 * time.Millisecond) { // its server may have begun just now
			o.Timeout = time.Hour
			box, err := c.Nodes[0].Client().Create(ctx, o)
			if err != nil {
				t.Fatal(err)
			}
			if slices.Equal(whereOf(c, box.ID), []int{node}) {
				return box.ID
			}
			others = append(others, box.ID)
		}
		t.Fatalf("none is on node %d", node)
		return ""
	}
	ended := func(w *servertest.World, id string) client.TriggerRun {
		t.Helper()
		return until(t, w, id, client.TriggerRun.Over)
	}
	t.Run("made for each run", func(t *testing.T) {
		_, err := c.Nodes[1].Client().CreateTrigger(ctx, client.TriggerOptions{
			Kind: "hook", Name: ptr("makes"), Proof: ptr("bearer"), Template: ptr("base"), After: ptr("keep"), Command: ptr("cat $CAY_PAYLOAD"), MaxRunning: ptr(8),
		})
		if err != nil {
			t.Fatal(err)
		}
		var runs []string
		for i := range 12 {
			run, err := c.Nodes[i%3].Client().StartRun(ctx, "makes", "text/plain", fmt.Append(nil, "run ", i))
			if err != nil {
				t.Fatal(err)
			}
			runs = append(runs, run.ID)
		}
		nodes := map[int]bool{}
		for i, id := range runs {
			run := ended(c.Nodes[(i+1)%3], id)
			if run.State != "succeeded" || run.Output != fmt.Sprint("run ", i) {
				t.Errorf("run %d: %+v\n%s", i, run, c.Nodes[0].Log())
				continue
			}
			at := whereOf(c, run.SandboxID)
			if len(at) != 1 {
				t.Fatalf("its sandbox is on %v", at)
			}
			nodes[at[0]] = true
			if err := c.Nodes[0].Client().Kill(ctx, run.SandboxID); err != nil {
				t.Error(err)
			}
		}
		if len(nodes) < 2 {
			t.Errorf("12 sandboxes of runs are all on nodes %v", nodes)
		}
	})
	t.Run("a sandbox that sleeps on another node", func(t *testing.T) {
		id := on(2, client.CreateOptions{})
		if err := c.Nodes[1].Client().Pause(ctx, id); err != nil {
			t.Fatal(err)
		}
		_, err := c.Nodes[1].Client().CreateTrigger(ctx, client.TriggerOptions{Kind: "hook", Name: ptr("wakes"), Proof: ptr("bearer"), SandboxID: &id, Command: ptr("echo awake")})
		if err != nil {
			t.Fatal(err)
		}
		run, err := c.Nodes[1].Client().StartRun(ctx, "wakes", "text/plain", nil)
		if err != nil {
			t.Fatal(err)
		}
		if run = ended(c.Nodes[0], run.ID); run.State != "succeeded" || run.Output != "awake\n" || run.SandboxID != id {
			t.Errorf("%+v\n%s", run, c.Nodes[0].Log())
		}
		for at := time.Now(); ; time.Sleep(10 * time.Millisecond) { // it is paused behind the run
			if info, err := c.Nodes[1].Client().Info(ctx, id); err == nil && info.State == "paused" {
				break
			} else if time.Since(at) > time.Minute {
				t.Fatalf("%+v, %v", info, err)
			}
		}
	})
	t.Run("one that is over", func(t *testing.T) {
		id := on(1, client.CreateOptions{})
		_, err := c.Nodes[2].Client().CreateTrigger(ctx, client.TriggerOptions{Kind: "hook", Name: ptr("late"), Proof: ptr("bearer"), SandboxID: &id, Command: ptr("true")})
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Nodes[2].Client().Kill(ctx, id); err != nil {
			t.Fatal(err)
		}
		run, err := c.Nodes[2].Client().StartRun(ctx, "late", "text/plain", nil)
		if err != nil {
			t.Fatal(err)
		}
		if run = ended(c.Nodes[1], run.ID); run.State != "failed" || !strings.Contains(run.Error, "not found") {
			t.Errorf("%+v", run)
		}
		if _, err := c.Nodes[1].Client().UpdateTrigger(ctx, "late", client.TriggerOptions{SandboxID: &id}); cay.KindOf(err) != cay.NotFound {
			t.Errorf("a trigger of what is over: %v", err)
		}
	})
	t.Run("a command is asked about", func(t *testing.T) {
		id := on(1, client.CreateOptions{AskCommands: []string{"*asked*"}})
		_, err := c.Nodes[2].Client().CreateTrigger(ctx, client.TriggerOptions{Kind: "hook", Name: ptr("asks"), Proof: ptr("bearer"), SandboxID: &id, After: ptr("keep"), Command: ptr("echo asked")})
		if err != nil {
			t.Fatal(err)
		}
		decider := c.Nodes[2].ClientOf(operatorsKey(t, c.Nodes[0], "approvals:decide", "sandboxes:read").Key)
		for _, yes := range []bool{true, false} {
			run, err := c.Nodes[2].Client().StartRun(ctx, "asks", "text/plain", nil)
			if err != nil {
				t.Fatal(err)
			}
			for at := time.Now(); ; time.Sleep(10 * time.Millisecond) {
				list, err := decider.Approvals(ctx, client.ApprovalOptions{SandboxID: id, State: "pending"})
				if err == nil && len(list) == 1 {
					if _, err := decider.DecideApproval(ctx, list[0].ID, yes, "", ""); err != nil {
						t.Fatal(err)
					}
					break
				}
				if time.Since(at) > time.Minute {
					run, _ = c.Nodes[2].Client().TriggerRun(ctx, run.ID)
					t.Fatalf("no question: %v, %v, %+v", list, err, run)
				}
			}
			if run = ended(c.Nodes[1], run.ID); yes != (run.State == "succeeded") || yes != (run.Output == "asked\n") || !yes && !strings.Contains(run.Error, "is denied") {
				t.Errorf("with %v: %+v", yes, run)
			}
		}
	})
	t.Run("cancelled by another front", func(t *testing.T) {
		h := hold(t, c, 1, "cancelled", home, on(2, client.CreateOptions{}))
		run := h.begins(t, c.Nodes[2])
		if err := c.Nodes[1].Client().CancelRun(ctx, run); err != nil {
			t.Fatal(err)
		}
		if run := ended(c.Nodes[2], run); run.State != "cancelled" {
			t.Errorf("%+v", run)
		}
		// Its command was killed: nothing reads what it waited for.
		if f, err := os.OpenFile(h.file(".go"), os.O_WRONLY|syscall.O_NONBLOCK, 0); err == nil {
			f.Close()
			t.Error("the command goes on")
		}
	})
	t.Run("its node's server starts anew", func(t *testing.T) {
		h := hold(t, c, 1, "restarted", home, on(2, client.CreateOptions{}))
		run := h.begins(t, c.Nodes[1])
		c.Nodes[2].Stop()
		time.Sleep(2 * time.Second) // longer than the run looks for what has merely broken
		c.Nodes[2].Start()
		h.ends(t, c.Nodes[1], run)
	})
	t.Run("its node is drained", func(t *testing.T) {
		id := on(2, client.CreateOptions{})
		h := hold(t, c, 1, "drained", home, id)
		run := h.begins(t, c.Nodes[1])
		drained := nodeOf(t, c.Nodes[2])
		if err := c.Nodes[1].Admin("").DrainNode(ctx, drained, true); err != nil {
			t.Fatal(err)
		}
		awaitNode(t, c, drained, func(n client.ClusterNode) bool { return n.Draining && n.Running+n.Starting+n.Paused == 0 })
		if at := whereOf(c, id); len(at) != 1 || at[0] == 2 {
			t.Errorf("it is on %v", at)
		}
		h.ends(t, c.Nodes[1], run)
		if err := c.Nodes[1].Admin("").UndrainNode(ctx, drained); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("another node leads", func(t *testing.T) {
		h := hold(t, c, 2, "led", home, on(1, client.CreateOptions{}))
		run := h.begins(t, c.Nodes[2])
		c.Nodes[0].Stop()
		h.ends(t, c.Nodes[2], run)
	})
}
