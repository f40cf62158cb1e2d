package control_test

import (
	"context"
	"testing"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/auth"
	"github.com/cay-run/cay/internal/control"
	"github.com/cay-run/cay/internal/store"
)

// meanwhile is a store whose records others change right after they are read.
type meanwhile struct {
	store.Store
	change func()
}

func (m meanwhile) SandboxesOf(ctx context.Context, node cay.NodeID) ([]cay.Sandbox, error) {
	rows, err := m.Store.SandboxesOf(ctx, node)
	m.change()
	return rows, err
}

// TestOthersChangeRecordsAtAStart has a node of a cluster begin while others, for whom it
// was gone, take, change and end what it had.
func TestOthersChangeRecordsAtAStart(t *testing.T) {
	w := newWorld(t)
	record := func(s cay.Sandbox, change func(*cay.Sandbox)) {
		t.Helper()
		row, err := w.store.Sandbox(t.Context(), s.Team, s.ID)
		if err != nil {
			t.Fatal(err)
		}
		change(&row)
		if err := w.store.UpdateSandbox(t.Context(), row); err != nil {
			t.Fatal(err)
		}
	}
	var boxes []cay.Sandbox
	for range 3 {
		s := w.create(time.Hour)
		if err := w.c.Pause(t.Context(), w.who(), s.ID, cay.MemorySnapshot, false); err != nil {
			t.Fatal(err)
		}
		record(s, func(row *cay.Sandbox) { row.State = cay.Resuming })
		boxes = append(boxes, s)
	}
	taken, changed, ended := boxes[0], boxes[1], boxes[2]
	others := func() {
		record(taken, func(row *cay.Sandbox) { row.State = cay.Paused })
		row, err := w.store.Sandbox(t.Context(), taken.Team, taken.ID)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.store.TakeSandbox(t.Context(), taken.ID, "n", row.Version, "other"); err != nil {
			t.Fatal(err)
		}
		record(changed, func(row *cay.Sandbox) { row.Alias = "changed" })
		record(ended, func(row *cay.Sandbox) { row.State, row.Cause, row.EndedAt = cay.Killed, cay.CauseAsked, time.Now() })
	}
	tokens, err := auth.NewTokens(make([]byte, 32))
	if err != nil {
		t.Fatal(err)
	}
	c, err := control.Open(t.Context(), control.Config{
		Store: meanwhile{w.store, others}, Node: w.node, NodeID: "n", Member: true, Tokens: tokens, Logs: w.logs, Audit: w.audit,
	})
	if err != nil {
		t.Fatal(err)
	}
	if s, err := c.Get(t.Context(), w.who(), changed.ID); err != nil || s.State != cay.Paused || s.Alias != "changed" {
		t.Errorf("the one that is still here: %+v, %v", s, err)
	}
	for _, s := range []cay.Sandbox{taken, ended} {
		if s, err := c.Get(t.Context(), w.who(), s.ID); cay.KindOf(err) != cay.NotFound {
			t.Errorf("one that is not here any more: %+v, %v", s, err)
		}
	}
	if home, err := w.store.SandboxHome(t.Context(), taken.ID); err != nil || home.Node != "other" {
		t.Errorf("it is at home at %+v, %v", home, err)
	}
	if row, err := w.store.Sandbox(t.Context(), ended.Team, ended.ID); err != nil || row.Cause != cay.CauseAsked {
		t.Errorf("it ended by %q, %v", row.Cause, err)
	}
}
