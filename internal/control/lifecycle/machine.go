package lifecycle

import (
	"context"

	"github.com/cay-run/cay"
)

// Load is what the sandboxes of this server's machine take of it.
type Load struct {
	Node              cay.NodeID
	Draining          bool
	Running, Starting int
	CPUs, MemoryMB    int   // promised to those that run
	Started, Failed   int64 // starts since this server began
}

// Load tells of the machine.
func (c *Controller) Load(_ context.Context, who cay.Caller) (Load, error) {
	if err := who.May(cay.Admin); err != nil {
		return Load{}, err
	}
	out := Load{Node: c.nodeID, Started: c.started.Load(), Failed: c.failed.Load()}
	c.mu.RLock()
	defer c.mu.RUnlock()
	out.Draining, out.Starting = c.draining, len(c.starting)
	for _, e := range c.live {
		if s := e.sandbox(); s.State != cay.Paused && s.State != cay.Killed {
			out.Running++
			out.CPUs += s.Limits.CPUs
			out.MemoryMB += s.Limits.MemoryMB
		}
	}
	return out, nil
}

// Drain has the machine take no new sandboxes, or with off take them again.
// Those that run go on, and those that are paused resume.
func (c *Controller) Drain(_ context.Context, who cay.Caller, off bool) error {
	if err := who.May(cay.Admin); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.draining = !off
	return nil
}

// takesNew refuses a new sandbox while the machine is drained. The caller holds
// c.mu.
func (c *Controller) takesNew(id cay.SandboxID) error {
	if c.draining && c.live[id] == nil {
		return cay.Errorf(cay.Unavailable, "this machine takes no new sandboxes: its operator drains it").WithCode(cay.CodeCapacity)
	}
	return nil
}

// counted counts a start.
func (c *Controller) counted(err error) {
	if err == nil {
		c.started.Add(1)
	} else {
		c.failed.Add(1)
	}
}
