package control

import (
	"cmp"
	"context"
	"reflect"
	"slices"

	"github.com/cay-run/cay"
)

// SetNetwork replaces what a running sandbox may reach, at once. What the
// policy says of reaching the sandbox is left as it was, and so are its private
// network and bandwidth.
func (c *Control) SetNetwork(ctx context.Context, team cay.TeamID, id cay.SandboxID, p cay.NetworkPolicy) error {
	if err := p.Check(); err != nil {
		return err
	}
	return c.changeNetwork(ctx, team, id, func(now cay.NetworkPolicy) cay.NetworkPolicy { return outwards(now, p) })
}

// Join has a running sandbox share a network of its team's, under a name of
// its own, or under its id without one. It leaves the one that it was in. An
// empty network leaves it in none.
func (c *Control) Join(ctx context.Context, team cay.TeamID, id cay.SandboxID, network, name string) error {
	var joined *cay.PrivateNetwork
	if network != "" {
		if name == "" {
			name = string(id)
		}
		joined = &cay.PrivateNetwork{Team: team, Name: network, Member: name}
	}
	if err := joined.Check(); err != nil {
		return err
	}
	return c.changeNetwork(ctx, team, id, func(now cay.NetworkPolicy) cay.NetworkPolicy {
		now.Private = joined
		return now
	})
}

// SetBandwidth bounds how fast a running sandbox sends and receives.
func (c *Control) SetBandwidth(ctx context.Context, team cay.TeamID, id cay.SandboxID, b cay.Bandwidth) error {
	if err := b.Check(); err != nil {
		return err
	}
	return c.changeNetwork(ctx, team, id, func(now cay.NetworkPolicy) cay.NetworkPolicy {
		now.Bandwidth = b
		return now
	})
}

// changeNetwork puts a change of a running sandbox's policy in force and
// records it, or neither.
func (c *Control) changeNetwork(ctx context.Context, team cay.TeamID, id cay.SandboxID, f func(cay.NetworkPolicy) cay.NetworkPolicy) error {
	return c.change(ctx, team, id, func(e *entry, s cay.Sandbox) error {
		if err := mustRun(s); err != nil {
			return err
		}
		before := s.Network
		s.Network = f(before)
		if err := c.node.SetNetwork(ctx, s.Instance, s.Network); err != nil {
			return err
		}
		changed := event(ctx, s, cay.SandboxNetworkChanged, cay.ReasonAsked)
		err := c.record(ctx, c.store.UpdateNetwork, e, s, []cay.Event{changed})
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

// Members lists a team's sandboxes that are in private networks, by network
// and name.
func (c *Control) Members(team cay.TeamID) []cay.Sandbox {
	var out []cay.Sandbox
	for _, e := range c.entries() {
		if s := e.sandbox(); s.Team == team && s.Network.Private != nil && s.State != cay.Killed && s.State != cay.Creating {
			out = append(out, s)
		}
	}
	slices.SortFunc(out, func(a, b cay.Sandbox) int {
		x, y := a.Network.Private, b.Network.Private
		return cmp.Or(cmp.Compare(x.Name, y.Name), cmp.Compare(x.Member, y.Member), cmp.Compare(a.ID, b.ID))
	})
	return out
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
	p.Rules, p.Proxy, p.DNSServers = from.Rules, from.Proxy, from.DNSServers
	return p
}

// inForce is a sandbox's record with the policy that its instance has: a crash
// between applying a policy and recording it leaves the two apart.
func inForce(s cay.Sandbox, instance *cay.Instance) (cay.Sandbox, bool) {
	if instance == nil || s.State == cay.Killed || reflect.DeepEqual(s.Network, instance.Spec.Network) {
		return s, false
	}
	s.Network = outwards(s.Network, instance.Spec.Network)
	s.Network.Private, s.Network.Bandwidth = instance.Spec.Network.Private, instance.Spec.Network.Bandwidth
	return s, true
}
