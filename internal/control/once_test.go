package control_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/store"
)

func (w *world) once(key string) cay.CreateSpec {
	spec := w.spec(time.Hour)
	spec.IdempotencyKey = key
	return spec
}

func TestCreateOnce(t *testing.T) {
	w := newWorld(t)
	var made atomic.Int32
	w.node.OnCreate = func(context.Context, cay.InstanceSpec) error { made.Add(1); return nil }
	ids := make([]cay.SandboxID, 8)
	var wg sync.WaitGroup
	for i := range ids { // all at once
		wg.Go(func() {
			s, err := w.c.Create(t.Context(), w.who(), w.once("k 1"))
			if err != nil {
				t.Error(err)
			}
			ids[i] = s.ID
		})
	}
	wg.Wait()
	w.restart()
	again, err := w.c.Create(t.Context(), w.who(), w.once("k 1"))
	for _, id := range append(ids, again.ID) {
		if id != ids[0] || err != nil {
			t.Fatalf("made %v, then %s, %v", ids, again.ID, err)
		}
	}
	if n := made.Load(); n != 1 {
		t.Errorf("%d instances were made", n)
	}
	other := w.once("k 1")
	other.Metadata = map[string]string{"a": "b"}
	if _, err := w.c.Create(t.Context(), w.who(), other); cay.KindOf(err) != cay.Conflict {
		t.Errorf("another request with that key: %v", err)
	}
	if s, err := w.c.Create(t.Context(), w.who(), w.once("k 2")); err != nil || s.ID == ids[0] {
		t.Errorf("another key: %s, %v", s.ID, err)
	}
	found, err := w.c.CreatedWith(t.Context(), w.who(), "k 1")
	if err != nil || found.ID != ids[0] {
		t.Errorf("found %s, %v", found.ID, err)
	}
	forks, err := w.c.Fork(t.Context(), w.who(), ids[0], 1, time.Hour)
	if err != nil || forks[0].Err != nil {
		t.Fatal(err, forks)
	}
	if found, err = w.c.CreatedWith(t.Context(), w.who(), "k 1"); err != nil || found.ID != ids[0] {
		t.Errorf("after a fork: %s, %v", found.ID, err)
	}
	if err := w.c.Kill(t.Context(), w.who(), ids[0]); err != nil {
		t.Fatal(err)
	}
	if _, err := w.c.Create(t.Context(), w.who(), w.once("k 1")); cay.KindOf(err) != cay.Conflict {
		t.Errorf("after its end: %v", err)
	}
	for _, key := range []string{string(make([]byte, 256)), "a\n", "ü"} {
		if _, err := w.c.Create(t.Context(), w.who(), w.once(key)); cay.KindOf(err) != cay.Invalid {
			t.Errorf("key %.9q: %v", key, err)
		}
	}
}

func TestCreateOnceAfterAFailure(t *testing.T) {
	w := newWorld(t)
	w.node.OnCreate = func(context.Context, cay.InstanceSpec) error { return errors.New("broken") }
	if _, err := w.c.Create(t.Context(), w.who(), w.once("k")); err == nil {
		t.Fatal("it did not fail")
	}
	w.node.OnCreate = nil
	s, err := w.c.Create(t.Context(), w.who(), w.once("k"))
	if err != nil {
		t.Fatal(err)
	}
	w.alive(s)
}

// A client that leaves finds what it asked for.
func TestCreateOnceGoesOnAlone(t *testing.T) {
	w := newWorld(t)
	ctx, leave := context.WithCancel(t.Context())
	w.node.OnCreate = func(context.Context, cay.InstanceSpec) error { leave(); return nil }
	first, err := w.c.Create(ctx, w.who(), w.once("k"))
	if err != nil {
		t.Fatal(err)
	}
	again, err := w.c.Create(t.Context(), w.who(), w.once("k"))
	if err != nil || again.ID != first.ID {
		t.Errorf("made %s, then %s, %v", first.ID, again.ID, err)
	}
}

func TestOnceLastsADay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		spec := w.once("k")
		spec.Timeout = 10 * 24 * time.Hour
		first, err := w.c.Create(t.Context(), w.who(), spec)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(23 * time.Hour)
		if again, err := w.c.Create(t.Context(), w.who(), spec); err != nil || again.ID != first.ID {
			t.Errorf("within a day: %s, %v", again.ID, err)
		}
		time.Sleep(2 * time.Hour)
		if again, err := w.c.Create(t.Context(), w.who(), spec); err != nil || again.ID == first.ID {
			t.Errorf("after a day: %s, %v", again.ID, err)
		}
	})
}

