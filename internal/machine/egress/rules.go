package egress

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/cay-run/cay"
)

// rules are a policy, made ready for questions.
type rules struct {
	policy  cay.NetworkPolicy
	allowed []addressRule
	denied  []addressRule
	names   names[int]            // of AllowOut: which entry
	asks    asking                // AskOut
	headers names[cay.HeaderRule] // of Rules
	proxy   *cay.EgressProxy

	noModels bool // DenyOut has cay.ModelHost
}

type addressRule struct {
	prefix netip.Prefix
	text   string
}

// verdict is a decision and what made it.
type verdict struct {
	allow bool
	rule  string
	named bool // the name decided, not the address
	ask   bool // a person decides; allow is false
}

func compile(p cay.NetworkPolicy) *rules {
	r := &rules{policy: p, proxy: p.Proxy}
	for i, d := range p.AllowOut {
		if prefix, ok := cay.Destination(d); ok {
			r.allowed = append(r.allowed, addressRule{prefix, "allowOut " + d})
		} else {
			r.names.add(d, i, len(p.AllowOut))
		}
	}
	for i, d := range p.AskOut {
		if d == cay.AnyName {
			r.asks.all = true
		} else {
			r.asks.names.add(d, i, len(p.AskOut))
		}
	}
	for _, d := range p.NameServers() {
		if prefix, ok := cay.Destination(d); ok {
			r.allowed = append(r.allowed, addressRule{prefix, "dnsServers " + d})
		}
	}
	for _, d := range p.DenyOut {
		if prefix, ok := cay.Destination(d); ok {
			r.denied = append(r.denied, addressRule{prefix, "denyOut " + d})
		} else if d == cay.ModelHost {
			r.noModels = true
		}
	}
	for domain, list := range p.Rules {
		for _, rule := range list {
			r.headers.add(domain, rule, len(p.Rules))
		}
	}
	return r
}

func find(list []addressRule, a netip.Addr) (string, bool) {
	for _, r := range list {
		if r.prefix.Contains(a) {
			return r.text, true
		}
	}
	return "", false
}

// decide says whether a guest may reach an address under a name, which is
// empty when it told none. The caller checks that the address is the name's.
func (r *rules) decide(a netip.Addr, name string) verdict {
	if text, ok := find(r.allowed, a); ok {
		return verdict{allow: true, rule: text}
	}
	if i, ok := r.names.find(name); ok {
		return verdict{allow: true, rule: "allowOut " + r.policy.AllowOut[i], named: true}
	}
	if entry, ok := r.asks.find(name, r.policy.AskOut); ok {
		return verdict{rule: "askOut " + entry, named: true, ask: true}
	}
	if text, ok := find(r.denied, a); ok {
		return verdict{rule: text}
	}
	if r.policy.AllowInternet {
		return verdict{allow: true, rule: "internet access"}
	}
	return verdict{rule: "allow_internet_access false"}
}

// asking are the names that a person is asked about.
type asking struct {
	names names[int] // which entry of AskOut
	all   bool
}

func (a asking) empty() bool { return !a.all && a.names.empty() }

// find returns the entry of a list that a clean name is asked about by. Names that
// have no place in the internet are not any name.
func (a asking) find(name string, list []string) (entry string, ok bool) {
	if i, ok := a.names.find(name); ok {
		return list[i], true
	}
	return cay.AnyName, a.all && name != "" && !isInner(name)
}

// everything reports whether a guest may reach the internet but for what denyOut
// names: then questions about names give nothing away that it could not send.
func (r *rules) everything() bool {
	return wide(r.allowed) || r.policy.AllowInternet && !wide(r.denied)
}

// wide reports whether a list names half of the internet or more at once.
func wide(list []addressRule) bool {
	return slices.ContainsFunc(list, func(r addressRule) bool { return r.prefix.Addr().Is4() && r.prefix.Bits() <= 1 })
}

// names finds values by domain: the exact one, else that of the longest
// wildcard. The zero value is empty.
type names[T any] struct {
	exact, below map[string]T
}

// add adds one of about so many values.
func (n *names[T]) add(domain string, v T, of int) {
	domain = strings.ToLower(domain)
	parent, wild := strings.CutPrefix(domain, "*.")
	to := &n.exact
	if wild {
		to = &n.below
	}
	if *to == nil {
		*to = make(map[string]T, of)
	}
	(*to)[parent] = v
}

func (n *names[T]) empty() bool { return len(n.exact)+len(n.below) == 0 }

// find takes a name in lower case and without a dot at its end.
func (n *names[T]) find(name string) (v T, ok bool) {
	if name == "" || n.empty() {
		return v, false
	}
	if v, ok = n.exact[name]; ok {
		return v, true
	}
	for rest := name; ; {
		_, parent, more := strings.Cut(rest, ".")
		if !more {
			return v, false
		}
		if v, ok = n.below[parent]; ok {
			return v, true
		}
		rest = parent
	}
}

// cleanName is how a name that a guest told is compared; empty for what is no
// name of a host.
func cleanName(s string) string {
	s = strings.ToLower(strings.TrimSuffix(s, "."))
	if strings.HasPrefix(s, "*") || !cay.IsDomain(s) {
		return ""
	}
	return s
}
