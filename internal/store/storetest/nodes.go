package storetest

import (
	"errors"
	"testing"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/store"
)

// A node's name is one machine's until its lease ends, and each taking ends the
// epochs before.
func testNodeLeases(t *testing.T, s store.Store) {
	ctx := t.Context()
	take := func(machine string, lease time.Duration, want int64) {
		t.Helper()
		epoch, err := s.TakeNode(ctx, "a", machine, lease)
		noError(t, err)
		same(t, "the epoch", epoch, want)
	}
	takenOver := func(err error) {
		t.Helper()
		if !errors.Is(err, store.ErrTakenOver) {
			t.Errorf("an epoch that is over: %v", err)
		}
	}
	take("one", time.Hour, 1)
	_, err := s.TakeNode(ctx, "a", "two", time.Hour)
	wantKind(t, err, cay.Conflict)
	noError(t, s.RenewNode(ctx, "a", 1, time.Hour))
	take("one", time.Hour, 2) // its server was killed
	takenOver(s.RenewNode(ctx, "a", 1, time.Hour))
	noError(t, s.LeaveNode(ctx, "a", 1)) // the killed one's
	_, err = s.TakeNode(ctx, "a", "two", time.Hour)
	wantKind(t, err, cay.Conflict)
	noError(t, s.RenewNode(ctx, "a", 2, -time.Second)) // over
	take("two", time.Hour, 3)
	takenOver(s.RenewNode(ctx, "a", 2, time.Hour))
	noError(t, s.LeaveNode(ctx, "a", 3))
	take("one", time.Hour, 4)
	takenOver(s.RenewNode(ctx, "none", 1, time.Hour))
}

func testNodes(t *testing.T, s store.Store) {
	for _, how := range []cay.Drain{cay.DrainNone, cay.DrainMove, cay.DrainWait, cay.DrainWait, cay.DrainNone} {
		noError(t, s.SetDrain(t.Context(), "a", how))
		got, err := s.Drain(t.Context(), "a")
		noError(t, err)
		same(t, "the machine", got, how)
		other, err := s.Drain(t.Context(), "b")
		noError(t, err)
		same(t, "another machine", other, cay.DrainNone)
	}
}
