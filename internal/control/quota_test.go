package control_test

import (
	"context"
	"sync"
	"sync/atomic"
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
		Store: w.store, Node: w.node, NodeID: "n", Tokens: tokens,
		TeamLimits: cay.TeamLimits{cay.LimitSandboxes: int64(sandboxes), cay.LimitMemory: int64(memoryMB)},
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
			create := func() (cay.Sandbox, error) { return w.c.Create(t.Context(), w.who(), w.spec(time.Hour)) }
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
			if err := w.c.Pause(t.Context(), w.who(), first.ID, cay.MemorySnapshot, false); err != nil {
				t.Fatal(err)
			}
			third, err := create()
			if err != nil {
				t.Fatalf("a paused one counts: %v", err)
			}
			if _, _, err = w.c.Connect(t.Context(), w.who(), first.ID, time.Hour, true); cay.KindOf(err) != cay.Exhausted {
				t.Errorf("resumed as a third one: %v", err)
			}
			if err := w.c.Kill(t.Context(), w.who(), third.ID); err != nil {
				t.Fatal(err)
			}
			if _, _, err = w.c.Connect(t.Context(), w.who(), first.ID, time.Hour, true); err != nil {
				t.Errorf("resumed in place of another: %v", err)
			}
		})
	}
}

func TestCreateTakesWhatIsReady(t *testing.T) {
	w := newWorld(t)
	id, instance := cay.NewSandboxID(), cay.NewInstanceID()
	var asked cay.InstanceSpec
	w.node.OnWarm = func(shape cay.InstanceSpec) (cay.SandboxID, cay.InstanceID, bool) {
		asked = shape
		return id, instance, true
	}
	s, err := w.c.Create(t.Context(), w.who(), w.spec(time.Hour))
	if err != nil || s.ID != id || s.Instance != instance {
		t.Fatalf("%+v, %v", s, err)
	}
	if asked.Snapshot != "s1" || asked.Template != s.Template || asked.Build != s.Build || asked.Limits != s.Limits {
		t.Errorf("asked for %+v", asked)
	}
	if _, err := w.c.Create(t.Context(), w.who(), w.spec(time.Hour)); cay.KindOf(err) != cay.Conflict {
		t.Errorf("the same id twice: %v", err)
	}
	w.alive(s)
}

// A team at its limit that asks again and again costs no other team a warm
// instance.
func TestARefusedCreateAsksNoNode(t *testing.T) {
	w := newWorld(t)
	w.bounded(1, 0)
	w.create(time.Hour)
	w.node.OnCreate = func(context.Context, cay.InstanceSpec) error {
		t.Error("the node was asked")
		return nil
	}
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			if _, err := w.c.Create(context.Background(), w.who(), w.spec(time.Hour)); cay.KindOf(err) != cay.Exhausted {
				t.Errorf("a second one: %v", err)
			}
		})
	}
	wg.Wait()
}

// Twelve at once, new ones and sleepers, get as many places as there are.
func TestQuotaUnderLoad(t *testing.T) {
	const most = 3
	w := newWorld(t)
	var asleep []cay.Sandbox
	for range 12 {
		asleep = append(asleep, w.pause(w.create(time.Hour)))
	}
	w.bounded(most, 0)
	w.node.OnCreate = func(context.Context, cay.InstanceSpec) error {
		if n := len(w.node.Alive()); n >= most {
			t.Errorf("%d run and the node is asked for another", n)
		}
		return nil
	}
	var ran atomic.Int32
	var wg sync.WaitGroup
	count := func(err error) {
		switch {
		case err == nil:
			ran.Add(1)
		case cay.KindOf(err) != cay.Exhausted:
			t.Error(err)
		}
	}
	for _, s := range asleep {
		wg.Go(func() {
			_, err := w.c.Resume(context.Background(), w.who(), s.ID, time.Hour, "", true)
			count(err)
		})
	}
	wg.Wait()
	if ran.Load() != most {
		t.Errorf("%d sleepers run, want %d", ran.Load(), most)
	}
	for _, s := range asleep {
		if w.state(s) == cay.Running {
			w.pause(s)
		}
	}
	ran.Store(0)
	for _, s := range asleep[:6] {
		wg.Go(func() {
			_, err := w.c.Resume(context.Background(), w.who(), s.ID, time.Hour, "", true)
			count(err)
		})
		wg.Go(func() {
			_, err := w.c.Create(context.Background(), w.who(), w.spec(time.Hour))
			count(err)
		})
	}
	wg.Wait()
	if n := len(w.node.Alive()); n > most || int(ran.Load()) != n {
		t.Errorf("%d run, %d were told so, %d may", n, ran.Load(), most)
	}
}

func (w *world) state(s cay.Sandbox) cay.State {
	w.Helper()
	got, err := w.c.Get(w.Context(), w.who(), s.ID)
	if err != nil {
		w.Fatal(err)
	}
	return got.State
}

// Another server that records for the same team counts.
func TestQuotaCountsRecords(t *testing.T) {
	w := newWorld(t)
	w.bounded(2, 0)
	s := w.create(time.Hour)
	other := s
	other.ID, other.Instance, other.Node, other.Version = cay.NewSandboxID(), cay.NewInstanceID(), "elsewhere", 0
	if err := w.store.AddSandbox(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	if _, err := w.c.Create(t.Context(), w.who(), w.spec(time.Hour)); cay.KindOf(err) != cay.Exhausted {
		t.Errorf("a third one: %v", err)
	}
	if n := len(w.node.Alive()); n != 1 {
		t.Errorf("%d instances", n)
	}
	w.pause(s)
	w.create(time.Hour)
	if _, err := w.c.Resume(t.Context(), w.who(), s.ID, time.Hour, "", true); cay.KindOf(err) != cay.Exhausted {
		t.Errorf("resumed as a third one: %v", err)
	}
	if got := w.state(s); got != cay.Paused {
		t.Errorf("refused, it is %s", got)
	}
}
