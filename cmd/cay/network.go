package main

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/client"
)

type networkCmd struct {
	List  networkListCmd  `cmd:"" aliases:"ls" help:"List who is in private networks."`
	Join  networkJoinCmd  `cmd:"" help:"Have a running sandbox share a network of the team's."`
	Leave networkLeaveCmd `cmd:"" help:"Have a sandbox be in no private network."`
}

type networkListCmd struct{}

func (networkListCmd) Run(a *app) error {
	api, err := a.client()
	if err != nil {
		return err
	}
	list, err := api.Members(a.ctx)
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(list)
	}
	t := table{header: []string{"NETWORK", "NAME", "SANDBOX", "STATE"}}
	for _, m := range list {
		t.add(clean(m.Network), clean(m.Name)+"."+cay.PrivateDomain, clean(m.SandboxID), clean(m.State))
	}
	t.print(a.out, width(a.out))
	return nil
}

type networkJoinCmd struct {
	ID      string `arg:"" help:"Sandbox's id."`
	Network string `arg:"" help:"The network; it begins with its first member."`
	Name    string `help:"Its name for the others: NAME.cay.internal [its id]."`
}

func (c *networkJoinCmd) Run(a *app) error {
	api, err := a.client()
	if err != nil {
		return err
	}
	return api.Join(a.ctx, c.ID, c.Network, c.Name)
}

type networkLeaveCmd struct {
	IDs []string `arg:"" name:"id" help:"Sandboxes' ids."`
}

func (c *networkLeaveCmd) Run(a *app) error {
	api, err := a.client()
	if err != nil {
		return err
	}
	for _, id := range c.IDs {
		if err := api.Leave(a.ctx, id); err != nil {
			return err
		}
	}
	return nil
}

type limitCmd struct {
	ID   string `arg:"" help:"Sandbox's id."`
	Up   *rate  `placeholder:"RATE" help:"Bytes a second that it sends at most, as 500K, 10M, 1G; 0 for no bound."`
	Down *rate  `placeholder:"RATE" help:"The same for what it receives."`
}

// rate is bytes a second.
type rate int64

// UnmarshalText reads a number of bytes, with K, M or G for powers of 1024.
func (r *rate) UnmarshalText(text []byte) error {
	s, shift := strings.ToUpper(string(text)), 0
	for i, unit := range []string{"K", "M", "G"} {
		if digits, ok := strings.CutSuffix(s, unit); ok {
			s, shift = digits, 10*(i+1)
		}
	}
	n, err := strconv.ParseUint(s, 10, 31)
	if err != nil {
		return fmt.Errorf("%q is no rate such as 500K, 10M or 1G", text)
	}
	*r = rate(n << shift)
	return nil
}

func (c *limitCmd) Run(a *app) error {
	api, err := a.client()
	if err != nil {
		return err
	}
	b, err := api.Bandwidth(a.ctx, c.ID)
	if err != nil {
		return err
	}
	if c.Up == nil && c.Down == nil {
		if a.json {
			return a.printJSON(b)
		}
		_, err := fmt.Fprintf(a.out, "up %s, down %s\n", bound(b.Up), bound(b.Down))
		return err
	}
	return api.SetBandwidth(a.ctx, c.ID, limits(b, c.Up, c.Down))
}

// limits are bounds with those replaced that are given.
func limits(b client.Bandwidth, up, down *rate) client.Bandwidth {
	if up != nil {
		b.Up = int64(*up)
	}
	if down != nil {
		b.Down = int64(*down)
	}
	return b
}

func bound(n int64) string {
	if n == 0 {
		return "unbounded"
	}
	return fmt.Sprintf("%d bytes/s", n)
}
