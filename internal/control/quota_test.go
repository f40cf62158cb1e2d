package control_test

import (
	"errors"
	"testing"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/auth"
	"github.com/cay-run/cay/internal/control"
)

// bounded opens the control again with bounds for teams.
func (w *world) bounded(sandboxes, memoryMB int) {
	w.Helper()
	tokens, err := auth.NewTokens(make([]byte, 32))
	if err != nil {
		w.Fatal(err)
	}
	w.c, err = control.Open(w.Context(), control.Config{
		Store: w.store, Node: w.node, NodeID: "n", Tokens: tokens, TeamSandboxes: sandboxes, TeamMemoryMB: memoryMB,
	})
	if err != nil {
		w.Fatal(err)
	}
}

func TestQuota(t *testing.T) {
	for _, tc := range []struct {
		name                string
		sandboxes, memoryMB int
	}{
		{"sandboxes", 2, 0},
		{"memory", 0, 1300}, // of 512 each
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t)
			w.bounded(tc.sandboxes, tc.memoryMB)
			create := func() (cay.Sandbox, error) { return w.c.Create(t.Context(), w.spec(time.Hour)) }
			first, err := create()
			if err != nil {
				t.Fatal(err)
			}
			if _, err = create(); err != nil {
				t.Fatal(err)
			}
			if _, err = create(); cay.KindOf(err) != cay.Exhausted {
				t.Errorf("a third one: %v", err)
			}
			if err := w.c.Pause(t.Context(), w.team.ID, first.ID, cay.MemorySnapshot); err != nil {
				t.Fatal(err)
			}
			third, err := create()
			if err != nil {
				t.Fatalf("a paused one counts: %v", err)
			}
			if _, _, err = w.c.Connect(t.Context(), w.team.ID, first.ID, time.Hour, true); cay.KindOf(err) != cay.Exhausted {
				t.Errorf("resumed as a third one: %v", err)
			}
			if err := w.c.Kill(t.Context(), w.team.ID, third.ID); err != nil {
				t.Fatal(err)
			}
			if _, _, err = w.c.Connect(t.Context(), w.team.ID, first.ID, time.Hour, true); err != nil {
				t.Errorf("resumed in place of another: %v", err)
			}
		})
	}
}

func TestCreateTakesWhatIsReady(t *testing.T) {
	w := newWorld(t)
	id, instance := cay.NewSandboxID(), cay.NewInstanceID()
	var asked cay.InstanceSpec
	w.node.OnClaim = func(shape cay.InstanceSpec) (cay.SandboxID, cay.InstanceID, bool) {
		asked = shape
		return id, instance, true
	}
	s, err := w.c.Create(t.Context(), w.spec(time.Hour))
	if err != nil || s.ID != id || s.Instance != instance {
		t.Fatalf("%+v, %v", s, err)
	}
	if asked.Snapshot != "s1" || asked.Template != s.Template || asked.Build != s.Build || asked.Limits != s.Limits {
		t.Errorf("asked for %+v", asked)
	}
	// What was claimed and cannot be recorded is given back.
	killed := errors.New("killed")
	w.node.OnKill = func(i cay.InstanceID) error {
		if i != instance {
			t.Errorf("%s was killed", i)
		}
		killed = nil
		return nil
	}
	if _, err := w.c.Create(t.Context(), w.spec(time.Hour)); cay.KindOf(err) != cay.Conflict || killed != nil {
		t.Errorf("the same id twice: %v; %v", err, killed)
	}
}
