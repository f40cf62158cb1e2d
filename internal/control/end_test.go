package control_test

import (
	"testing"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control/lifecycle"
)

func TestDownIsAskedFor(t *testing.T) {
	w := newWorld(t)
	running, idle := w.create(time.Hour), w.pause(w.create(time.Hour))
	saved := w.create(time.Hour)
	saved.State, saved.Snapshot = cay.Pausing, cay.NewSnapshotID()
	if err := w.store.UpdateSandbox(t.Context(), saved); err != nil {
		t.Fatal(err)
	}
	for range 2 { // it may be called again
		err := lifecycle.RecordDown(t.Context(), w.store, "", func(id cay.SnapshotID) bool { return id == saved.Snapshot })
		if err != nil {
			t.Fatal(err)
		}
	}
	end, err := w.c.End(t.Context(), cay.ForTeam(running.Team), running.ID)
	if err != nil || end.Sandbox.Cause != cay.CauseAsked || end.Evidence == "" || end.By != "" {
		t.Errorf("it ended as %+v, %v", end, err)
	}
	for id, want := range map[cay.SandboxID]cay.State{running.ID: cay.Killed, idle.ID: cay.Paused, saved.ID: cay.Paused} {
		if got, err := w.store.Sandbox(t.Context(), running.Team, id); err != nil || got.State != want {
			t.Errorf("%s is %s, %v", id, got.State, err)
		}
	}
}
