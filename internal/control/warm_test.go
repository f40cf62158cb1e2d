package control_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control/fleet"
	"github.com/cay-run/cay/internal/store"
)

// told lists the types of a sandbox's events.
func (w *world) told(id cay.SandboxID) (out []cay.EventType) {
	w.Helper()
	events, err := w.store.Events(w.Context(), store.EventQuery{Team: w.team.ID, Sandbox: id})
	if err != nil {
		w.Fatal(err)
	}
	for _, e := range events {
		out = append(out, e.Type)
	}
	return out
}

// ready has creates find an instance that was made beforehand.
func (w *world) ready() {
	w.node.OnWarm = func(cay.InstanceSpec) (cay.SandboxID, cay.InstanceID, bool) {
		return cay.NewSandboxID(), cay.NewInstanceID(), true
	}
}

// A warm instance is recorded when it runs; its snapshot is kept meanwhile.
func TestWarmCreateIsRecordedOnce(t *testing.T) {
	w := newWorld(t)
	w.ready()
	w.node.OnCreate = func(ctx context.Context, spec cay.InstanceSpec) error {
		if _, err := w.store.Sandbox(ctx, w.team.ID, spec.Sandbox); cay.KindOf(err) != cay.NotFound {
			t.Errorf("recorded before it runs: %v", err)
		}
		if _, err := w.c.Publish(ctx, fleet.Publication{Team: w.team.ID, Names: []string{"base"}, Snapshot: "s2", RecipeDigest: "d2"}); err != nil {
			t.Error(err)
		}
		if removed, err := w.c.Discard(ctx, "s1"); removed || err != nil {
			t.Errorf("its snapshot was removed: %v, %v", removed, err)
		}
		return nil
	}
	s := w.create(time.Hour)
	row, err := w.store.Sandbox(t.Context(), w.team.ID, s.ID)
	if err != nil || row.State != cay.Running || !row.EndAt.Equal(s.EndAt) || row.Env["SECRET"] != "x" {
		t.Errorf("recorded as %+v, %v", row, err)
	}
	if got, want := w.told(s.ID), []cay.EventType{cay.SandboxCreated, cay.SandboxRunning}; !slices.Equal(got, want) {
		t.Errorf("told %v, want %v", got, want)
	}
	if !w.c.Needs(t.Context(), "s1") {
		t.Error("the snapshot that it runs from is not needed")
	}
	if err := w.c.Kill(t.Context(), w.who(), s.ID); err != nil {
		t.Fatal(err)
	}
	w.gone(s, cay.CauseAsked)
	if w.c.Needs(t.Context(), "s1") {
		t.Error("its snapshot is still needed when it is over")
	}
}

func TestWarmCreateFails(t *testing.T) {
	w := newWorld(t)
	w.ready()
	var made cay.InstanceSpec
	w.node.OnCreate = func(_ context.Context, spec cay.InstanceSpec) error {
		made = spec
		return errors.New("broken")
	}
	if _, err := w.c.Create(t.Context(), w.who(), w.spec(time.Hour)); err == nil {
		t.Fatal("created")
	}
	ended, err := w.store.Sandboxes(t.Context(), store.SandboxQuery{Team: w.team.ID, States: []cay.State{cay.Killed}})
	if err != nil || len(ended) != 1 || ended[0].Cause != cay.CauseFailedStart || ended[0].Env != nil {
		t.Fatalf("recorded %+v, %v", ended, err)
	}
	if got, want := w.told(ended[0].ID), []cay.EventType{cay.SandboxCreated, cay.SandboxKilled}; !slices.Equal(got, want) {
		t.Errorf("told %v, want %v", got, want)
	}

	// With no way to record it, nothing of it stays.
	w.node.OnCreate = func(_ context.Context, spec cay.InstanceSpec) error {
		made = spec
		return w.store.Close()
	}
	if _, err := w.c.Create(t.Context(), w.who(), w.spec(time.Hour)); err == nil {
		t.Fatal("created without a record")
	}
	if _, err := w.c.Get(t.Context(), w.who(), made.Sandbox); cay.KindOf(err) != cay.NotFound {
		t.Errorf("it is known: %v", err)
	}
	if _, ended := w.node.Ended(made.Instance); !ended {
		t.Error("its instance was not ended")
	}
}

