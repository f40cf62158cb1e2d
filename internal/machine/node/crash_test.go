package node

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cay-run/cay"
)

// stall opens a node and has it stand still at a step of its machine, as if it
// had been killed there: work begins an operation that never ends. It returns
// the node that comes after it.
func stall(t *testing.T, m *machine, first *Node, step string, work func() error) *Node {
	t.Helper()
	reached, over, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	m.on(step, func() error {
		close(reached)
		<-over
		return errors.New("the server is dead")
	})
	go func() { done <- work() }()
	select {
	case <-reached:
	case err := <-done:
		// The answer came before the step, which is still to be reached.
		done <- err
		<-reached
	}
	t.Cleanup(func() { // its goroutines end here
		close(over)
		<-done
		first.Close()
	})
	m.crash()
	return m.open(t)
}

// A server that dies in the middle of a pause leaves a guest that runs on, or
// a snapshot that is whole, and never both.
func TestACrashAtEachStepOfAPause(t *testing.T) {
	for step, saved := range map[string]bool{"hold": false, "begin": false, "checkpoint": false, "commit": false, "kill": true} {
		t.Run(step, func(t *testing.T) {
			m := newMachine(t)
			first := m.open(t)
			inst, other := create(t, first), create(t, first)
			record := cay.Snapshot{ID: cay.NewSnapshotID(), Kind: cay.FilesSnapshot, Sandbox: inst.Spec.Sandbox}
			if step == "checkpoint" {
				record.Kind = cay.MemorySnapshot
			}
			second := stall(t, m, first, step, func() error {
				return first.Pause(context.Background(), inst.Spec.Instance, record)
			})
			if _, ok := second.Lookup(inst.Spec.Sandbox); ok == saved {
				t.Errorf("found %v", ok)
			}
			if got := second.Snapshots(); (len(got) == 1) != saved {
				t.Errorf("snapshots %v", got)
			}
			c := m.containers[inst.Spec.Instance]
			if (c == nil) != saved || c != nil && c.held {
				t.Errorf("container %+v", c)
			}
			found(t, second, other)
		})
	}
}

// One that dies while a checkpoint is taken, be it for a fork, leaves the guest
// as it is and no snapshot.
func TestACrashAtEachStepOfACheckpoint(t *testing.T) {
	for _, step := range []string{"begin", "checkpoint", "commit"} {
		t.Run(step, func(t *testing.T) {
			m := newMachine(t)
			first := m.open(t)
			inst := create(t, first)
			second := stall(t, m, first, step, func() error {
				return first.Checkpoint(context.Background(), inst.Spec.Instance, cay.Snapshot{ID: cay.NewSnapshotID(), Sandbox: inst.Spec.Sandbox})
			})
			found(t, second, inst)
			if got := second.Snapshots(); len(got) != 0 {
				t.Errorf("snapshots %v", got)
			}
		})
	}
}

// One that dies while a rollback makes the new instance leaves the old one
// alone.
func TestACrashAtEachStepOfARollback(t *testing.T) {
	for step := range steps {
		t.Run(step, func(t *testing.T) {
			m := newMachine(t)
			first := m.open(t)
			inst := create(t, first)
			m.on(step, func() error { runtime.Goexit(); return nil }) // no clean-up runs
			died := make(chan struct{})
			go func() {
				defer close(died)
				next := inst.Spec
				next.Instance, next.Resume = cay.NewInstanceID(), true
				_, _ = first.Prepare(context.Background(), next)
			}()
			<-died
			m.crash()
			second := m.open(t)
			found(t, second, inst)
			if got := second.Instances(); len(got) != 1 || len(m.containers) != 1 {
				t.Errorf("instances %v, %d containers", got, len(m.containers))
			}
		})
	}
}

// A leftover that cannot be ended does not keep the next server from starting,
// nor others from living, and its address is not given to another.
func TestALeftoverThatCannotBeEnded(t *testing.T) {
	for _, what := range []string{"a whole journal", "half a journal", "no journal", "a pooled one that is not wanted"} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newMachine(t)
				first := m.open(t)
				stuck, other := create(t, first), create(t, first)
				slot := m.containers[stuck.Spec.Instance].spec.Net.Namespace
				journal := first.journal(stuck.Spec.Instance)
				first.Close()
				m.crash()
				switch what {
				case "a whole journal":
					m.on("adopt", func() error { return errors.New("no answer") })
				case "half a journal":
					if err := os.Truncate(filepath.Join(journal, specFile), 10); err != nil {
						t.Fatal(err)
					}
				case "no journal":
					if err := os.RemoveAll(journal); err != nil {
						t.Fatal(err)
					}
				case "a pooled one that is not wanted":
					if err := os.Rename(filepath.Join(journal, wholeFile), filepath.Join(journal, pooledFile)); err != nil {
						t.Fatal(err)
					}
				}
				m.on("kill", func() error { return errors.New("it is in the D state") })
				second := m.open(t)
				if what != "a whole journal" { // else neither can be adopted
					found(t, second, other)
				}
				fresh := create(t, second)
				if got := m.containers[fresh.Spec.Instance].spec.Net.Namespace; got == slot {
					t.Error("the address of one that has not ended was given to another")
				}
				m.on("kill", func() error { return nil })
				time.Sleep(3 * clearPause)
				synctest.Wait()
				if m.containers[stuck.Spec.Instance] != nil {
					t.Error("it was not tried again")
				}
				for _, st := range m.slots {
					if st == "found" {
						t.Errorf("slots %v: one is never used again", m.slots)
					}
				}
				found(t, second, fresh)
				second.Close()
			})
		})
	}
}
