package cay

import (
	"regexp"
	"slices"
	"strings"
	"time"
)

// LoginRule gives people who log in a role in a team: those of a group, or
// those with an e-mail address.
type LoginRule struct {
	Group string // of the provider; a pattern, in which * is any text
	Email string // the same for an address; one of both is set
	Team  string // by name
	Role  Role
}

var loginRule = regexp.MustCompile(`^(group|email):([^\s>][^>;]*?)\s*->\s*team\s+(\S+)\s+as\s+(\S+)$`)

// ParseLoginRule reads a rule such as "group:platform -> team default as
// admin".
func ParseLoginRule(text string) (LoginRule, error) {
	m := loginRule.FindStringSubmatch(strings.TrimSpace(text))
	if m == nil {
		return LoginRule{}, Errorf(Invalid, "%.200q is no rule for logins", text).
			WithHint("write group:NAME -> team TEAM as ROLE, or email:*@example.com -> team TEAM as ROLE")
	}
	r := LoginRule{Team: m[3], Role: Role(m[4])}
	if m[1] == "group" {
		r.Group = m[2]
	} else {
		r.Email = strings.ToLower(m[2])
	}
	if r.Role.Scopes() == 0 {
		return LoginRule{}, Errorf(Invalid, "%q: there is no role %q", text, m[4]).WithHint("roles are viewer, developer, admin and owner")
	}
	return r, nil
}

// For reports whether a rule is about a person with an address and groups.
func (r LoginRule) For(email string, groups []string) bool {
	if r.Group != "" {
		return slices.ContainsFunc(groups, func(g string) bool { return Matches(r.Group, g) })
	}
	return Matches(r.Email, strings.ToLower(email))
}

// Matches reports whether a text is what a pattern says, in which * is any text.
func Matches(pattern, text string) bool {
	parts := strings.Split(pattern, "*")
	if len(parts) == 1 {
		return text == pattern
	}
	last := len(parts) - 1
	if !strings.HasPrefix(text, parts[0]) {
		return false
	}
	text = text[len(parts[0]):]
	for _, part := range parts[1:last] {
		i := strings.Index(text, part)
		if i < 0 {
			return false
		}
		text = text[i+len(part):]
	}
	return strings.HasSuffix(text, parts[last])
}

// ExchangeRule has a token of another issuer, such as a CI's, be exchanged for
// an API key that lives shortly.
type ExchangeRule struct {
	Issuer   string            `yaml:"issuer"`
	Audience string            `yaml:"audience"`
	Claims   map[string]string `yaml:"claims"` // patterns, all of which must match
	Team     string            `yaml:"team"`   // by name
	Scopes   []string          `yaml:"scopes"` // names of scopes and roles
	Lifetime time.Duration     `yaml:"lifetime"`
}

// MaxExchanged is the longest that an exchanged key lives.
const MaxExchanged = time.Hour

// Check says what is wrong with a rule.
func (r ExchangeRule) Check() error {
	scopes, err := ScopesOf(r.Scopes)
	switch {
	case !strings.HasPrefix(r.Issuer, "https://") && !strings.HasPrefix(r.Issuer, "http://"):
		return Errorf(Invalid, "token exchange: the issuer %.100q is no URL", r.Issuer)
	case r.Audience == "":
		return Errorf(Invalid, "token exchange: a rule of %s has no audience", r.Issuer).WithHint("name what the CI asks its token for")
	case len(r.Claims) == 0:
		return Errorf(Invalid, "token exchange: a rule of %s has no claims, so it would trust everyone there", r.Issuer).
			WithHint("name at least one, such as repository: my-org/my-app")
	case r.Team == "":
		return Errorf(Invalid, "token exchange: a rule of %s has no team", r.Issuer)
	case err != nil:
		return err
	case scopes == 0 || scopes&Admin != 0:
		return Errorf(Invalid, "token exchange: a rule of %s needs scopes of one team", r.Issuer)
	case r.Lifetime < time.Minute || r.Lifetime > MaxExchanged:
		return Errorf(Invalid, "token exchange: the lifetime %s is not 1m to 1h", r.Lifetime)
	}
	for name, pattern := range r.Claims {
		if strings.Trim(pattern, "*") == "" {
			return Errorf(Invalid, "token exchange: the claim %q of a rule of %s matches everything", name, r.Issuer)
		}
	}
	return nil
}
