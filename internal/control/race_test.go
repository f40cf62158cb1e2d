package control_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/cay-run/cay"
)

// TestCallersRace has many callers want different things of one sandbox at
// once. Each is done whole or refused; what is left is one of the states that
// some order of them leaves.
func TestCallersRace(t *testing.T) {
	w := newWorld(t)
	s := w.create(time.Hour)
	a, b := w.checkpoint(s, "a"), w.checkpoint(s, "b")
	ctx := context.Background()
	calls := []func() error{
		func() error { return w.c.Pause(ctx, cay.ForTeam(s.Team), s.ID, cay.MemorySnapshot, false) },
		func() error { _, err := w.c.Resume(ctx, cay.ForTeam(s.Team), s.ID, time.Hour, "", true); return err },
		func() error { _, _, err := w.c.Connect(ctx, cay.ForTeam(s.Team), s.ID, time.Hour, true); return err },
		func() error { _, _, err := w.c.Rollback(ctx, cay.ForTeam(s.Team), s.ID, a.ID); return err },
		func() error { _, _, err := w.c.Rollback(ctx, cay.ForTeam(s.Team), s.ID, b.ID); return err },
		func() error { _, err := w.c.Checkpoint(ctx, cay.ForTeam(s.Team), s.ID, "", ""); return err },
		func() error { return w.c.SetTimeout(ctx, cay.ForTeam(s.Team), s.ID, time.Hour) },
	}
	var wg sync.WaitGroup
	for _, call := range calls {
		wg.Go(func() {
			for range 20 {
				if err := call(); err != nil && cay.KindOf(err) != cay.Conflict {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()

	got, err := w.c.Get(ctx, cay.ForTeam(s.Team), s.ID)
	if err != nil {
		t.Fatal(err)
	}
	most := 0
	if got.State == cay.Running {
		most = 1
	}
	w.until("what rollbacks replaced is over", func() bool { return len(w.node.Alive()) <= most })
	instances := w.node.Alive()
	switch got.State {
	case cay.Running:
		if len(instances) != 1 || instances[0].Spec.Instance != got.Instance || instances[0].Spec.Snapshot != got.Snapshot {
			t.Errorf("it is %+v, and %+v run", got, instances)
		}
	case cay.Paused:
		if len(instances) != 0 || got.Instance != "" || got.Snapshot == "" {
			t.Errorf("it is %+v, and %+v run", got, instances)
		}
	default:
		t.Errorf("it is left %s", got.State)
	}
	tree, err := w.c.Tree(ctx, cay.ForTeam(s.Team), s.ID)
	if err != nil {
		t.Fatal(err)
	}
	known := map[cay.SnapshotID]bool{"": true}
	for _, n := range tree.Checkpoints {
		known[n.ID] = true
	}
	for _, n := range tree.Checkpoints {
		if !known[n.Parent] {
			t.Errorf("checkpoint %s comes after %s, which is none", n.ID, n.Parent)
		}
	}
	if len(tree.Branches) != 1 || !known[tree.Branches[0].Checkpoint] {
		t.Errorf("it is at %+v", tree.Branches)
	}

	// Of many ends one is first, and the rest are told that there is nothing.
	ended := 0
	var mu sync.Mutex
	for range 8 {
		wg.Go(func() {
			switch err := w.c.Kill(ctx, cay.ForTeam(s.Team), s.ID); {
			case err == nil:
				mu.Lock()
				ended++
				mu.Unlock()
			case cay.KindOf(err) != cay.NotFound:
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if ended != 1 {
		t.Errorf("it ended %d times", ended)
	}
}
