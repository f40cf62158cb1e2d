package lifecycle

import (
	"context"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control/ledger"
	"github.com/cay-run/cay/internal/store"
)

// Load is what the sandboxes of this server's machine take of it.
type Load struct {
	Node              cay.NodeID
	Draining          bool
	Running, Starting int
	Paused            int
	CPUs, MemoryMB    int   // promised to those that run
	Started, Failed   int64 // starts since this server began
}

// Load tells of the machine.
func (c *Controller) Load(_ context.Context, who cay.Caller) (Load, error) {
	if err := who.May(cay.Admin); err != nil {
		return Load{}, err
	}
	return c.load(), nil
}

func (c *Controller) load() Load {
	out := Load{Node: c.nodeID, Started: c.started.Load(), Failed: c.failed.Load()}
	c.mu.RLock()
	defer c.mu.RUnlock()
	out.Draining, out.Starting = c.drain != cay.DrainNone, len(c.starting)
	for _, e := range c.live {
		switch s := e.sandbox(); s.State {
		case cay.Killed:
		case cay.Paused:
			out.Paused++
		default:
			out.Running++
			out.CPUs += s.Limits.CPUs
			out.MemoryMB += s.Limits.MemoryMB
		}
	}
	return out
}

// Drain has the machine take no new sandboxes, or with off take them again, also
// after a restart. Those that run go on, and those that are paused resume.
func (c *Controller) Drain(ctx context.Context, who cay.Caller, off bool) error {
	if err := who.May(cay.Admin); err != nil {
		return err
	}
	c.drains.Lock() // else of two calls one would win in the records, the other here
	defer c.drains.Unlock()
	status, how := "draining", cay.DrainWait
	if off {
		status, how = "ready", cay.DrainNone
	}
	// A client that leaves must not leave records and memory apart.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), ledger.EndWithin)
	defer cancel()
	err := c.ledger.Do(ctx, who, "node.changed", string(c.nodeID), func(tx store.Store) error {
		return tx.SetDrain(ctx, c.nodeID, how)
	}, "status", status)
	if err != nil {
		return err
	}
	c.Drained(how)
	return nil
}

// takesNew refuses a new sandbox while the machine is drained. The caller holds
// c.mu.
func (c *Controller) takesNew(id cay.SandboxID) error {
	if c.drain != cay.DrainNone && c.live[id] == nil {
		return errDrained()
	}
	return nil
}

func errDrained() error {
	return cay.Errorf(cay.Unavailable, "this machine takes no new sandboxes: its operator drains it").WithCode(cay.CodeCapacity)
}

// counted counts a start.
func (c *Controller) counted(err error) {
	if err == nil {
		c.started.Add(1)
	} else {
		c.failed.Add(1)
	}
}
