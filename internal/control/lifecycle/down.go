package lifecycle

import (
	"context"
	"errors"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control/ledger"
	"github.com/cay-run/cay/internal/store"
)

// RecordDown records, with no server running, that all sandboxes which run, or those
// of one node of a cluster, are ended on purpose. Those that are saved stay so. Their use counts until the
// last checkpoint of it: since when no server looked is not known; saved tells which snapshots
// there are. The instances are ended by the caller, after it.
func RecordDown(ctx context.Context, s store.Store, node cay.NodeID, saved func(cay.SnapshotID) bool) error {
	list := s.LiveSandboxes
	if node != "" {
		list = func(ctx context.Context) ([]cay.Sandbox, error) { return s.SandboxesOf(ctx, node) }
	}
	rows, err := list(ctx)
	if err != nil {
		return err
	}
	for _, before := range rows {
		found := reconciled(before, nil, saved(before.Snapshot))
		if found.State == before.State {
			continue
		}
		event := foundEvent(found)
		if found.State == cay.Killed {
			found.Cause = cay.CauseAsked
			who := cay.Caller{Team: found.Team, Name: "operator", From: &cay.Origin{}}
			event = ledger.NewEvent(who, found, cay.SandboxKilled, cay.ReasonAsked, "evidence", "`cay down` ended all sandboxes of this machine")
		}
		err := s.Tx(ctx, func(tx store.Store) error {
			return errors.Join(tx.SkipUsage(ctx, found.ID), tx.UpdateSandbox(ctx, found, event))
		})
		if err != nil {
			return err
		}
	}
	return nil
}
