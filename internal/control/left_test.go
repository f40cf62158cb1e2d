package control_test

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cay-run/cay"
)

// A node that is drained is not so before the node that a sandbox went to has all of its memory, or
// the bucket: also when its server starts anew in between, and no more of them are on their way at
// once than share a link.
func TestLeavesWithItsMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.member = true
		w.restart()
		const all = 6
		var boxes []cay.Sandbox
		for range all {
			boxes = append(boxes, w.create(time.Hour))
		}
		var handed atomic.Int32
		hand := func(ctx context.Context, s cay.Sandbox, _ []byte) error {
			handed.Add(1)
			taken, err := w.store.TakeSandbox(ctx, s.ID, "n", s.Version, "other")
			if err == nil {
				taken.State, taken.Moving = cay.Running, false
				err = w.store.UpdateSandbox(ctx, taken)
			}
			return err
		}
		var has sync.Map // snapshots that the other node has whole
		whole := func(_ context.Context, node cay.NodeID, id cay.SnapshotID) bool {
			_, ok := has.Load(id)
			return ok && node == "other"
		}
		move := func() (stop func()) {
			ctx, cancel := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			wg.Go(func() { w.c.MoveAlways(ctx, hand, whole) })
			return func() { cancel(); wg.Wait() }
		}
		stop := move()
		w.c.Drained(cay.DrainMove)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if n := handed.Load(); n != 4 {
			t.Errorf("%d of %d sandboxes leave at once", n, all)
		}
		stop()
		w.restart()
		w.c.Drained(cay.DrainMove)
		if stuck := w.c.Use().Stuck; !strings.Contains(stuck, "not known") {
			t.Errorf("a server that begins says %q", stuck)
		}
		stop = move()
		defer stop()
		time.Sleep(2 * time.Minute) // a link that is broken keeps no others here
		synctest.Wait()
		if n, use := handed.Load(), w.c.Use(); n != all || use.Running != 0 || !strings.Contains(use.Stuck, "6 sandboxes") {
			t.Errorf("%d of %d have left, and it says %+v", n, all, use)
		}
		for i, box := range boxes {
			row, err := w.store.Sandbox(t.Context(), box.Team, box.ID)
			if err != nil {
				t.Fatal(err)
			}
			switch i {
			case 0: // it is over
				row.State = cay.Killed
				err = w.store.UpdateSandbox(t.Context(), row)
			case 1: // it was saved again
				row.Snapshot = cay.NewSnapshotID()
				err = w.store.UpdateSandbox(t.Context(), row)
			case 2: // the bucket has it
				w.c.Copied(t.Context(), func(id cay.SnapshotID) bool { return id == row.Snapshot }, false)
			default:
				has.Store(row.Snapshot, true)
			}
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(2 * time.Second)
			synctest.Wait()
			if stuck := w.c.Use().Stuck; (stuck == "") != (i == all-1) {
				t.Errorf("with %d of %d there it says %q", i+1, all, stuck)
			}
			if i > 2 && !w.c.CopiedElsewhere(row.Snapshot) {
				t.Error("two nodes copy one snapshot")
			}
		}
	})
}

// A copy in the bucket counts while the sandbox runs, too, if it is to go on when its machine is lost.
func TestCopiedWhileItRuns(t *testing.T) {
	w := newWorld(t)
	everything := func(cay.SnapshotID) bool { return true }
	for _, loss := range []cay.HostLoss{cay.EndOnHostLoss, cay.ResumeOnHostLoss} {
		spec := w.spec(time.Hour)
		spec.OnHostLoss = loss
		box, err := w.c.Create(t.Context(), w.who(), spec)
		if err != nil {
			t.Fatal(err)
		}
		copied := func() bool {
			w.c.Copied(t.Context(), everything, false)
			row, err := w.store.Sandbox(t.Context(), box.Team, box.ID)
			if err != nil || row.State != cay.Running {
				t.Fatal(row.State, err)
			}
			return !row.ReplicatedAt.IsZero()
		}
		if copied() {
			t.Error("its template's snapshot is taken for its own")
		}
		if err := w.c.Pause(t.Context(), w.who(), box.ID, cay.MemorySnapshot, false); err != nil {
			t.Fatal(err)
		}
		if _, _, err := w.c.Connect(t.Context(), w.who(), box.ID, time.Hour, true); err != nil {
			t.Fatal(err)
		}
		if got := copied(); got != (loss == cay.ResumeOnHostLoss) {
			t.Errorf("%q: its copy is known: %t", loss, got)
		}
	}
}