// A server that is killed before it recorded what runs ends it. A client that
// asks again with its key gets one sandbox then, as it has asked for one.
func TestCreateIsCutOff(t *testing.T) {
	for _, key := range []string{"", "k"} {
		w := newWorld(t)
		w.ready()
		made := make(chan cay.InstanceSpec)
		cut := make(chan struct{})
		w.node.OnCreate = func(_ context.Context, spec cay.InstanceSpec) error {
			made <- spec
			<-cut
			return errors.New("the server is no more")
		}
		done := make(chan struct{})
		spec := w.spec(time.Hour)
		spec.IdempotencyKey = key
		go func() {
			defer close(done)
			_, _ = w.c.Create(context.WithoutCancel(t.Context()), w.who(), spec)
		}()
		instance := <-made
		w.node.OnCreate, w.node.OnWarm = nil, nil
		if _, err := w.node.Create(t.Context(), instance); err != nil { // as far as the node had come
			t.Fatal(err)
		}
		w.restart()
		if _, ended := w.node.Ended(instance.Instance); !ended {
			t.Error("what no record wants was not ended")
		}
		first, err := w.c.Create(t.Context(), w.who(), spec)
		if err != nil {
			t.Fatal(err)
		}
		if again, err := w.c.Create(t.Context(), w.who(), spec); err != nil || (again.ID == first.ID) != (key != "") {
			t.Errorf("asked again with key %q: %s after %s, %v", key, again.ID, first.ID, err)
		}
		close(cut)
		<-done
	}
}

// An instance may die before its sandbox is known: the create fails then, and
// says why.
func TestDiesAsItStarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.run()
		w.node.OnCreated = func(i cay.Instance) {
			w.node.Die(i.Spec.Instance, cay.CauseOutOfMemory, "oom_kill 1")
			synctest.Wait() // its death is told before the answer
		}
		_, err := w.c.Create(t.Context(), w.who(), w.spec(time.Hour))
		if cay.KindOf(err) != cay.Internal || !strings.Contains(err.Error(), "oom_kill 1") {
			t.Errorf("Create = %v", err)
		}
		w.node.OnCreated = nil
		if page, err := w.c.List(t.Context(), w.who(), fleet.Query{States: []cay.State{cay.Running}}); err != nil || len(page.Sandboxes) != 0 {
			t.Errorf("recorded as running: %+v, %v", page.Sandboxes, err)
		}
	})
}

// A collection that ends warm instances takes its time, and no create waits
// for it.
func TestNoCreateWaitsForACollection(t *testing.T) {
	w := newWorld(t)
	removing, on := make(chan struct{}), make(chan struct{})
	w.node.OnRemove = func(id cay.SnapshotID) error {
		close(removing)
		<-on
		return nil
	}
	w.node.Keep(cay.Snapshot{ID: "old", Team: w.team.ID})
	done := make(chan struct{})
	go func() {
		defer close(done)
		if removed, err := w.c.Discard(context.Background(), "old"); !removed || err != nil {
			t.Errorf("Discard = %v, %v", removed, err)
		}
	}()
	<-removing
	w.create(time.Hour) // this test hangs here otherwise
	close(on)
	<-done
}

// A template that is replaced while a create looks it up: the create takes the
// new build, and not a snapshot that goes.
func TestCreateMeetsAReplacedTemplate(t *testing.T) {
	w := newWorld(t)
	w.run()
	var wg sync.WaitGroup
	over := make(chan struct{})
	var gone sync.Map
	w.node.OnRemove = func(id cay.SnapshotID) error { gone.Store(id, true); return nil }
	w.node.OnCreate = func(_ context.Context, spec cay.InstanceSpec) error {
		if _, ok := gone.Load(spec.Snapshot); ok {
			t.Errorf("started from %s, which is removed", spec.Snapshot)
		}
		return nil
	}
	wg.Go(func() {
		defer close(over)
		for i := range 50 {
			_, err := w.c.Publish(context.Background(), fleet.Publication{
				Team: w.team.ID, Names: []string{"base"}, Snapshot: cay.NewSnapshotID(), RecipeDigest: fmt.Sprint(i),
			})
			if err != nil {
				t.Error(err)
			}
		}
	})
	for range 3 {
		wg.Go(func() {
			for {
				select {
				case <-over:
					return
				default:
				}
				s, err := w.c.Create(context.Background(), w.who(), w.spec(time.Hour))
				if err == nil {
					err = w.c.Kill(context.Background(), w.who(), s.ID)
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

// A template cannot be removed while a sandbox is started from it.
func TestRemoveATemplateThatIsStarted(t *testing.T) {
	w := newWorld(t)
	w.node.OnCreate = func(ctx context.Context, _ cay.InstanceSpec) error {
		if err := w.c.RemoveTemplate(ctx, w.who(), "base"); cay.KindOf(err) != cay.Invalid {
			t.Errorf("RemoveTemplate = %v", err)
		}
		return nil
	}
	s := w.create(time.Hour)
	if err := w.c.Kill(t.Context(), w.who(), s.ID); err != nil {
		t.Fatal(err)
	}
	if err := w.c.RemoveTemplate(t.Context(), w.who(), "base"); err != nil {
		t.Error(err)
	}
}
