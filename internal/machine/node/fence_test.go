package node

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
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

// A guest that is being paused does not stand still, not while its files are kept either: an
// engine that is stopped would save it never, and the server that ends would wait for ever. One
// whose pause fails stands still then.
func TestFencedIsPaused(t *testing.T) {
	for _, step := range []string{"checkpoint", "files"} {
		for _, fails := range []bool{false, true} {
			t.Run(fmt.Sprintf("at its %s, fails %t", step, fails), func(t *testing.T) {
				m := newMachine(t)
				n := m.open(t)
				if err := n.KeepLease(t.Context(), time.Minute); err != nil {
					t.Fatal(err)
				}
				spec := spec()
				spec.Fenced = true
				box, err := n.Create(t.Context(), spec)
				if err != nil {
					t.Fatal(err)
				}
				at, on := make(chan struct{}), make(chan struct{})
				m.on(step, func() error {
					close(at)
					<-on
					if fails {
						return errors.New("no")
					}
					return nil
				})
				var frozen atomic.Int32
				m.on("freeze", func() error { frozen.Add(1); return nil })
				var paused sync.WaitGroup
				paused.Go(func() {
					err := n.Pause(t.Context(), box.Spec.Instance, cay.Snapshot{ID: cay.NewSnapshotID(), Kind: cay.MemorySnapshot, Sandbox: spec.Sandbox})
					if (err != nil) != (fails && step == "checkpoint") {
						t.Error(err)
					}
				})
				<-at
				if err := n.StandStill(t.Context()); err != nil || frozen.Load() != 0 {
					t.Errorf("it was stopped %d times, %v", frozen.Load(), err)
				}
				close(on)
				paused.Wait()
				n.Close()
				if goesOn := fails && step == "checkpoint"; (frozen.Load() != 0) != goesOn {
					t.Errorf("it goes on %t, and was stopped %d times", goesOn, frozen.Load())
				}
			})
		}
	}
}
