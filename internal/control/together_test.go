package control_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control/fleet"
	"github.com/cay-run/cay/internal/store"
)

// Five callers who pause, or resume, at once all succeed: the guest is saved
// once, and started once. One that comes later is told how it is.
func TestCallersTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		s := w.create(time.Hour)
		ctx := t.Context()
		var saves, starts atomic.Int32
		w.node.OnSave = func(cay.InstanceID) error {
			saves.Add(1)
			time.Sleep(time.Second)
			return nil
		}
		w.node.OnCreate = func(context.Context, cay.InstanceSpec) error {
			starts.Add(1)
			time.Sleep(time.Second)
			return nil
		}
		for range 3 {
			saves.Store(0)
			starts.Store(0)
			together(5, func(i int) {
				time.Sleep(time.Duration(i) * 100 * time.Millisecond)
				if err := w.c.Pause(ctx, w.who(), s.ID, cay.MemorySnapshot, false); err != nil {
					t.Errorf("pause by caller %d: %v", i, err)
				}
			})
			if got := w.state(s); got != cay.Paused || saves.Load() != 1 {
				t.Errorf("it is %s and was saved %d times", got, saves.Load())
			}
			if err := w.c.Pause(ctx, w.who(), s.ID, cay.MemorySnapshot, false); cay.KindOf(err) != cay.Conflict {
				t.Errorf("pause of a paused one: %v", err)
			}
			var instances sync.Map
			together(5, func(i int) {
				time.Sleep(time.Duration(i) * 100 * time.Millisecond)
				got, err := w.c.Resume(ctx, w.who(), s.ID, time.Hour, "", true)
				if err != nil {
					t.Errorf("resume by caller %d: %v", i, err)
				}
				instances.Store(got.Instance, true)
			})
			n := 0
			instances.Range(func(any, any) bool { n++; return true })
			if got := w.state(s); got != cay.Running || starts.Load() != 1 || n != 1 {
				t.Errorf("it is %s, was started %d times, and %d instances were told", got, starts.Load(), n)
			}
			if _, err := w.c.Resume(ctx, w.who(), s.ID, time.Hour, "", true); cay.KindOf(err) != cay.Conflict {
				t.Errorf("resume of a running one: %v", err)
			}
		}
		// A caller that asks for another kind of pause does not get it.
		together(2, func(i int) {
			time.Sleep(time.Duration(i) * 100 * time.Millisecond)
			err := w.c.Pause(ctx, w.who(), s.ID, []cay.SnapshotKind{cay.MemorySnapshot, cay.FilesSnapshot}[i], false)
			if want := []cay.Kind{"", cay.Conflict}[i]; cay.KindOf(err) != want {
				t.Errorf("pause %d: %v", i, err)
			}
		})
	})
}

// A pause that fails fails for all callers that wait for it, each of whom tries.
func TestCallersTogetherWithoutSpace(t *testing.T) {
	w := newWorld(t)
	s := w.create(time.Hour)
	w.node.OnSave = func(cay.InstanceID) error { return cay.Errorf(cay.NoSpace, "full") }
	together(5, func(int) {
		if err := w.c.Pause(context.Background(), w.who(), s.ID, cay.MemorySnapshot, false); cay.KindOf(err) != cay.NoSpace {
			t.Errorf("Pause = %v", err)
		}
	})
	w.is(s, cay.Running)
}

func together(n int, f func(i int)) {
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { f(i) })
	}
	wg.Wait()
}

// A pause at the time limit that cannot succeed is tried ever less often, and
// told once for each reason.
func TestPausesThatFailBackOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var why atomic.Pointer[cay.Error]
		why.Store(cay.Errorf(cay.NoSpace, "full"))
		var tries atomic.Int32
		w.node.OnSave = func(cay.InstanceID) error {
			tries.Add(1)
			if err := why.Load(); err != nil {
				return err
			}
			return nil
		}
		w.run()
		spec := w.spec(time.Minute)
		spec.OnTimeout = cay.PauseOnTimeout
		s, err := w.c.Create(t.Context(), w.who(), spec)
		if err != nil {
			t.Fatal(err)
		}
		count := func() (failed int) {
			events, err := w.store.Events(t.Context(), store.EventQuery{Team: s.Team, Sandbox: s.ID, Type: cay.SandboxRunning})
			if err != nil {
				t.Fatal(err)
			}
			return len(events) - 1
		}
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		w.is(s, cay.Running)
		if n := tries.Load(); n < 20 || n > 40 {
			t.Errorf("it was tried %d times in two hours", n)
		}
		if n := count(); n != 1 {
			t.Errorf("one failure was told %d times", n)
		}
		why.Store(cay.Errorf(cay.Unavailable, "busy"))
		time.Sleep(time.Hour)
		synctest.Wait()
		if n := count(); n != 2 {
			t.Errorf("two failures were told %d times", n)
		}
		// A client that gives it more time has it tried at once then.
		if err := w.c.SetTimeout(t.Context(), w.who(), s.ID, time.Second); err != nil {
			t.Fatal(err)
		}
		why.Store(nil)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		w.is(s, cay.Paused)
	})
}

// The state of rollbacks and automatic checkpoints survives a restart.
func TestTreesSurviveARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		ctx := t.Context()
		s := w.create(10 * time.Hour)
		a, b := w.checkpoint(s, "a"), w.checkpoint(s, "b")
		undo := func(want cay.SnapshotID) {
			t.Helper()
			if _, n, err := w.c.Undo(ctx, w.who(), s.ID); err != nil || n.ID != want {
				t.Errorf("undone to %s, %v; want %s", n.ID, err, want)
			}
		}
		undo(b.ID)
		w.restart()
		undo(a.ID) // it was not used since
		w.c.Used(ctx, s.ID, true)
		w.restart()
		undo(a.ID) // it was

		if _, err := w.c.SetAuto(ctx, w.who(), s.ID, cay.AutoCheckpoint{Every: time.Hour}); err != nil {
			t.Fatal(err)
		}
		stop := w.run()
		count := func() int {
			tree, err := w.c.Tree(ctx, w.who(), s.ID)
			if err != nil {
				t.Fatal(err)
			}
			return len(tree.Checkpoints)
		}
		time.Sleep(time.Hour + time.Minute)
		synctest.Wait()
		before := count()
		for range 3 { // restarts do not put the next one off
			time.Sleep(20 * time.Minute)
			stop()
			w.restart()
			stop = w.run()
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := count(); got != before+1 {
			t.Errorf("%d checkpoints after another hour, want %d", got, before+1)
		}
	})
}

// Another server that changed a record is noticed, and nothing of its change is
// lost.
func TestChangesOfAnotherServer(t *testing.T) {
	w := newWorld(t)
	s := w.create(time.Hour)
	row, err := w.store.Sandbox(t.Context(), s.Team, s.ID)
	if err != nil {
		t.Fatal(err)
	}
	row.Alias = "changed"
	if err := w.store.UpdateSandbox(t.Context(), row); err != nil {
		t.Fatal(err)
	}
	if err := w.c.SetTimeout(t.Context(), w.who(), s.ID, 2*time.Hour); cay.KindOf(err) != cay.Conflict {
		t.Errorf("SetTimeout = %v", err)
	}
	w.restart()
	if err := w.c.SetTimeout(t.Context(), w.who(), s.ID, 2*time.Hour); err != nil {
		t.Error(err)
	}
	if page, err := w.c.List(t.Context(), w.who(), fleet.Query{}); err != nil || page.Sandboxes[0].Alias != "changed" {
		t.Errorf("%+v, %v", page.Sandboxes, err)
	}
}
