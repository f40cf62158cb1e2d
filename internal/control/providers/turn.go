package providers

import (
	"context"
	"net/url"
	"slices"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control/audit"
	"github.com/cay-run/cay/internal/control/ledger"
)

// Turn is a request of a sandbox to a model that may be carried out.
type Turn struct {
	of       *Providers
	sandbox  cay.Sandbox
	reserved int64
}

// Begin lets a sandbox send one more request, as far as its limits and the budgets
// allow. End must be called once.
func (x *Providers) Begin(ctx context.Context, team cay.TeamID, id cay.SandboxID) (*Turn, error) {
	s, err := x.cfg.Store.Sandbox(ctx, team, id)
	if err != nil {
		return nil, ledger.Known(err, id)
	}
	tokens, err := x.cfg.Store.ModelTokens(ctx, id)
	if err != nil {
		return nil, err
	}
	if err := x.enter(s, tokens); err != nil {
		return nil, err
	}
	t := &Turn{of: x, sandbox: s}
	if err := x.cfg.Budgets.Allows(ctx, s); err != nil {
		t.leave()
		return nil, err
	}
	return t, nil
}

// enter counts a request among those under way, unless there are too many.
func (x *Providers) enter(s cay.Sandbox, tokens int64) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if err := x.cfg.Ledger.Limits(s.Team).AdmitModel(tokens, x.busy[s.ID]); err != nil {
		return err
	}
	x.busy[s.ID]++
	return nil
}

// Reserve refuses the request where those that are under way may take the rest of the
// sandbox's tokens. About so many it may take itself, until End.
func (t *Turn) Reserve(ctx context.Context, tokens int64) error {
	limits := t.of.cfg.Ledger.Limits(t.sandbox.Team)
	if limits[cay.LimitModelTokens] <= 0 {
		return nil
	}
	before := t.reserve(max(tokens, 1))
	// A request that ends from here on counts twice: a client that is refused tries again.
	used, err := t.of.cfg.Store.ModelTokens(ctx, t.sandbox.ID)
	if err != nil {
		return err
	}
	return limits.AdmitTokens(used, before)
}

// reserve adds to the tokens that requests under way may take, and returns those of
// the others.
func (t *Turn) reserve(tokens int64) (before int64) {
	t.of.mu.Lock()
	defer t.of.mu.Unlock()
	before, t.reserved = t.of.reserved[t.sandbox.ID], tokens
	t.of.reserved[t.sandbox.ID] = before + tokens
	return before
}

func (t *Turn) leave() {
	t.of.mu.Lock()
	defer t.of.mu.Unlock()
	if t.of.reserved[t.sandbox.ID] -= t.reserved; t.of.reserved[t.sandbox.ID] == 0 {
		delete(t.of.reserved, t.sandbox.ID)
	}
	if t.of.busy[t.sandbox.ID]--; t.of.busy[t.sandbox.ID] == 0 {
		delete(t.of.busy, t.sandbox.ID)
	}
}

// countWithin bounds the counting at the end of a request whose client has gone.
const countWithin = 10 * time.Second

// End counts the tokens of the request, which is over.
func (t *Turn) End(ctx context.Context, input, output int64) error {
	defer t.leave()
	if input == 0 && output == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), countWithin)
	defer cancel()
	return t.of.cfg.Budgets.Spend(ctx, t.sandbox, input, output)
}

// Failing tells a provider's team that it does not answer.
func (x *Providers) Failing(ctx context.Context, p cay.ModelProvider, why string) {
	x.cfg.Ledger.Tell(ctx, ledger.NewEvent(cay.ForTeam(p.Team), cay.Sandbox{Team: p.Team}, cay.ModelProviderFailing, "", "provider", p.Name, "why", why))
}

// Choice is a provider that is asked for a model.
type Choice struct {
	cay.ModelProvider
	Model string // its name there
}

// Choices lists the providers of a wire that are asked for a model, in their order.
// An empty model is any: of them all, under no name.
func (x *Providers) Choices(ctx context.Context, team cay.TeamID, wire cay.ModelWire, model string) ([]Choice, error) {
	all, err := x.cfg.Store.ModelProviders(ctx, team)
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(p cay.ModelProvider) bool { return !p.Enabled || p.Wire != wire })
	if len(all) == 0 {
		return nil, cay.Errorf(cay.NotFound, "your team has no provider of models that speaks the wire %s", wire).
			WithHint("a member of the team makes one outside: cay model set")
	}
	var out []Choice
	for _, p := range all {
		if theirs, ok := p.Serves(model); ok || model == "" {
			out = append(out, Choice{p, theirs})
		}
	}
	if len(out) == 0 {
		return nil, cay.Errorf(cay.NotFound, "no provider of your team has the model %.80q", model).WithHint("GET /v1/models lists those that there are")
	}
	return out, nil
}

// Key returns the key of a provider for a request of the sandbox, and has the audit
// log count that it was used; empty for a provider without one.
func (t *Turn) Key(ctx context.Context, p cay.ModelProvider) (string, error) {
	if p.Secret == "" {
		return "", nil
	}
	value, err := t.of.cfg.Secret(ctx, p.Team, p.Secret)
	if err != nil {
		return "", err
	}
	host := p.URL
	if u, err := url.Parse(p.URL); err == nil {
		host = u.Host
	}
	t.of.cfg.Audit.Count(audit.Seen{
		Who: cay.ForTeam(t.sandbox.Team), Sandbox: t.sandbox.ID, Action: audit.SecretUsed, Target: p.Secret, Outcome: cay.OutcomeOK,
		Details: []string{"host", host, "provider", p.Name},
	})
	return value, nil
}
