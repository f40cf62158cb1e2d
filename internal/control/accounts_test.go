package control_test

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/auth"
	"github.com/cay-run/cay/internal/control/accounts"
	"github.com/cay-run/cay/internal/store"
)

// A team has 10,000 keys at most, however many ask for the last one at once, and
// another team has as many.
func TestKeysAreBounded(t *testing.T) {
	w := newWorld(t)
	n, err := w.store.CountTeam(t.Context(), w.team.ID)
	if err != nil {
		t.Fatal(err)
	}
	err = w.store.Tx(t.Context(), func(tx store.Store) error {
		for i := n.Keys; i < 9_999; i++ {
			k := cay.APIKey{Team: w.team.ID, Name: fmt.Sprint(i)}
			_ = auth.NewKey(&k)
			if err := tx.AddKey(t.Context(), k); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	var made atomic.Int32
	var all sync.WaitGroup
	for range 5 {
		all.Go(func() {
			_, _, err := w.c.CreateKey(t.Context(), w.who(), accounts.NewKey{Name: "last"})
			switch {
			case err == nil:
				made.Add(1)
			case cay.KindOf(err) != cay.Exhausted || cay.CodeOf(err) != cay.CodeTeamLimit:
				t.Errorf("one key too many: %v", err)
			}
		})
	}
	all.Wait()
	keys, err := w.c.Keys(t.Context(), w.who())
	if err != nil || made.Load() != 1 || len(keys) != 10_000 {
		t.Errorf("%d were made, there are %d: %v", made.Load(), len(keys), err)
	}
	if err := w.c.RemoveKey(t.Context(), w.who(), keys[0].ID); err != nil {
		t.Fatal(err)
	}
	if _, _, err := w.c.CreateKey(t.Context(), w.who(), accounts.NewKey{Name: "in its place"}); err != nil {
		t.Error(err)
	}
}

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
