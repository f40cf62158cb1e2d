package vnet

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/netip"

	"github.com/google/nftables"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/conns/outside"
)

// Probe says whether this host's packet filter can do what slots need, by
// writing a table under an unused name and removing it.
func Probe() error {
	var b [2]byte
	rand.Read(b[:])
	m := &Manager{name: fmt.Sprintf("x%x", b), network: netip.MustParsePrefix("10.0.0.0/30")}
	if err := m.listen(context.Background()); err != nil {
		return err
	}
	defer m.diverted.close()
	err := m.writeTableOnce(netip.MustParseAddrPort("10.0.0.1:53"), disjoint(outside.Closed4()))
	if err != nil {
		return cay.Wrap(cay.Unsupported, err, "the packet filter cannot be written")
	}
	return m.deleteTable()
}

// DropsForwarded names the chains of others that drop forwarded packets unless
// told otherwise; Docker makes one. No rule of ours can overrule them.
func DropsForwarded() ([]string, error) {
	c, err := nftables.New()
	if err != nil {
		return nil, cay.Wrap(cay.Internal, err, "no netlink socket")
	}
	chains, err := c.ListChains()
	if err != nil {
		return nil, cay.Wrap(cay.Internal, err, "the packet filter cannot be read")
	}
	var out []string
	for _, chain := range chains {
		forward := chain.Hooknum != nil && *chain.Hooknum == *nftables.ChainHookForward
		if forward && chain.Type == nftables.ChainTypeFilter && chain.Policy != nil && *chain.Policy == nftables.ChainPolicyDrop {
			out = append(out, chain.Table.Name+" "+chain.Name)
		}
	}
	return out, nil
}
