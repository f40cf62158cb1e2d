// Package providers has the use cases of the servers of models that a team's
// sandboxes reach through this one: which there are, which are asked for a model,
// and what a sandbox may still ask. The requests themselves are carried by
// edge/models.
package providers

import (
	"context"
	"net/netip"
	"net/url"
	"strings"
	"sync"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control/audit"
	"github.com/cay-run/cay/internal/control/ledger"
	"github.com/cay-run/cay/internal/store"
)

// Budgets say whether a team may spend more, and count what it spends.
type Budgets interface {
	// Allows refuses a sandbox when a budget that it counts to is used up.
	Allows(ctx context.Context, s cay.Sandbox) error
	// Spend counts tokens that a sandbox exchanged with models.
	Spend(ctx context.Context, s cay.Sandbox, input, output int64) error
}

// Config is what Providers need. Networks may be nil where any address may be
// named, Audit for no log.
type Config struct {
	Ledger  *ledger.Ledger
	Store   store.Store
	Budgets Budgets
	// Secret returns the present value of a team's secret.
	Secret func(ctx context.Context, team cay.TeamID, name string) (string, error)
	// Networks say which addresses providers may have.
	Networks interface {
		Outside(netip.Addr) (bool, error)
	}
	Audit *audit.Log
}

// Providers are the use cases of providers of models.
type Providers struct {
	cfg Config

	mu   sync.Mutex
	busy map[cay.SandboxID]int // requests under way
	// reserved are the tokens that those may take, where a sandbox has a bound of them.
	reserved map[cay.SandboxID]int64
}

// New returns the use cases.
func New(cfg Config) *Providers {
	return &Providers{cfg: cfg, busy: make(map[cay.SandboxID]int), reserved: make(map[cay.SandboxID]int64)}
}

// Set makes a provider of the name that p has, or replaces all of it.
func (x *Providers) Set(ctx context.Context, who cay.Caller, p cay.ModelProvider) (cay.ModelProvider, error) {
	if err := who.May(cay.WriteSecrets); err != nil {
		return p, err
	}
	p.Team, p.Secret, p.UpdatedAt = who.Team, strings.ToLower(p.Secret), ledger.Now()
	if err := x.check(ctx, p); err != nil {
		return p, err
	}
	old, err := x.cfg.Store.ModelProvider(ctx, who.Team, p.Name)
	fresh := cay.KindOf(err) == cay.NotFound
	if err != nil && !fresh {
		return p, err
	}
	p.CreatedAt, p.Version = p.UpdatedAt, 1
	change := func(tx store.Store) error { return tx.AddModelProvider(ctx, p, cay.MaxModelProviders) }
	if !fresh {
		p.CreatedAt, p.Version = old.CreatedAt, old.Version+1
		change = func(tx store.Store) error { return tx.UpdateModelProvider(ctx, p) }
	}
	err = x.cfg.Ledger.Do(ctx, who, "model_provider.set", p.Name, change, "url", p.URL, "secret", p.Secret, "wire", string(p.Wire))
	switch cay.KindOf(err) {
	case cay.Exhausted:
		err = cay.Wrap(cay.Exhausted, err, "your team has %d providers of models, which is the most", cay.MaxModelProviders).WithCode(cay.CodeTeamLimit).WithHint("remove one")
	case cay.Conflict:
		err = cay.Wrap(cay.Conflict, err, "provider %q was changed meanwhile", p.Name).WithHint("look at it, and try again")
	}
	return p, err
}

// check says what is wrong with a provider. The address of a name is looked at when
// it is dialled.
func (x *Providers) check(ctx context.Context, p cay.ModelProvider) error {
	if err := p.Check(); err != nil {
		return err
	}
	if p.Secret != "" {
		_, err := x.cfg.Store.Secret(ctx, p.Team, p.Secret)
		if cay.KindOf(err) == cay.NotFound {
			return cay.Wrap(cay.Invalid, err, "secret: there is no secret %.140q", p.Secret).WithHint("make it first with POST /secrets, or give the key to `cay model set --key-file`")
		}
		if err != nil {
			return err
		}
	}
	u, err := url.Parse(p.URL)
	if err != nil || x.cfg.Networks == nil {
		return err
	}
	addr, err := netip.ParseAddr(strings.Trim(u.Hostname(), "[]"))
	if err != nil { // a name
		return nil
	}
	if ok, err := x.cfg.Networks.Outside(addr); err != nil || !ok {
		return cay.Wrap(cay.Invalid, err, "url: %s is on a private network, or on the server's own", addr).
			WithHint("use a public address; the operator of the server can open others with CAY_MODEL_OPEN")
	}
	return nil
}

// List lists a team's providers in the order in which they are asked.
func (x *Providers) List(ctx context.Context, who cay.Caller) ([]cay.ModelProvider, error) {
	if err := who.May(cay.ReadSecrets); err != nil {
		return nil, err
	}
	return x.cfg.Store.ModelProviders(ctx, who.Team)
}

// Get finds a team's provider.
func (x *Providers) Get(ctx context.Context, who cay.Caller, name string) (cay.ModelProvider, error) {
	if err := who.May(cay.ReadSecrets); err != nil {
		return cay.ModelProvider{}, err
	}
	p, err := x.cfg.Store.ModelProvider(ctx, who.Team, name)
	return p, known(err, name)
}

// Remove forgets a team's provider.
func (x *Providers) Remove(ctx context.Context, who cay.Caller, name string) error {
	if err := who.May(cay.WriteSecrets); err != nil {
		return err
	}
	err := x.cfg.Ledger.Do(ctx, who, "model_provider.removed", name, func(tx store.Store) error { return tx.RemoveModelProvider(ctx, who.Team, name) })
	return known(err, name)
}

func known(err error, name string) error {
	if cay.KindOf(err) == cay.NotFound {
		return cay.Wrap(cay.NotFound, err, "provider %.80q not found", name)
	}
	return err
}
