package lifecycle

import (
	"cmp"
	"context"
	"reflect"
	"slices"
	"strings"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control/ledger"
	"github.com/cay-run/cay/internal/store"
)

// SetNetwork replaces a running sandbox's policy for connections outwards, at
// once. The policy for connections to the sandbox stays as it was, and so do its
// private network and bandwidth.
func (c *Controller) SetNetwork(ctx context.Context, who cay.Caller, id cay.SandboxID, p cay.NetworkPolicy) error {
	if err := who.May(cay.WriteSandboxes); err != nil {
		return err
	}
	if err := p.Check(); err != nil {
		return err
	}
	if err := c.hasSecrets(ctx, who.Team, p); err != nil {
		return err
	}
	return c.changeNetwork(ctx, who, id, func(now cay.NetworkPolicy) (cay.NetworkPolicy, error) {
		p := outwards(now, p)
		return p, p.HasIdentities()
	})
}

// AllowOut has a running sandbox reach addresses, ranges and names besides all that
// its policy allows, at once. The rest of the policy stays, its secrets too.
func (c *Controller) AllowOut(ctx context.Context, who cay.Caller, id cay.SandboxID, more []string) error {
	if err := who.May(cay.WriteSandboxes); err != nil {
		return err
	}
	return c.changeNetwork(ctx, who, id, func(now cay.NetworkPolicy) (cay.NetworkPolicy, error) {
		now.AllowOut = slices.Clone(now.AllowOut)
		for _, to := range more {
			if to = strings.ToLower(to); !slices.Contains(now.AllowOut, to) {
				now.AllowOut = append(now.AllowOut, to)
			}
		}
		return now, now.Check()
	})
}

