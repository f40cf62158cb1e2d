package cay

import (
	"maps"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// IdentityToken is a token by which a sandbox proves to a server outside which
// one it is. It never enters the sandbox: header rules name it, and egress
// fills it in.
type IdentityToken struct {
	Audience string `json:"audience"` // that the server outside asks for, as the client wrote it
}

// The bounds of identity tokens.
const (
	maxIdentities   = 5
	maxIdentityName = 128
	maxAudience     = 1024
)

// checkIdentities says what is wrong with a policy's identity tokens, naming
// the field as clients know it.
func (p NetworkPolicy) checkIdentities() error {
	if len(p.Identities) > maxIdentities {
		return Errorf(Invalid, "iam.tokens: has more than %d entries", maxIdentities)
	}
	for _, name := range slices.Sorted(maps.Keys(p.Identities)) {
		audience := p.Identities[name].Audience
		switch {
		case !isIdentityName(name):
			return Errorf(Invalid, "iam.tokens: the name %.140q is not 1 to %d bytes without braces and control characters", name, maxIdentityName)
		case audience == "" || len(audience) > maxAudience || !utf8.ValidString(audience):
			return Errorf(Invalid, "iam.tokens: the audience of %q is not 1 to %d bytes of text", name, maxAudience)
		}
	}
	return nil
}

func isIdentityName(name string) bool {
	bad := func(c rune) bool { return c == '{' || c == '}' || unicode.IsControl(c) }
	return name != "" && len(name) <= maxIdentityName && utf8.ValidString(name) && !strings.ContainsFunc(name, bad)
}

// IdentityPlaceholder is the name of the identity token that a placeholder
// wants.
func IdentityPlaceholder(ref string) (name string, ok bool) {
	name, ok = strings.CutPrefix(ref, "identity.tokens.")
	return name, ok && isIdentityName(name)
}

// HasIdentities reports, as an error, an identity token that the rules name and
// the policy does not have.
func (p NetworkPolicy) HasIdentities() error {
	for _, ref := range p.placeholders() {
		name, ok := IdentityPlaceholder(ref)
		if !ok {
			continue
		}
		if _, ok := p.Identities[name]; !ok {
			return Errorf(Invalid, "network.rules: the sandbox has no identity token %q", name).
				WithHint("tokens are named when the sandbox is created: iam.tokens")
		}
	}
	return nil
}

// placeholders lists what the values of all rules want filled in, sorted.
func (p NetworkPolicy) placeholders() []string {
	var out []string
	for _, rules := range p.Rules {
		for _, rule := range rules {
			for _, value := range rule.Headers {
				out = append(out, Placeholders(value)...)
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}
