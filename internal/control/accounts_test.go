package control_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cay-run/cay"
)

// A removal of a team that was broken off after its first step goes on with the
// next start, and takes along what a late request made.
func TestARemovalGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		gone := cay.Team{ID: cay.NewTeamID(), Name: "gone", CreatedAt: time.Now()}
		who := cay.ForTeam(gone.ID)
		if err := w.store.AddTeam(t.Context(), gone); err != nil {
			t.Fatal(err)
		}
		base, err := w.store.TemplateByName(t.Context(), w.team.ID, "base")
		if err := errors.Join(err, w.store.SetPublic(t.Context(), w.team.ID, base.ID, true)); err != nil {
			t.Fatal(err)
		}
		running, err := w.c.Create(t.Context(), who, w.spec(time.Hour))
		paused, bad := w.c.Create(t.Context(), who, w.spec(time.Hour))
		if err := errors.Join(err, bad); err != nil {
			t.Fatal(err)
		}
		_, taken := w.c.Snapshot(t.Context(), who, running.ID, "mine", cay.MemorySnapshot)
		_, marked := w.c.Checkpoint(t.Context(), who, running.ID, cay.MemorySnapshot, "")
		err = errors.Join(taken, marked, w.c.Pause(t.Context(), who, paused.ID, cay.MemorySnapshot, false),
			w.store.RemoveTeam(t.Context(), gone.ID, time.Now()))
		if err != nil {
			t.Fatal(err)
		}
		ours := w.create(time.Hour)
		w.restart()
		w.run()
		synctest.Wait()
		w.gone(running, cay.CauseAsked)
		late, err := w.c.Create(t.Context(), who, w.spec(time.Hour)) // it was let in before
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Minute)
		synctest.Wait()
		w.gone(late, cay.CauseAsked)
		w.gone(paused, cay.CauseAsked)
		w.alive(ours)
		n, err := w.store.CountTeam(t.Context(), gone.ID)
		left, bad := w.store.RemovedTeams(t.Context())
		if err := errors.Join(err, bad); err != nil || n.Running+n.Paused+n.Templates+n.Keys+n.Secrets+len(left) != 0 {
			t.Errorf("left are %+v, %v, %v", n, left, err)
		}
		for _, s := range w.node.Saved() {
			if s.Team == gone.ID {
				t.Errorf("its snapshot %s is there", s.ID)
			}
		}
	})
}
