package node

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/cay-run/cay"
)

// An instance that acts with the lease of its machine alone is fenced before anything is open to it,
// after each restart too, stands still without a lease, and goes on with one.
func TestFenced(t *testing.T) {
	m := newMachine(t)
	var steps []string
	for _, step := range []string{"fence", "apply"} {
		m.on(step, func() error { steps = append(steps, step); return nil })
	}
	n := m.open(t)
	spec := spec()
	spec.Fenced = true
	fenced, err := n.Create(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(steps, []string{"fence", "apply"}) {
		t.Errorf("the network did %v", steps)
	}
	create(t, n)
	frozen := func(want ...cay.InstanceID) {
		t.Helper()
		m.mu.Lock()
		defer m.mu.Unlock()
		for id, c := range m.containers {
			if c.held != slices.Contains(want, id) {
				t.Errorf("instance %s stands still: %t", id, c.held)
			}
		}
	}
	if err := n.StandStill(t.Context()); err != nil {
		t.Fatal(err)
	}
	frozen(fenced.Spec.Instance)
	m.on("keep lease", func() error { return errors.New("no") })
	if err := n.KeepLease(t.Context(), time.Minute); err == nil {
		t.Error("a fence that cannot be opened is no error")
	}
	frozen(fenced.Spec.Instance) // what it sends is dropped still
	m.on("keep lease", func() error { return nil })
	if err := n.KeepLease(t.Context(), time.Minute); err != nil {
		t.Fatal(err)
	}
	frozen()
	if err := n.SetNetwork(t.Context(), fenced.Spec.Instance, cay.NetworkPolicy{}); err != nil {
		t.Fatal(err)
	}
	// A server that ends while it stands still: the next one has it go on.
	if err := n.StandStill(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.Close()
	m.crash()
	m.mu.Lock()
	clear(m.fenced)
	m.mu.Unlock()
	n = m.open(t)
	m.mu.Lock()
	if len(m.fenced) != 1 {
		t.Errorf("after a restart %d slots are fenced", len(m.fenced))
	}
	m.mu.Unlock()
	if err := n.KeepLease(t.Context(), time.Minute); err != nil {
		t.Fatal(err)
	}
	frozen()
	if err := n.Kill(t.Context(), fenced.Spec.Instance, cay.CauseAsked); err != nil {
		t.Fatal(err)
	}
	if err := n.StandStill(t.Context()); err != nil { // of nothing
		t.Fatal(err)
	}
	frozen()
}

// A guest that is saved does not stand still while its files are kept: an engine that is stopped
// would keep them, and the server that ends, waiting for ever.
func TestFencedIsSaved(t *testing.T) {
	m := newMachine(t)
	n := m.open(t)
	spec := spec()
	spec.Fenced = true
	paused, err := n.Create(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	keeps, kept := make(chan struct{}), make(chan struct{})
	m.on("files", func() error { close(keeps); <-kept; return nil })
	if err := n.Pause(t.Context(), paused.Spec.Instance, cay.Snapshot{ID: cay.NewSnapshotID(), Kind: cay.MemorySnapshot, Sandbox: spec.Sandbox}); err != nil {
		t.Fatal(err)
	}
	<-keeps
	m.on("freeze", func() error { t.Error("a guest stands still whose files are kept"); return nil })
	if err := n.StandStill(t.Context()); err != nil {
		t.Fatal(err)
	}
	close(kept)
	n.Close()
}
