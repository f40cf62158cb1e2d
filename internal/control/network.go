package control

import (
	"context"
	"reflect"

	"github.com/cay-run/cay"
)

// SetNetwork replaces what a running sandbox may reach, at once. What the
// policy says of reaching the sandbox is left as it was.
func (c *Control) SetNetwork(ctx context.Context, team cay.TeamID, id cay.SandboxID, p cay.NetworkPolicy) error {
	if err := p.Check(); err != nil {
		return err
	}
	return c.change(ctx, team, id, func(e *entry, s cay.Sandbox) error {
		if err := mustRun(s); err != nil {
			return err
		}
		before := s.Network
		s.Network = outwards(before, p)
		if err := c.node.SetNetwork(ctx, s.Instance, s.Network); err != nil {
			return err
		}
		err := c.save(ctx, e, s, event(ctx, s, cay.SandboxNetworkChanged, cay.ReasonAsked))
		if err != nil { // what is recorded is what is in force
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endWithin)
			defer cancel()
			if back := c.node.SetNetwork(ctx, s.Instance, before); back != nil {
				c.log.Error("cannot put a network policy back", "sandbox", s.ID, "error", back)
			}
		}
		return err
	})
}

// Connections lists what a running sandbox tried to reach lately, the oldest
// first, as far as its host looked at it.
func (c *Control) Connections(ctx context.Context, team cay.TeamID, id cay.SandboxID) ([]cay.Connection, error) {
	s, err := c.Get(ctx, team, id)
	if err != nil {
		return nil, err
	}
	if err := mustRun(s); err != nil {
		return nil, err
	}
	return c.node.Connections(s.Instance), nil
}

// outwards is a policy with what another says of reaching out.
func outwards(p, from cay.NetworkPolicy) cay.NetworkPolicy {
	p.AllowInternet, p.AllowOut, p.DenyOut = from.AllowInternet, from.AllowOut, from.DenyOut
	p.Rules, p.Proxy = from.Rules, from.Proxy
	return p
}

// inForce is a sandbox's record with the policy that its instance has: a crash
// between applying a policy and recording it leaves the two apart.
func inForce(s cay.Sandbox, instance *cay.Instance) (cay.Sandbox, bool) {
	if instance == nil || s.State == cay.Killed || reflect.DeepEqual(s.Network, instance.Spec.Network) {
		return s, false
	}
	s.Network = outwards(s.Network, instance.Spec.Network)
	return s, true
}
