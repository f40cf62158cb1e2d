package control_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control"
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
	w.node.OnClaim = func(cay.InstanceSpec) (cay.SandboxID, cay.InstanceID, bool) {
		return cay.NewSandboxID(), cay.NewInstanceID(), true
	}
}

// What was ready is recorded when it runs; its snapshot is kept meanwhile.
func TestWarmCreateIsRecordedOnce(t *testing.T) {
	w := newWorld(t)
	w.ready()
	w.node.OnCreate = func(ctx context.Context, spec cay.InstanceSpec) error {
		if _, err := w.store.Sandbox(ctx, w.team.ID, spec.Sandbox); cay.KindOf(err) != cay.NotFound {
			t.Errorf("recorded before it runs: %v", err)
		}
		if _, err := w.c.Publish(ctx, control.Publication{Team: w.team.ID, Names: []string{"base"}, Snapshot: "s2", RecipeDigest: "d2"}); err != nil {
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
		t.Error("nobody needs the snapshot that it runs from")
	}
	if err := w.c.Kill(t.Context(), w.team.ID, s.ID); err != nil {
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
	if _, err := w.c.Create(t.Context(), w.spec(time.Hour)); err == nil {
		t.Fatal("created")
	}
	w.gone(cay.Sandbox{ID: made.Sandbox, Team: w.team.ID, Instance: made.Instance}, cay.CauseFailedStart)
	if got, want := w.told(made.Sandbox), []cay.EventType{cay.SandboxCreated, cay.SandboxKilled}; !slices.Equal(got, want) {
		t.Errorf("told %v, want %v", got, want)
	}

	// With no way to record it, nothing of it stays.
	w.node.OnCreate = func(_ context.Context, spec cay.InstanceSpec) error {
		made = spec
		return w.store.Close()
	}
	if _, err := w.c.Create(t.Context(), w.spec(time.Hour)); err == nil {
		t.Fatal("created without a record")
	}
	if _, err := w.c.Get(t.Context(), w.team.ID, made.Sandbox); cay.KindOf(err) != cay.NotFound {
		t.Errorf("it is known: %v", err)
	}
	if _, ended := w.node.Ended(made.Instance); !ended {
		t.Error("its instance was not ended")
	}
}

// A client that may ask again finds what its first request made, whatever
// became of the server: that record is written first.
func TestWarmCreateWithAKeyIsRecordedFirst(t *testing.T) {
	w := newWorld(t)
	w.ready()
	w.node.OnCreate = func(ctx context.Context, spec cay.InstanceSpec) error {
		if s, err := w.c.CreatedWith(ctx, w.team.ID, "k"); err != nil || s.ID != spec.Sandbox || s.State != cay.Creating {
			t.Errorf("found %+v, %v", s, err)
		}
		return nil
	}
	spec := w.spec(time.Hour)
	spec.IdempotencyKey = "k"
	if _, err := w.c.Create(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
}

// A server that is killed before it recorded what was ready ends it.
func TestWarmCreateIsCutOff(t *testing.T) {
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
	go func() {
		defer close(done)
		_, _ = w.c.Create(context.WithoutCancel(t.Context()), w.spec(time.Hour))
	}()
	spec := <-made
	w.node.OnCreate, w.node.OnClaim = nil, nil
	if _, err := w.node.Create(t.Context(), spec); err != nil { // as far as the node had come
		t.Fatal(err)
	}
	w.restart()
	if _, ended := w.node.Ended(spec.Instance); !ended {
		t.Error("what no record wants was not ended")
	}
	close(cut)
	<-done
}
