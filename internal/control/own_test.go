package control_test

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/store/storetest"
)

// treeless is a store that cannot read the places of sandboxes in their trees.
type treeless struct {
	away
	silent atomic.Bool
}

func (s *treeless) Branch(ctx context.Context, team cay.TeamID, id cay.SandboxID) (cay.Branch, error) {
	if s.silent.Load() {
		return cay.Branch{}, cay.Errorf(cay.Unavailable, "PostgreSQL does not answer")
	}
	return s.away.Branch(ctx, team, id)
}

// elsewhere is a paused sandbox with a checkpoint that another node has.
func (w *world) elsewhere() cay.Sandbox {
	w.Helper()
	s := w.create(time.Hour)
	w.checkpoint(s, "a")
	w.pause(s)
	row, err := w.store.Sandbox(w.Context(), s.Team, s.ID)
	if err == nil {
		row, err = w.store.TakeSandbox(w.Context(), s.ID, "n", row.Version, "other")
	}
	if err != nil {
		w.Fatal(err)
	}
	return row
}

// A sandbox that has become a node's by the record is that node's, whatever fails after it, and
// where nothing confirms that it has.
func TestTakenIsHeld(t *testing.T) {
	for what, loss := range losses {
		for _, silent := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				w := withVolumes(t)
				w.member, w.lost = true, &storetest.Lost{}
				w.store.Answer(w.lost)
				records := &treeless{away: away{w.store, w.lost}}
				w.c = w.open(records)
				s := w.elsewhere()
				w.c = w.open(records)
				w.run()
				synctest.Wait()
				w.lost.Plan(loss)
				records.silent.Store(silent)
				err := w.c.Take(t.Context(), s.ID, "other", s.Version, nil)
				time.Sleep(time.Minute)
				records.silent.Store(false)
				time.Sleep(time.Minute)
				synctest.Wait()
				w.lost.Plan(storetest.Loss{})
				row, rerr := w.store.Sandbox(t.Context(), s.Team, s.ID)
				if rerr != nil || loss.Count != (row.Node == "n") {
					t.Fatalf("%s: it is of node %q, %v", what, row.Node, rerr)
				}
				if row.Node != "n" {
					return
				}
				if _, _, again := w.c.Connect(t.Context(), w.who(), s.ID, time.Hour, true); again != nil {
					t.Errorf("%s, silent %t, which answered %v: it cannot be resumed: %v", what, silent, err, again)
				}
				if _, _, again := w.c.Undo(t.Context(), w.who(), s.ID); again != nil {
					t.Errorf("%s, silent %t: its tree is not known: %v", what, silent, again)
				}
			})
		}
	}
}

// Automatic checkpoints that are too many go, but for one that a sandbox of another node was
// started from, and no copy of them is waited for.
func TestAutomaticCheckpointsElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.member, w.copies = true, true
		w.restart()
		s := w.create(time.Hour)
		other := w.create(time.Hour)
		if _, err := w.c.SetAuto(t.Context(), w.who(), s.ID, cay.AutoCheckpoint{Every: 10 * time.Second, Keep: 2}); err != nil {
			t.Fatal(err)
		}
		stop := w.run()
		time.Sleep(15 * time.Second)
		synctest.Wait()
		first := w.nodes(s)[0]
		stop()
		forks, err := w.c.ForkCheckpoint(t.Context(), w.who(), first, 1, time.Hour)
		if err != nil || forks[0].Err != nil {
			t.Fatal(err, forks)
		}
		row := forks[0].Sandbox
		row.Node = "other"
		if err := w.store.UpdateSandbox(t.Context(), row); err != nil {
			t.Fatal(err)
		}
		w.restart()
		w.run()
		w.alive(other)
		time.Sleep(time.Minute)
		synctest.Wait()
		there := w.nodes(s)
		if !slices.Contains(there, first) || len(there) != 3 {
			t.Errorf("the tree has %v, and a sandbox of another node was started from %s", there, first)
		}
		var waits []cay.SnapshotID
		w.c.Copied(t.Context(), func(id cay.SnapshotID) bool {
			waits = append(waits, id)
			return false
		}, false)
		for _, id := range waits {
			if _, err := w.store.Checkpoint(t.Context(), w.team.ID, id); err != nil && id != "s1" {
				t.Errorf("a copy of %s is waited for, which is removed", id)
			}
		}
	})
}