// hasSecrets reports, as an error, a secret that a policy's rules name and the
// team does not have. A secret that is removed later has requests refused.
func (c *Controller) hasSecrets(ctx context.Context, team cay.TeamID, p cay.NetworkPolicy) error {
	for _, name := range p.SecretNames() {
		_, err := c.store.Secret(ctx, team, name)
		if cay.KindOf(err) == cay.NotFound {
			return cay.Wrap(cay.Invalid, err, "network.rules: there is no secret %q", name).
				WithHint("create the secret first: POST /secrets")
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Join has a running sandbox share a network of its team's, under a name of
// its own, or under its id without one. It leaves the one that it was in. An
// empty network leaves it in none. One whose members are on another node is
// refused.
func (c *Controller) Join(ctx context.Context, who cay.Caller, id cay.SandboxID, network, name string) error {
	if err := who.May(cay.WriteSandboxes); err != nil {
		return err
	}
	var joined *cay.PrivateNetwork
	if network != "" {
		if name == "" {
			name = string(id)
		}
		joined = &cay.PrivateNetwork{Team: who.Team, Name: network, Member: name}
	}
	if err := joined.Check(); err != nil {
		return err
	}
	return c.changeNetwork(ctx, who, id, func(now cay.NetworkPolicy) (cay.NetworkPolicy, error) {
		now.Private = joined
		return now, nil
	})
}

// SetBandwidth bounds how fast a running sandbox sends and receives.
func (c *Controller) SetBandwidth(ctx context.Context, who cay.Caller, id cay.SandboxID, b cay.Bandwidth) error {
	if err := who.May(cay.WriteSandboxes); err != nil {
		return err
	}
	if err := b.Check(); err != nil {
		return err
	}
	return c.changeNetwork(ctx, who, id, func(now cay.NetworkPolicy) (cay.NetworkPolicy, error) {
		now.Bandwidth = b
		return now, nil
	})
}

// changeNetwork puts a change of a running sandbox's policy in force and
// records it, or neither.
func (c *Controller) changeNetwork(ctx context.Context, who cay.Caller, id cay.SandboxID, f func(cay.NetworkPolicy) (cay.NetworkPolicy, error)) error {
	return c.change(ctx, who.Team, id, func(e *entry, s cay.Sandbox) error {
		if err := mustRun(s); err != nil {
			return err
		}
		before := s.Network
		after, err := f(before)
		if err != nil {
			return err
		}
		s.Network = after
		if err := c.node.SetNetwork(ctx, s.Instance, s.Network); err != nil {
			return err
		}
		changed := ledger.NewEvent(who, s, cay.SandboxNetworkChanged, cay.ReasonAsked)
		err = c.record(ctx, e, s, func(ctx context.Context, s cay.Sandbox) error {
			return c.store.Tx(ctx, func(tx store.Store) error {
				if err := tx.UpdateNetwork(ctx, s, changed); err != nil || !c.member || !joins(before, s.Network) {
					return err
				}
				return c.isNear(ctx, tx, s)
			})
		})
		if err != nil { // the record shows the policy in force
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), ledger.EndWithin)
			defer cancel()
			if back := c.node.SetNetwork(ctx, s.Instance, before); back != nil {
				c.log.ErrorContext(ctx, "cannot put a network policy back", "sandbox", s.ID, "err", back)
			}
		}
		return err
	})
}

func joins(before, after cay.NetworkPolicy) bool {
	return after.Private != nil && (before.Private == nil || before.Private.Name != after.Private.Name)
}

// isNear refuses a private network whose members are all on other nodes: no packet leaves a
// node. It follows the change of the record, which one transaction of a team makes after the other.
func (c *Controller) isNear(ctx context.Context, tx store.Store, s cay.Sandbox) error {
	network := s.Network.Private.Name
	members, err := tx.NetworkMembers(ctx, s.Team, network)
	if err != nil {
		return err
	}
	members = slices.DeleteFunc(members, func(m cay.Sandbox) bool { return m.ID == s.ID })
	if len(members) == 0 || slices.ContainsFunc(members, func(m cay.Sandbox) bool { return m.Node == c.nodeID }) {
		return nil
	}
	return cay.Errorf(cay.Conflict, "the members of network %s are on another node of the cluster", network).
		WithCode(cay.CodeNetworkElsewhere).WithHint("make the sandbox beside one of them: create it with near set to %s", members[0].ID)
}

// Members lists a team's sandboxes that are in private networks, by network
// and name.
func (c *Controller) Members(ctx context.Context, who cay.Caller) ([]cay.Sandbox, error) {
	if err := who.May(cay.ReadSandboxes); err != nil {
		return nil, err
	}
	var out []cay.Sandbox
	for _, e := range c.entries() {
		if s := e.sandbox(); s.Team == who.Team && s.Network.Private != nil && s.State != cay.Killed && s.State != cay.Creating {
			out = append(out, s)
		}
	}
	if c.member {
		all, err := c.store.NetworkMembers(ctx, who.Team, "")
		if err != nil {
			return nil, err
		}
		for _, s := range all {
			if s.Node != c.nodeID {
				out = append(out, s)
			}
		}
	}
	slices.SortFunc(out, func(a, b cay.Sandbox) int {
		x, y := a.Network.Private, b.Network.Private
		return cmp.Or(cmp.Compare(x.Name, y.Name), cmp.Compare(x.Member, y.Member), cmp.Compare(a.ID, b.ID))
	})
	return out, nil
}

// Connections lists what a running sandbox tried to reach lately, the oldest
// first, as far as its host looked at it.
func (c *Controller) Connections(ctx context.Context, who cay.Caller, id cay.SandboxID) ([]cay.Connection, error) {
	if err := who.May(cay.ReadSandboxes); err != nil {
		return nil, err
	}
	s, err := c.get(who.Team, id)
	if err != nil {
		return nil, err
	}
	if err := mustRun(s); err != nil {
		return nil, err
	}
	return c.node.Connections(ctx, s.Instance)
}

// outwards is a policy with what another says of reaching out.
func outwards(p, from cay.NetworkPolicy) cay.NetworkPolicy {
	p.AllowInternet, p.AllowOut, p.DenyOut, p.AskOut = from.AllowInternet, from.AllowOut, from.DenyOut, from.AskOut
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
