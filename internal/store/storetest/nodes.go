package storetest

import (
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
	take("one", time.Hour, 1)
	_, err := s.TakeNode(ctx, "a", "two", time.Hour)
	wantKind(t, err, cay.Conflict)
	noError(t, s.RenewNode(ctx, "a", 1, time.Hour))
	take("one", time.Hour, 2) // its server was killed
	wantKind(t, s.RenewNode(ctx, "a", 1, time.Hour), cay.Conflict)
	noError(t, s.LeaveNode(ctx, "a", 1)) // the killed one's
	_, err = s.TakeNode(ctx, "a", "two", time.Hour)
	wantKind(t, err, cay.Conflict)
	noError(t, s.RenewNode(ctx, "a", 2, -time.Second)) // over
	take("two", time.Hour, 3)
	wantKind(t, s.RenewNode(ctx, "a", 2, time.Hour), cay.Conflict)
	noError(t, s.LeaveNode(ctx, "a", 3))
	take("one", time.Hour, 4)
	wantKind(t, s.RenewNode(ctx, "none", 1, time.Hour), cay.Conflict)
}

func testNodes(t *testing.T, s store.Store) {
	for _, on := range []bool{false, true, true, false} {
		noError(t, s.SetDraining(t.Context(), "a", on))
		got, err := s.Draining(t.Context(), "a")
		noError(t, err)
		same(t, "the machine", got, on)
		other, err := s.Draining(t.Context(), "b")
		noError(t, err)
		same(t, "another machine", other, false)
	}
}
