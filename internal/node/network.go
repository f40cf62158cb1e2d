package node

import (
	"context"

	"github.com/cay-run/cay"
)

// SetNetwork replaces what an instance may reach, in force when it returns and
// after every restart. When it fails the old policy holds.
func (n *Node) SetNetwork(ctx context.Context, id cay.InstanceID, p cay.NetworkPolicy) error {
	return n.ask(ctx, id, func(inst *instance) (bool, error) {
		before := inst.record()
		after := before
		after.Spec.Network = p
		// The journal first: the next node applies what it says.
		err := rewriteJournal(n.journal(id), after)
		if err == nil {
			if err = n.cfg.Net.Apply(context.WithoutCancel(ctx), inst.slot, p); err == nil {
				n.mu.Lock()
				inst.spec.Network = p
				n.mu.Unlock()
				return false, nil
			}
		} else {
			err = diskError(err)
		}
		if back := rewriteJournal(n.journal(id), before); back != nil {
			n.cfg.Log.Error("a journal could not be put back", "instance", id, "err", back)
		}
		return false, err
	})
}
