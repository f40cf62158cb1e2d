package control

import "github.com/cay-run/cay"

// quota is what a team may have running at once; 0 is no bound.
type quota struct{ sandboxes, memoryMB int }

// enter makes a new sandbox known, if its team may have another.
func (c *Control) enter(e *entry) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := e.sandbox()
	if c.live[s.ID] != nil {
		return cay.Errorf(cay.Conflict, "sandbox %s exists", s.ID)
	}
	if err := c.within(s); err != nil {
		return err
	}
	c.live[s.ID] = e
	return nil
}

// checkQuota says whether a paused sandbox may run again.
func (c *Control) checkQuota(s cay.Sandbox) error {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.within(s)
}

// within says whether a team may have one more running. The caller holds c.mu.
func (c *Control) within(one cay.Sandbox) error {
	if c.most == (quota{}) {
		return nil
	}
	n, memory := 1, one.Limits.MemoryMB
	for _, e := range c.live {
		if s := e.sandbox(); s.Team == one.Team && s.ID != one.ID && s.State != cay.Paused && s.State != cay.Killed {
			n++
			memory += s.Limits.MemoryMB
		}
	}
	const hint = "end or pause some, or have CAY_TEAM_SANDBOXES and CAY_TEAM_MEMORY raised"
	switch {
	case c.most.sandboxes > 0 && n > c.most.sandboxes:
		return cay.Errorf(cay.Exhausted, "your team has the %d sandboxes running that it may have at once", c.most.sandboxes).WithHint(hint)
	case c.most.memoryMB > 0 && memory > c.most.memoryMB:
		return cay.Errorf(cay.Exhausted, "your team's running sandboxes would have %d MB of memory, and may have %d MB at once", memory, c.most.memoryMB).WithHint(hint)
	}
	return nil
}
