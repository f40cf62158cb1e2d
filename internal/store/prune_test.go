package store_test

import (
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/store"
)

// Many events are forgotten in many transactions, between which other writes get
// their turn.
func TestManyEventsAreForgottenInTurns(t *testing.T) {
	const many, atMost = 1100, 500
	s := openAt(t, filepath.Join(t.TempDir(), "cay.db"))
	team := cay.Team{ID: cay.NewTeamID(), Name: "t", CreatedAt: time.UnixMilli(1)}
	if err := s.AddTeam(t.Context(), team); err != nil {
		t.Fatal(err)
	}
	one := cay.Event{Team: team.ID, Sandbox: cay.NewSandboxID(), Type: cay.SandboxCreated, At: time.UnixMilli(1)}
	if err := s.AddEvents(t.Context(), slices.Repeat([]cay.Event{one}, many)...); err != nil {
		t.Fatal(err)
	}
	before := store.Commits(s)
	n, err := s.PruneEvents(t.Context(), time.UnixMilli(2))
	if turns := store.Commits(s) - before; n != many || err != nil || turns <= many/atMost {
		t.Errorf("%d events were forgotten in %d transactions, %v", n, turns, err)
	}
}
