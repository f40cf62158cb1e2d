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
	"github.com/cay-run/cay/internal/store"
)

// Config is what Logins need. Rules and Exchanges may be empty.
type Config struct {
	Store     store.Store
	Auth      *auth.Auth
	Accounts  *accounts.Accounts
	Exchanges []cay.ExchangeRule
	Log       *slog.Logger
}

// Logins carry the use cases out.
type Logins struct {
	cfg     Config
	issuers map[string]*oidc.Provider // of exchanges, by name
}

// New returns the logins of a server.
func New(cfg Config) *Logins {
	l := &Logins{cfg: cfg, issuers: map[string]*oidc.Provider{}}
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
