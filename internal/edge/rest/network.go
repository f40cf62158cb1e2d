package rest

import (
	"context"
	"slices"
	"strings"

	"github.com/cay-run/cay/api/rest/cayv1"
	"github.com/cay-run/cay/api/rest/e2b"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/guest"
)

// networkPolicy is the network that a new sandbox is to have.
func networkPolicy(body *e2b.NewSandbox, secure bool) (cay.NetworkPolicy, error) {
	n := value(body.Network, e2b.NewNetwork{})
	p, err := egressPolicy(e2b.NetworkUpdate{
		AllowOut: n.AllowOut, DenyOut: n.DenyOut, AskOut: n.AskOut, DNSServers: n.DNSServers,
		EgressProxy: n.EgressProxy, Rules: n.Rules, AllowInternetAccess: body.AllowInternetAccess,
	})
	if err != nil {
		return p, err
	}
	if p.Identities, err = identities(body); err != nil {
		return p, err
	}
	p.AllowPublic = value(n.AllowPublicTraffic, true)
	p.MaskHost = value(n.MaskRequestHost, "")
	if p.HTTPSPorts, err = httpsPorts(value(n.HTTPSPorts, nil)); err != nil {
		return p, err
	}
	switch {
	case !p.AllowPublic && !secure:
		return p, cay.Errorf(cay.Invalid, "You cannot create a sandbox without public access unless you enable secure envd access via 'secure' flag.")
	case p.MaskHost != "" && !validMask(p.MaskHost):
		return p, cay.Errorf(cay.Invalid, "network.maskRequestHost: %.80q is no host or host:port", p.MaskHost)
	}
	return p, nil
}

// identities are the identity tokens that a new sandbox is to have.
func identities(body *e2b.NewSandbox) (map[string]cay.IdentityToken, error) {
	if body.Iam == nil || len(value(body.Iam.Tokens, nil)) == 0 {
		return nil, nil
	}
	out := map[string]cay.IdentityToken{}
	for name, t := range *body.Iam.Tokens {
		if kind := value(t.TokenType, ""); kind != "JWT-SVID" {
			return nil, cay.Errorf(cay.Invalid, "iam.tokens: the tokenType of %.140q is %.40q; JWT-SVID is the only one", name, kind)
		}
		out[name] = cay.IdentityToken{Audience: value(t.Audience, "")}
	}
	return out, cay.NetworkPolicy{Identities: out}.Check()
}

// maxHTTPSPorts bounds what is compared with every request.
const maxHTTPSPorts = 64

// httpsPorts checks the ports whose servers speak TLS.
func httpsPorts(ports []int) ([]int, error) {
	for _, port := range ports {
		switch {
		case port < 1 || port > 65535:
			return nil, cay.Errorf(cay.Invalid, "network.httpsPorts: %d is no port", port)
		case port == guest.AgentPort:
			return nil, cay.Errorf(cay.Invalid, "network.httpsPorts: %d is the sandbox's own agent, which speaks plain HTTP", port)
		}
	}
	ports = slices.Compact(slices.Sorted(slices.Values(ports)))
	if len(ports) > maxHTTPSPorts {
		return nil, cay.Errorf(cay.Invalid, "network.httpsPorts: has more than %d entries", maxHTTPSPorts)
	}
	return ports, nil
}

