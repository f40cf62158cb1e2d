package storetest

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/store"
)

// testTx has calls that are joined count together or not at all.
func testTx(t *testing.T, s store.Store) {
	ctx := t.Context()
	team := addTeam(t, s, "a")
	b := sandbox(team.ID, 1)
	failed := errors.New("no")
	err := s.Tx(ctx, func(tx store.Store) error {
		noError(t, tx.AddSandbox(ctx, b, eventOf(b, 1, cay.SandboxCreated)))
		got, err := tx.Sandbox(ctx, team.ID, b.ID)
		noError(t, err)
		same(t, "what the transaction wrote", got, b)
		wantKind(t, tx.Tx(ctx, func(inner store.Store) error { return inner.RemoveKey(ctx, team.ID, "none") }), cay.NotFound)
		return failed
	})
	if !errors.Is(err, failed) {
		t.Errorf("Tx = %v", err)
	}
	_, err = s.Sandbox(ctx, team.ID, b.ID)
	wantKind(t, err, cay.NotFound)
	last, err := s.LastEvent(ctx, team.ID)
	noError(t, err)
	same(t, "the number of events", last, int64(0))

	noError(t, s.Tx(ctx, func(tx store.Store) error {
		b.State = cay.Paused
		return errors.Join(tx.AddSandbox(ctx, b), tx.UpdateSandbox(ctx, b, eventOf(b, 2, cay.SandboxPaused)))
	}))
	got, err := s.Sandbox(ctx, team.ID, b.ID)
	noError(t, err)
	b.Version++
	same(t, "the sandbox", got, b)
}

// testRunning has many callers add a sandbox if there are few: each counts those
// that are there when it adds.
func testRunning(t *testing.T, s store.Store) {
	const most = 5
	ctx := t.Context()
	team, other := addTeam(t, s, "a"), addTeam(t, s, "b")
	var wg sync.WaitGroup
	var added atomic.Int32
	full := errors.New("full")
	for i := range 20 {
		wg.Go(func() {
			b := sandbox(team.ID, i)
			err := s.Tx(context.Background(), func(tx store.Store) error {
				load, err := tx.RunningOf(ctx, team.ID, b.ID)
				if err == nil && load.Sandboxes >= most {
					err = full
				}
				if err != nil {
					return err
				}
				return tx.AddSandbox(ctx, b)
			})
			switch {
			case err == nil:
				added.Add(1)
			case !errors.Is(err, full):
				t.Error(err)
			}
		})
	}
	wg.Wait()
	same(t, "the number that was added", added.Load(), int32(most))
	theirs := sandbox(other.ID, 1)
	noError(t, s.AddSandbox(ctx, theirs))
	for _, state := range []cay.State{cay.Paused, cay.Killed} {
		b := sandbox(team.ID, 1)
		b.State = state
		noError(t, s.AddSandbox(ctx, b))
	}
	load, err := s.RunningOf(ctx, team.ID, "")
	noError(t, err)
	one := theirs.Limits
	same(t, "what runs", load, cay.TeamLoad{Sandboxes: most, Promised: cay.Limits{
		CPUs: most * one.CPUs, MemoryMB: most * one.MemoryMB, DiskMB: most * one.DiskMB,
	}})
	load, err = s.RunningOf(ctx, other.ID, theirs.ID)
	noError(t, err)
	same(t, "what runs without one", load, cay.TeamLoad{})
}
