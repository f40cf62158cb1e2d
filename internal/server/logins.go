package server

import (
	"cmp"
	"net"
	"os"
	"strings"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/auth/oidc"
	"github.com/cay-run/cay/internal/control/logins"
	"github.com/cay-run/cay/internal/edge/rest"
)

// openLogins makes the ways by which people and programs come to credentials
// through what others say of them. Nothing is asked of a provider yet: a server
// starts while it is away.
func (s *Server) openLogins() error {
	rules, err := s.cfg.LoginRules()
	if err != nil {
		return err
	}
	flow, err := s.loginFlow()
	if err != nil {
		return err
	}
	s.logins = logins.New(logins.Config{
		Store: s.records, Ledger: s.control.Ledger(), Auth: s.auth, Accounts: s.control.Accounts, Exchanges: s.cfg.TokenExchange,
		Flow: flow, Groups: cmp.Or(s.cfg.OIDCGroups, "groups"), Rules: rules, Domains: s.cfg.OIDCDomains, TrustEmail: s.cfg.OIDCTrustEmail,
		Pages: s.consolePages(), Audit: s.audit, Log: s.log,
	})
	return nil
}

// loginFlow is the login at the provider; nil where the settings name none.
func (s *Server) loginFlow() (*oidc.Flow, error) {
	c := s.cfg
	if c.OIDCIssuer == "" {
		return nil, nil
	}
	scopes := c.OIDCScopes
	if len(scopes) == 0 {
		scopes = []string{"profile", "email", "groups"}
	}
	flow := &oidc.Flow{
		Provider: oidc.New(c.OIDCIssuer, nil), ClientID: c.OIDCClientID,
		Redirect: c.URL() + rest.CallbackRoute, Scopes: append([]string{"openid"}, scopes...),
		Claims: []string{"email", "email_verified", cmp.Or(c.OIDCGroups, "groups")},
	}
	if c.OIDCClientSecretFile == "" {
		return flow, nil
	}
	secret, err := os.ReadFile(c.OIDCClientSecretFile)
	if err != nil {
		return nil, cay.Wrap(cay.Invalid, err, "the secret of the login provider's client cannot be read").
			WithHint("CAY_OIDC_CLIENT_SECRET_FILE names a file that the server may read")
	}
	flow.Secret = strings.TrimSpace(string(secret))
	return flow, nil
}

// consolePages are the origins of the console: no page of a guest has them.
func (s *Server) consolePages() []string {
	out := []string{"https://console." + s.cfg.ClientDomain()}
	if _, port, err := net.SplitHostPort(s.cfg.Listen); err == nil {
		out = append(out, "http://console.localhost:"+port)
	}
	if s.cfg.ConsoleListen != "" {
		out = append(out, s.cfg.ConsoleURL())
	}
	return out
}