// egressPolicy is the part of a network that can be changed later: the addresses
// and names that the sandbox may reach.
func egressPolicy(n e2b.NetworkUpdate) (cay.NetworkPolicy, error) {
	p := cay.NetworkPolicy{
		AllowInternet: value(n.AllowInternetAccess, true),
		DenyOut:       value(n.DenyOut, nil),
	}
	p.AllowOut = value(n.AllowOut, nil) // this request's own
	for i, d := range p.AllowOut {
		p.AllowOut[i] = strings.ToLower(d)
	}
	p.AskOut = value(n.AskOut, nil)
	for i, d := range p.AskOut {
		p.AskOut[i] = strings.ToLower(d)
	}
	p.DNSServers = value(n.DNSServers, nil)
	if e := n.EgressProxy; e != nil {
		p.Proxy = &cay.EgressProxy{
			Address: value(e.Address, ""), Username: value(e.Username, ""), Password: value(e.Password, ""),
		}
		if t := e.TLS; t != nil {
			name, ca := value(t.ServerName, ""), value(t.CaCert, "")
			if !value(t.Enabled, false) && (name != "" || ca != "") {
				return p, cay.Errorf(cay.Invalid, "network.egressProxy.tls: has fields, but enabled is false")
			}
			if value(t.Enabled, false) {
				p.Proxy.TLS = &cay.ProxyTLS{ServerName: name, CACert: ca}
			}
		}
	}
	for domain, rules := range value(n.Rules, nil) {
		if p.Rules == nil {
			p.Rules = map[string][]cay.HeaderRule{}
		}
		to := strings.ToLower(domain)
		for _, r := range rules {
			rule := cay.HeaderRule{Approve: value(r.Approve, false)}
			if r.Transform != nil {
				rule.Headers = value(r.Transform.Headers, nil)
			}
			p.Rules[to] = append(p.Rules[to], rule)
		}
	}
	return p, p.Check()
}

// UpdateNetwork replaces the egress policy of a running sandbox.
func (s *server) UpdateNetwork(ctx context.Context, r e2b.UpdateNetworkRequestObject) (e2b.UpdateNetworkResponseObject, error) {
	p, err := egressPolicy(*r.Body)
	if err != nil {
		return nil, err
	}
	if err := s.sandboxes.SetNetwork(ctx, callerOf(ctx), sandboxID(r.SandboxID), p); err != nil {
		return nil, err
	}
	return e2b.UpdateNetwork204Response{}, nil
}

// maxAllowed bounds the places that one request allows.
const maxAllowed = 64

// AllowEgress has a running sandbox reach more.
func (o own) AllowEgress(ctx context.Context, r cayv1.AllowEgressRequestObject) (cayv1.AllowEgressResponseObject, error) {
	if n := len(r.Body.Allow); n < 1 || n > maxAllowed {
		return nil, cay.Errorf(cay.Invalid, "allow: must have 1 to %d entries", maxAllowed)
	}
	if err := o.sandboxes.AllowOut(ctx, callerOf(ctx), sandboxID(r.SandboxID), r.Body.Allow); err != nil {
		return nil, err
	}
	return cayv1.AllowEgress204Response{}, nil
}

// wireNetwork shows a network without its secrets.
func wireNetwork(n cay.NetworkPolicy) *e2b.Network {
	out := &e2b.Network{
		AllowPublicTraffic: &n.AllowPublic, AllowOut: wireList(n.AllowOut), DenyOut: wireList(n.DenyOut),
		AskOut:          wireList(n.AskOut),
		DNSServers:      wireList(n.DNSServers),
		MaskRequestHost: pointer(n.MaskHost),
	}
	if len(n.HTTPSPorts) > 0 {
		out.HTTPSPorts = &n.HTTPSPorts
	}
	if n.Proxy != nil {
		out.EgressProxy = &struct {
			Address  string              `json:"address"`
			TLS      *e2b.EgressProxyTLS `json:"tls,omitempty"`
			Username *string             `json:"username,omitempty"`
		}{n.Proxy.Address, nil, pointer(n.Proxy.Username)}
		if t := n.Proxy.TLS; t != nil { // whom it trusts is not told
			out.EgressProxy.TLS = &e2b.EgressProxyTLS{Enabled: pointer(true), ServerName: pointer(t.ServerName)}
		}
	}
	if len(n.Rules) > 0 {
		rules := e2b.NetworkRules{}
		for domain, list := range n.Rules {
			rules[domain] = []e2b.NetworkRule{}
			for _, r := range list {
				w := e2b.NetworkRule{Approve: pointer(r.Approve)}
				if headers := wireMap(r.Headers); headers != nil {
					w.Transform = &struct {
						Headers *e2b.StringMap `json:"headers,omitempty"`
					}{headers}
				}
				rules[domain] = append(rules[domain], w)
			}
		}
		out.Rules = &rules
	}
	return out
}
