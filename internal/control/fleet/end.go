package fleet

import (
	"context"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control/ledger"
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
func (c *Catalogue) End(ctx context.Context, who cay.Caller, id cay.SandboxID) (End, error) {
	if err := who.May(cay.ReadSandboxes); err != nil {
		return End{}, err
	}
	s, err := c.store.Sandbox(ctx, who.Team, id)
	if err != nil {
		return End{}, ledger.Known(err, id)
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
