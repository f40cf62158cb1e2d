package lifecycle

import (
	"context"
	"errors"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control/ledger"
	"github.com/cay-run/cay/internal/store"
)

// Has reports whether a sandbox that is not over is this node's.
func (c *Controller) Has(id cay.SandboxID) bool { return c.entry(id) != nil }

// Use tells what the sandboxes of this node take of it.
func (c *Controller) Use() cay.NodeUse {
	l := c.load()
	return cay.NodeUse{Running: l.Running, Starting: l.Starting, PromisedCPUs: l.CPUs, PromisedMB: l.MemoryMB}
}

// Drained has the node follow its record, which another member may have changed.
func (c *Controller) Drained(on bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.draining = on
}

// Adopt makes a paused sandbox this node's whose own node is gone. Conflict where it
// is not so, or another node was first.
func (c *Controller) Adopt(ctx context.Context, id cay.SandboxID) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), ledger.EndWithin)
	defer cancel()
	s, err := c.store.AdoptSandbox(ctx, id, c.nodeID)
	if err != nil {
		return err
	}
	branch, err := c.store.Branch(ctx, s.Team, id)
	if err != nil {
		return err
	}
	e := newEntry(s)
	e.tree.member.Store(branch.Tree != id || branch.Auto.On())
	e.tree.rewound.Store(branch.Rewound)
	e.setAuto(branch.Auto)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.live[id] == nil {
		c.put(e)
	}
	c.log.InfoContext(ctx, "a paused sandbox of a node that is gone is this node's now", "sandbox", id)
	return nil
}

// EndLost records the ends of what ran on a node that is gone. Sandboxes that are paused, or
// were about to run again, stay paused. It may be called again.
func (c *Controller) EndLost(ctx context.Context, node cay.NodeID) error {
	rows, err := c.store.SandboxesOf(ctx, node)
	var errs []error
	for _, before := range rows {
		found := reconciled(before, nil, before.State == cay.Resuming)
		if found.State == before.State {
			continue
		}
		event := foundEvent(found)
		if found.State == cay.Killed {
			event.Data["evidence"] = "node " + string(node) + " was silent for longer than its lease"
		}
		err := c.store.Tx(ctx, func(tx store.Store) error {
			return errors.Join(tx.SkipUsage(ctx, found.ID), tx.UpdateSandbox(ctx, found, event))
		})
		if err == nil {
			c.log.WarnContext(ctx, "sandbox was on a node that is gone", "sandbox", found.ID, "node", node, "was", before.State, "is", found.State)
			c.ledger.Wake(found.Team)
		}
		errs = append(errs, err)
	}
	return errors.Join(append(errs, err)...)
}
