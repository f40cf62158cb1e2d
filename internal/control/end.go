package control

import (
	"context"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/store"
)

// End is why a sandbox is over.
type End struct {
	Sandbox  cay.Sandbox // its last record, with the Cause
	Evidence string      // what shows the cause; may be empty
	By       cay.KeyID   // the key that asked for it, if one did
	ByName   string      // its name, while there is such a key
	Snapshot *Snap
}

// End says why a sandbox is over, for a week. Conflict when it is not.
func (c *Control) End(ctx context.Context, who cay.Caller, id cay.SandboxID) (End, error) {
	if err := who.May(cay.ReadSandboxes); err != nil {
		return End{}, err
	}
	s, err := c.store.Sandbox(ctx, who.Team, id)
	if err != nil {
		return End{}, known(err, id)
	}
	if s.State != cay.Killed {
		return End{}, cay.Errorf(cay.Conflict, "sandbox %s is %s: it has not ended", id, s.State)
	}
	out := End{Sandbox: s}
	last, err := c.store.Events(ctx, store.EventQuery{
		Team: who.Team, Sandbox: id, Type: cay.SandboxKilled, Newest: true, Limit: 1,
	})
	if err != nil {
		return End{}, err
	}
	if len(last) == 1 {
		out.Evidence, out.By = last[0].Data["evidence"], cay.KeyID(last[0].Data["by"])
	}
	if out.By != "" {
		keys, err := c.store.Keys(ctx, who.Team)
		if err != nil {
			return End{}, err
		}
		for _, k := range keys {
			if k.ID == out.By {
				out.ByName = k.Name
			}
		}
	}
	taken, err := c.snapshots(ctx, who.Team, id, "")
	if err == nil && len(taken) > 0 {
		out.Snapshot = &taken[0]
	}
	return out, err
}

// RecordDown records, with no server running, that all sandboxes which run are
// ended on purpose. Those that are saved stay so; saved tells which snapshots
// there are. The instances are ended by the caller, after it.
func RecordDown(ctx context.Context, s store.Store, saved func(cay.SnapshotID) bool) error {
	rows, err := s.LiveSandboxes(ctx)
	if err != nil {
		return err
	}
	for _, before := range rows {
		found := settled(before, nil, saved(before.Snapshot))
		if found.State == before.State {
			continue
		}
		told := foundEvent(found)
		if found.State == cay.Killed {
			found.Cause = cay.CauseAsked
			told = event(cay.ForTeam(found.Team), found, cay.SandboxKilled, cay.ReasonAsked, "evidence", "`cay down` ended all sandboxes of this machine")
		}
		if err := s.UpdateSandbox(ctx, found, told); err != nil {
			return err
		}
	}
	return nil
}
