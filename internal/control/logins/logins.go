// Package logins has the use cases by which people and programs come to
// credentials of this server through what other parties say of them: exchanges
// of tokens, logins and sessions.
package logins

import (
	"log/slog"
	"slices"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/auth"
	"github.com/cay-run/cay/internal/auth/oidc"
	"github.com/cay-run/cay/internal/control/accounts"
	"github.com/cay-run/cay/internal/control/audit"
	"github.com/cay-run/cay/internal/control/ledger"
	"github.com/cay-run/cay/internal/store"
)

// Config is what Logins need. Without a Flow there are no logins.
type Config struct {
	Store     store.Store
	Ledger    *ledger.Ledger
	Auth      *auth.Auth
	Accounts  *accounts.Accounts
	Exchanges []cay.ExchangeRule
	// Flow is the login at the provider; Groups names the claim of groups.
	Flow   *oidc.Flow
	Groups string
	Rules  []cay.LoginRule
	// Domains are those of addresses that may log in; none means all.
	Domains []string
	// TrustEmail takes addresses that the provider says nothing about.
	TrustEmail bool
	// Pages are the origins of the console, to which browsers may be sent.
	Pages []string
	Audit *audit.Log // nil records nothing
	Log   *slog.Logger
}

// Logins carry the use cases out.
type Logins struct {
	cfg     Config
	flow    *oidc.Flow
	issuers map[string]*oidc.Provider // of exchanges, by name
	under   attempts
	links   links
}

// New returns the logins of a server.
func New(cfg Config) *Logins {
	l := &Logins{cfg: cfg, flow: cfg.Flow, issuers: map[string]*oidc.Provider{}, under: attempts{all: map[string]*attempt{}}, links: links{all: map[[32]byte]link{}}}
	for _, r := range cfg.Exchanges {
		if l.issuers[r.Issuer] == nil {
			l.issuers[r.Issuer] = oidc.New(r.Issuer, nil)
		}
	}
	return l
}

// rulesOf are the exchanges of an issuer's tokens.
func (l *Logins) rulesOf(issuer string) []cay.ExchangeRule {
	return slices.DeleteFunc(slices.Clone(l.cfg.Exchanges), func(r cay.ExchangeRule) bool { return r.Issuer != issuer })
}