// TestRepeatedCreateWaitsForAWhile has a create that comes again while the
// first one is at work: it waits, but not until its client gives up.
func TestRepeatedCreateWaitsForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.node.OnCreate = func(ctx context.Context, _ cay.InstanceSpec) error {
			time.Sleep(25 * time.Second)
			return nil
		}
		var first cay.Sandbox
		var wg sync.WaitGroup
		wg.Go(func() { first, _ = w.c.Create(t.Context(), w.who(), w.once("k")) })
		synctest.Wait()
		begun := time.Now()
		_, err := w.c.Create(t.Context(), w.who(), w.once("k"))
		if cay.CodeOf(err) != cay.CodeKeyInProgress || !cay.RetryOf(err).May || time.Since(begun) != 20*time.Second {
			t.Errorf("while the first one works: %v after %s", err, time.Since(begun))
		}
		again, err := w.c.Create(t.Context(), w.who(), w.once("k"))
		wg.Wait()
		if err != nil || again.ID != first.ID {
			t.Errorf("the next try got %s, %v, and the first one %s", again.ID, err, first.ID)
		}
	})
}

// deaf is a store that loses what is new of sandboxes.
type deaf struct{ *store.DB }

func (deaf) AddSandbox(context.Context, cay.Sandbox, ...cay.Event) error {
	return errors.New("the disk is gone")
}

func (d deaf) Tx(ctx context.Context, f func(store.Store) error) error { return f(d) }

// TestCreateWhoseEndIsNotRecorded has creates with a key that fail, and a store
// that cannot be told so: nothing of them stays, and the next one with the key
// makes the one sandbox.
func TestCreateWhoseEndIsNotRecorded(t *testing.T) {
	w := newWorld(t)
	w.c = w.open(deaf{w.store})
	if _, err := w.c.Create(t.Context(), w.who(), w.once("k")); err == nil {
		t.Fatal("it was created without a record")
	}
	w.node.OnCreate = func(context.Context, cay.InstanceSpec) error { return errors.New("broken") }
	if _, err := w.c.Create(t.Context(), w.who(), w.once("k")); err == nil {
		t.Fatal("it did not fail")
	}
	w.node.OnCreate = nil
	if n := len(w.node.Alive()); n != 0 {
		t.Errorf("%d instances are left", n)
	}
	w.restart()
	if s, err := w.c.Create(t.Context(), w.who(), w.once("k")); err != nil || s.State != cay.Running {
		t.Errorf("when the disk is back: %s, %v", s.State, err)
	}
}

// TestCreateThatComesSecond has another server record a create of the same key
// while this one's instance starts: both callers get one sandbox, and the instance
// of the second create ends.
func TestCreateThatComesSecond(t *testing.T) {
	w := newWorld(t)
	model, err := w.c.Create(t.Context(), w.who(), w.once("model"))
	if err != nil {
		t.Fatal(err)
	}
	once, _, err := w.store.CreatedWith(t.Context(), w.team.ID, "model", time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	before := len(w.node.Alive())
	first := model
	first.ID, first.Instance, first.Version = cay.NewSandboxID(), cay.NewInstanceID(), 0
	first.Once = cay.Once{Key: "k", Digest: once.Digest}
	w.node.OnCreate = func(ctx context.Context, _ cay.InstanceSpec) error {
		w.node.OnCreate = nil
		return w.store.AddSandbox(ctx, first)
	}
	got, err := w.c.Create(t.Context(), w.who(), w.once("k"))
	if err != nil || got.ID != first.ID {
		t.Errorf("the second create gets %s, %v; want %s", got.ID, err, first.ID)
	}
	if n := len(w.node.Alive()); n != before {
		t.Errorf("%d instances are alive, %d were", n, before)
	}
}

// A record that says creating is of an older server, or of another one: what
// becomes of it is not known.
func TestCreateOfAnotherServer(t *testing.T) {
	w := newWorld(t)
	if _, err := w.c.Create(t.Context(), w.who(), w.once("k")); err != nil {
		t.Fatal(err)
	}
	once, id, err := w.store.CreatedWith(t.Context(), w.team.ID, "k", time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	s, err := w.store.Sandbox(t.Context(), w.team.ID, id)
	if err != nil {
		t.Fatal(err)
	}
	s.ID, s.Instance, s.Version = cay.NewSandboxID(), cay.NewInstanceID(), 0
	s.State, s.Once = cay.Creating, once
	s.Once.Repeats = id
	if err := w.store.AddSandbox(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	_, err = w.c.Create(t.Context(), w.who(), w.once("k"))
	if cay.CodeOf(err) != cay.CodeKeyUnknown || cay.RetryOf(err).May {
		t.Errorf("a create with the key: %v", err)
	}
	w.restart() // finds that it never ran
	if s, err = w.c.Create(t.Context(), w.who(), w.once("k")); err != nil || s.State != cay.Running {
		t.Errorf("after a restart: %s, %v", s.State, err)
	}
}
