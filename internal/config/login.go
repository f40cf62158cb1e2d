package config

import (
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/cay-run/cay"
)

// Login is how people log in, and which tokens of other issuers are exchanged
// for keys.
type Login struct {
	// OIDCIssuer is the provider's name; empty offers no login.
	OIDCIssuer   string `yaml:"oidcIssuer"`
	OIDCClientID string `yaml:"oidcClientID"`
	// OIDCClientSecretFile has the client's secret; empty for a public client.
	OIDCClientSecretFile string `yaml:"oidcClientSecretFile"`
	// OIDCScopes are asked for besides openid; none means profile, email and
	// groups.
	OIDCScopes []string `yaml:"oidcScopes"`
	// OIDCGroups is the claim that lists a person's groups; empty means groups.
	OIDCGroups string `yaml:"oidcGroups"`
	// OIDCRules give roles, as "group:platform -> team default as admin".
	OIDCRules []string `yaml:"oidcRules"`
	// OIDCDomains are the domains of addresses that may log in; none means all.
	OIDCDomains []string `yaml:"oidcDomains"`
	// OIDCTrustEmail takes addresses of a provider that never says whether it
	// has verified them.
	OIDCTrustEmail bool `yaml:"oidcTrustEmail"`
	// TokenExchange are the rules of exchanges.
	TokenExchange []cay.ExchangeRule `yaml:"tokenExchange"`
}

var loginVariables = []Variable{
	{"CAY_OIDC_ISSUER", "oidcIssuer", "OpenID provider at which people log in, e.g. https://login.example.com [no logins]",
		func(c *Config, v string) error { c.OIDCIssuer = v; return nil }},
	{"CAY_OIDC_CLIENT_ID", "oidcClientID", "this server's id at the provider",
		func(c *Config, v string) error { c.OIDCClientID = v; return nil }},
	{"CAY_OIDC_CLIENT_SECRET_FILE", "oidcClientSecretFile", "file of its secret there [a public client]",
		func(c *Config, v string) error { c.OIDCClientSecretFile = v; return nil }},
	{"CAY_OIDC_SCOPES", "oidcScopes", "scopes that are asked for besides openid [profile,email,groups]",
		func(c *Config, v string) error { c.OIDCScopes = commas(v); return nil }},
	{"CAY_OIDC_GROUPS", "oidcGroups", "claim that lists a person's groups [groups]",
		func(c *Config, v string) error { c.OIDCGroups = v; return nil }},
	{"CAY_OIDC_RULES", "oidcRules", "roles of people who log in: group:platform -> team default as admin; email:*@example.com -> team default as viewer [none]",
		func(c *Config, v string) error { c.OIDCRules = rules(v); return nil }},
	{"CAY_OIDC_DOMAINS", "oidcDomains", "domains of e-mail addresses that may log in, example.com,… [all]",
		func(c *Config, v string) error { c.OIDCDomains = commas(v); return nil }},
	{"CAY_OIDC_TRUST_EMAIL", "oidcTrustEmail", "true takes addresses of a provider that never says whether they are verified [false]",
		func(c *Config, v string) (err error) { c.OIDCTrustEmail, err = strconv.ParseBool(v); return err }},
	{"CAY_TEAM", "", "team that commands of a person who is logged in are about, by id or name; the server does not read it [that of cay login]", nil},
	{"CAY_TOKEN_EXCHANGE", "tokenExchange", "rules by which tokens of a CI are exchanged for keys, in YAML or JSON: [{issuer: …, audience: …, claims: {…}, team: …, scopes: […], lifetime: 30m}] [none]",
		func(c *Config, v string) error {
			c.TokenExchange = nil
			dec := yaml.NewDecoder(strings.NewReader(v))
			dec.KnownFields(true)
			return dec.Decode(&c.TokenExchange)
		}},
}

// rules splits a list of rules.
func rules(v string) []string {
	out := strings.Split(v, ";")
	for i := range out {
		out[i] = strings.TrimSpace(out[i])
	}
	return slices.DeleteFunc(out, func(s string) bool { return s == "" })
}

// LoginRules are OIDCRules as they were read.
func (c Config) LoginRules() ([]cay.LoginRule, error) {
	var out []cay.LoginRule
	for _, text := range c.OIDCRules {
		r, err := cay.ParseLoginRule(text)
		if err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	return out, nil
}

// loginProblems lists what is wrong with logins and exchanges.
func (c Config) loginProblems() []error {
	var out []error
	https := strings.HasPrefix(c.OIDCIssuer, "https://") || strings.HasPrefix(c.OIDCIssuer, "http://")
	switch {
	case c.OIDCIssuer == "" && (c.OIDCClientID != "" || len(c.OIDCRules) > 0):
		out = append(out, cay.Errorf(cay.Invalid, "logins want the name of the provider").WithHint("set CAY_OIDC_ISSUER"))
	case c.OIDCIssuer != "" && !https:
		out = append(out, cay.Errorf(cay.Invalid, "the login provider %q is no URL", c.OIDCIssuer))
	case c.OIDCIssuer != "" && c.OIDCClientID == "":
		out = append(out, cay.Errorf(cay.Invalid, "logins want this server's id at the provider").WithHint("set CAY_OIDC_CLIENT_ID"))
	}
	if f := c.OIDCClientSecretFile; f != "" && !filepath.IsAbs(f) {
		out = append(out, cay.Errorf(cay.Invalid, "the file %q is not an absolute path", f))
	}
	_, err := c.LoginRules()
	out = append(out, err)
	for _, r := range c.TokenExchange {
		out = append(out, r.Check())
	}
	return out
}
