package node

import (
	"context"
	"errors"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/vnet"
)

// openNetwork lets an instance reach what its policy says.
func (n *Node) openNetwork(ctx context.Context, slot vnet.Slot, spec cay.InstanceSpec) error {
	if spec.Fenced {
		if err := n.cfg.Net.Fence(ctx, slot); err != nil {
			return err
		}
	}
	return n.cfg.Net.Apply(ctx, slot, spec.Network)
}

// SetNetwork replaces the policy of an instance, in force when it returns and after
// every restart. When it fails the old policy holds.
func (n *Node) SetNetwork(ctx context.Context, id cay.InstanceID, p cay.NetworkPolicy) error {
	return n.ask(ctx, id, func(inst *instance) (bool, error) {
		before := inst.record()
		after := before
		after.Spec.Network = p
		// The journal first: the next node applies what it says.
		if err := rewriteJournal(n.journal(id), after); err != nil {
			return false, errors.Join(diskError(err), n.putBack(id, before))
		}
		n.cfg.Egress.Set(inst.slot.Addr, after.Spec)
		if err := n.cfg.Net.Apply(context.WithoutCancel(ctx), inst.slot, p); err != nil {
			n.cfg.Egress.Set(inst.slot.Addr, before.Spec)
			return false, errors.Join(err, n.putBack(id, before))
		}
		n.mu.Lock()
		inst.spec.Network = p
		n.mu.Unlock()
		return false, nil
	})
}

// putBack undoes a change of the journal.
func (n *Node) putBack(id cay.InstanceID, before record) error {
	if err := rewriteJournal(n.journal(id), before); err != nil {
		return diskError(err)
	}
	return nil
}

// Connections lists what an instance tried to reach lately, as far as it did
// not go straight through the packet filter; the oldest first.
func (n *Node) Connections(id cay.InstanceID) []cay.Connection {
	n.mu.Lock()
	inst := n.instances[id]
	shown := inst != nil && n.bySandbox[inst.spec.Sandbox] == inst
	n.mu.Unlock()
	if !shown {
		return nil
	}
	return n.cfg.Egress.Connections(inst.slot.Addr)
}
