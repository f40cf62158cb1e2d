package cay_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cay-run/cay"
)

func TestNetworkPolicyCheck(t *testing.T) {
	headers := func(name, value string) map[string][]cay.HeaderRule {
		return map[string][]cay.HeaderRule{"api.example.com": {{Headers: map[string]string{name: value}}}}
	}
	identities := func(n int, audience string) map[string]cay.IdentityToken {
		out := map[string]cay.IdentityToken{}
		for i := range n {
			out[fmt.Sprintf("t %d", i)] = cay.IdentityToken{Audience: audience}
		}
		return out
	}
	many := map[string][]cay.HeaderRule{}
	for i := range 11 {
		many[fmt.Sprintf("h%d.example.com", i)] = nil
	}
	for name, tc := range map[string]struct {
		p     cay.NetworkPolicy
		wants string // in the error; empty for none
	}{
		"nothing":               {cay.NetworkPolicy{}, ""},
		"the usual":             {cay.DefaultNetwork(), ""},
		"addresses":             {cay.NetworkPolicy{AllowInternet: true, AllowOut: []string{"1.1.1.1", "8.8.8.0/24", "2606::/16"}, DenyOut: []string{"0.0.0.0/0", "::1"}}, ""},
		"a domain":              {cay.NetworkPolicy{AllowInternet: true, AllowOut: []string{"example.com", "*.example.org", "*"}, DenyOut: []string{cay.AllTraffic}}, ""},
		"a domain when closed":  {cay.NetworkPolicy{AllowOut: []string{"example.com"}}, ""},
		"a domain when open":    {cay.NetworkPolicy{AllowInternet: true, AllowOut: []string{"example.com"}}, "network.allowOut"},
		"asked domains":         {cay.NetworkPolicy{AllowInternet: true, AskOut: []string{"example.com", "*.example.org", "*"}, DenyOut: []string{cay.AllTraffic}}, ""},
		"asked when closed":     {cay.NetworkPolicy{AskOut: []string{"*"}}, ""},
		"asked when open":       {cay.NetworkPolicy{AllowInternet: true, AskOut: []string{"example.com"}}, "network.askOut"},
		"an asked address":      {cay.NetworkPolicy{AskOut: []string{"1.1.1.1"}}, "network.askOut"},
		"too much asked":        {cay.NetworkPolicy{AskOut: make([]string, 1001)}, "network.askOut"},
		"an approved secret":    {cay.NetworkPolicy{Rules: map[string][]cay.HeaderRule{"a.example": {{Headers: map[string]string{"a": "${e2b.secrets.x}"}, Approve: true}}}}, ""},
		"an approved nothing":   {cay.NetworkPolicy{Rules: map[string][]cay.HeaderRule{"a.example": {{Headers: map[string]string{"a": "b"}, Approve: true}}}}, "network.rules"},
		"a denied domain":       {cay.NetworkPolicy{DenyOut: []string{"example.com"}}, "network.denyOut"},
		"a zone":                {cay.NetworkPolicy{AllowOut: []string{"fe80::1%eth0"}}, "network.allowOut"},
		"an address as a name":  {cay.NetworkPolicy{AllowOut: []string{"127.1"}}, "network.allowOut"},
		"a hexadecimal address": {cay.NetworkPolicy{AllowOut: []string{"0x7f000001"}}, "network.allowOut"},
		"a URL":                 {cay.NetworkPolicy{AllowOut: []string{"https://example.com"}}, "network.allowOut"},
		"a wildcard inside":     {cay.NetworkPolicy{AllowOut: []string{"a.*.example.com"}}, "network.allowOut"},
		"too much":              {cay.NetworkPolicy{AllowOut: make([]string, 1001)}, "network.allowOut"},
		"a header":              {cay.NetworkPolicy{Rules: headers("Authorization", "Bearer ${e2b.secrets.my-key}")}, ""},
		"a framing header":      {cay.NetworkPolicy{Rules: headers("Content-Length", "1")}, "network.rules"},
		"a header with a space": {cay.NetworkPolicy{Rules: headers("a b", "1")}, "network.rules"},
		"a second line":         {cay.NetworkPolicy{Rules: headers("a", "1\r\nb: 2")}, "network.rules"},
		"a long value":          {cay.NetworkPolicy{Rules: headers("a", strings.Repeat("x", 2049))}, "network.rules"},
		"a strange placeholder": {cay.NetworkPolicy{Rules: headers("a", "${e2b.secret.x}")}, "network.rules"},
		"identity tokens":       {cay.NetworkPolicy{Identities: identities(5, "sts.example.com"), Rules: headers("a", "${e2b.identity.tokens.t 0}")}, ""},
		"six identity tokens":   {cay.NetworkPolicy{Identities: identities(6, "a")}, "iam.tokens"},
		"no audience":           {cay.NetworkPolicy{Identities: identities(1, "")}, "iam.tokens"},
		"a long audience":       {cay.NetworkPolicy{Identities: identities(1, strings.Repeat("a", 1025))}, "iam.tokens"},
		"a token without name":  {cay.NetworkPolicy{Identities: map[string]cay.IdentityToken{"": {Audience: "a"}}}, "iam.tokens"},
		"a token with a brace":  {cay.NetworkPolicy{Identities: map[string]cay.IdentityToken{"a}b": {Audience: "a"}}}, "iam.tokens"},
		"two transforms":        {cay.NetworkPolicy{Rules: map[string][]cay.HeaderRule{"a.example": make([]cay.HeaderRule, 2)}}, "network.rules"},
		"eleven domains":        {cay.NetworkPolicy{Rules: many}, "network.rules"},
		"a bare star":           {cay.NetworkPolicy{Rules: map[string][]cay.HeaderRule{"*": nil}}, "network.rules"},
		"a proxy":               {cay.NetworkPolicy{Proxy: &cay.EgressProxy{Address: "proxy.example.com:1080", Username: "u", Password: "p"}}, ""},
		"a proxy without port":  {cay.NetworkPolicy{Proxy: &cay.EgressProxy{Address: "proxy.example.com"}}, "network.egressProxy.address"},
		"a lonely password":     {cay.NetworkPolicy{Proxy: &cay.EgressProxy{Address: "1.2.3.4:1080", Password: "p"}}, "network.egressProxy.password"},
		"a long user":           {cay.NetworkPolicy{Proxy: &cay.EgressProxy{Address: "1.2.3.4:1080", Username: strings.Repeat("u", 256)}}, "network.egressProxy.username"},
	} {
		err := tc.p.Check()
		if tc.wants == "" && err != nil || tc.wants != "" && (cay.KindOf(err) != cay.Invalid || !strings.HasPrefix(err.Error(), tc.wants)) {
			t.Errorf("%s: %v, want %q", name, err, tc.wants)
		}
	}
}

func TestExpand(t *testing.T) {
	got, err := cay.Expand("Bearer ${e2b.secrets.A}-${e2b.secrets.b} ${x}", func(ref string) (string, error) {
		name, ok := cay.SecretPlaceholder(ref)
		return "<" + name + ">", map[bool]error{false: fmt.Errorf("no secret %s", ref)}[ok]
	})
	if got != "Bearer <a>-<b> ${x}" || err != nil {
		t.Errorf("Expand = %q, %v", got, err)
	}
}
