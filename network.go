package cay

import (
	"crypto/x509"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// AllTraffic is how clients write "everything" in DenyOut.
const AllTraffic = "0.0.0.0/0"

// AnyName is how clients write "any name" in AskOut.
const AnyName = "*"

// EgressProxy is a SOCKS5 server that takes a sandbox's connections on.
type EgressProxy struct {
	Address  string `json:"address"` // host:port
	Username string `json:"username,omitempty"`
	Password string `json:"password,omitempty"`
	// TLS is how the connection to it is secured; nil leaves it plain.
	TLS *ProxyTLS `json:"tls,omitempty"`
}

// ProxyTLS is how a SOCKS5 server is reached over TLS.
type ProxyTLS struct {
	ServerName string `json:"serverName,omitempty"` // empty means the host of the address
	CACert     string `json:"caCert,omitempty"`     // PEM to trust instead of whom the host trusts
}

// HeaderRule sets headers of requests to a domain. Values may hold
// placeholders such as ${e2b.secrets.name}.
type HeaderRule struct {
	Headers map[string]string `json:"headers,omitempty"`
	// Approve has a person asked before a request gets the secrets of Headers.
	Approve bool `json:"approve,omitempty"`
}

// SecretNames are the secrets that a rule names, sorted.
func (r HeaderRule) SecretNames() []string {
	return NetworkPolicy{Rules: map[string][]HeaderRule{"": {r}}}.SecretNames()
}

// PrivateNetwork is a network that sandboxes of one team share. Its members
// reach each other, under <Member>.cay.internal, and no other sandbox does.
type PrivateNetwork struct {
	Team   TeamID `json:"team"` // two teams' networks of one name are two
	Name   string `json:"name"`
	Member string `json:"member"` // its name there, which others may have too
}

// PrivateDomain is what the names of members of private networks end in.
const PrivateDomain = "cay.internal"

// Bandwidth bounds how many bytes a second a sandbox sends and receives; 0 is
// no bound.
type Bandwidth struct {
	Up   int64 `json:"up,omitempty"`
	Down int64 `json:"down,omitempty"`
}

// The bounds of a Bandwidth: less is of no use, more than no machine has.
const (
	minBandwidth = 8 << 10
	maxBandwidth = 100 << 30
)

// Check says what is wrong with a bound.
func (b Bandwidth) Check() error {
	for field, n := range map[string]int64{"up": b.Up, "down": b.Down} {
		if n != 0 && (n < minBandwidth || n > maxBandwidth) {
			return Errorf(Invalid, "%s: must be 0 for no bound, or %d to %d bytes a second", field, minBandwidth, maxBandwidth)
		}
	}
	return nil
}

var memberName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// Check says what is wrong with the names of a network and its member.
func (p *PrivateNetwork) Check() error {
	switch {
	case p == nil:
		return nil
	case !memberName.MatchString(p.Name):
		return Errorf(Invalid, "network: %.80q is not 1 to 63 lower-case letters, digits and hyphens", p.Name)
	case !memberName.MatchString(p.Member):
		return Errorf(Invalid, "name: %.80q is not 1 to 63 lower-case letters, digits and hyphens", p.Member)
	case p.Member == modelMember:
		return Errorf(Invalid, "name: %s is where sandboxes find models", ModelHost).WithHint("choose another name")
	}
	return nil
}

// The bounds of a policy.
const (
	maxDestinations = 1000 // of AllowOut and of DenyOut
	maxRules        = 10
	maxHeaders      = 20
	maxHeaderName   = 64
	maxHeaderValue  = 2048
	maxDomain       = 128
	maxCredential   = 255
	maxDNSServers   = 10
	maxCACert       = 64 << 10
)

// Check says what is wrong with a policy, naming the field as clients know it.
func (p NetworkPolicy) Check() error {
	if len(p.AllowOut) > maxDestinations {
		return Errorf(Invalid, "network.allowOut: has more than %d entries", maxDestinations)
	}
	if len(p.DenyOut) > maxDestinations {
		return Errorf(Invalid, "network.denyOut: has more than %d entries", maxDestinations)
	}
	for _, d := range p.DenyOut {
		if _, ok := Destination(d); (!ok || d == "*") && d != ModelHost {
			return Errorf(Invalid, "network.denyOut: %.80q is no IP address or CIDR", d)
		}
	}
	closed := !p.AllowInternet || slices.Contains(p.DenyOut, AllTraffic)
	if len(p.AskOut) > maxDestinations {
		return Errorf(Invalid, "network.askOut: has more than %d entries", maxDestinations)
	}
	for _, d := range p.AskOut {
		switch {
		case d != AnyName && !IsDomain(d):
			return Errorf(Invalid, "network.askOut: %.80q is no domain and not %q", d, AnyName)
		case !closed:
			return Errorf(Invalid, "network.askOut: the domain %.80q needs denyOut to contain %q", d, AllTraffic).
				WithHint("without it everything is allowed anyway")
		}
	}
	for _, d := range p.AllowOut {
		_, address := Destination(d)
		switch {
		case address:
		case !IsDomain(d):
			return Errorf(Invalid, "network.allowOut: %.80q is no IP address, CIDR or domain", d)
		case !closed:
			return Errorf(Invalid, "network.allowOut: the domain %.80q needs denyOut to contain %q", d, AllTraffic).
				WithHint("without it everything is allowed anyway")
		}
	}
	if err := p.checkIdentities(); err != nil {
		return err
	}
	if err := p.checkRules(); err != nil {
		return err
	}
	if len(p.DNSServers) > maxDNSServers {
		return Errorf(Invalid, "network.dnsServers: has more than %d entries", maxDNSServers)
	}
	for _, s := range p.DNSServers {
		if a, err := netip.ParseAddr(s); err != nil || !a.Is4() {
			return Errorf(Invalid, "network.dnsServers: %.80q is no IPv4 address", s)
		}
	}
	return p.Proxy.check()
}

// NameServers are the name servers that a policy opens: the contract has them
// count only beside a domain, which would be of little use without names.
func (p NetworkPolicy) NameServers() []string {
	if slices.ContainsFunc(p.AllowOut, func(d string) bool { _, address := Destination(d); return !address }) {
		return p.DNSServers
	}
	return nil
}

func (p NetworkPolicy) checkRules() error {
	if len(p.Rules) > maxRules {
		return Errorf(Invalid, "network.rules: has more than %d domains", maxRules)
	}
	for _, domain := range slices.Sorted(maps.Keys(p.Rules)) {
		if !IsDomain(domain) || len(domain) > maxDomain {
			return Errorf(Invalid, "network.rules: %.140q is no domain of at most %d characters", domain, maxDomain)
		}
		if n := len(p.Rules[domain]); n > 1 {
			return Errorf(Invalid, "network.rules: %q has %d transforms; one is the most", domain, n)
		}
		for _, rule := range p.Rules[domain] {
			if err := rule.check(domain); err != nil {
				return err
			}
		}
	}
	return nil
}

// forbiddenHeaders say how a message is framed, which no rule may change.
var forbiddenHeaders = []string{"host", "connection", "content-length", "transfer-encoding", "upgrade", "te", "trailer", "keep-alive", "proxy-connection"}

var headerName = regexp.MustCompile("^[A-Za-z0-9!#$%&'*+.^_`|~-]+$")

func (r HeaderRule) check(domain string) error {
	if len(r.Headers) > maxHeaders {
		return Errorf(Invalid, "network.rules: %q sets more than %d headers", domain, maxHeaders)
	}
	if r.Approve && len(r.SecretNames()) == 0 {
		return Errorf(Invalid, "network.rules: %q: approve is for rules that name a secret", domain).WithHint("hosts that a person is asked about are named in askOut")
	}
	for _, name := range slices.Sorted(maps.Keys(r.Headers)) {
		value := r.Headers[name]
		switch {
		case len(name) > maxHeaderName || !headerName.MatchString(name):
			return Errorf(Invalid, "network.rules: %q: %.80q is no header name of at most %d characters", domain, name, maxHeaderName)
		case slices.Contains(forbiddenHeaders, strings.ToLower(name)):
			return Errorf(Invalid, "network.rules: %q: the header %q cannot be set", domain, name)
		case len(value) > maxHeaderValue:
			return Errorf(Invalid, "network.rules: %q: the value of %q has more than %d bytes", domain, name, maxHeaderValue)
		case strings.ContainsFunc(value, func(c rune) bool { return c < ' ' && c != '\t' || c == 0x7f }):
			return Errorf(Invalid, "network.rules: %q: the value of %q holds control characters", domain, name)
		}
		for _, ref := range Placeholders(value) {
			_, secret := SecretPlaceholder(ref)
			if _, token := IdentityPlaceholder(ref); !secret && !token {
				return Errorf(Invalid, "network.rules: %q: the placeholder %q of %q is not known", domain, ref, name).
					WithHint("${e2b.secrets.<name>} and ${e2b.identity.tokens.<name>} are")
			}
		}
	}
	return nil
}

func (p *EgressProxy) check() error {
	if p == nil {
		return nil
	}
	host, port, ok := cutPort(p.Address)
	if ok {
		_, err := netip.ParseAddr(host)
		n, portErr := strconv.ParseUint(port, 10, 16)
		ok = (err == nil || IsDomain(host) && !strings.HasPrefix(host, "*")) && portErr == nil && n > 0
	}
	switch {
	case !ok:
		return Errorf(Invalid, "network.egressProxy.address: %.80q is not host:port", p.Address)
	case len(p.Username) > maxCredential:
		return Errorf(Invalid, "network.egressProxy.username: has more than %d bytes", maxCredential)
	case len(p.Password) > maxCredential:
		return Errorf(Invalid, "network.egressProxy.password: has more than %d bytes", maxCredential)
	case p.Password != "" && p.Username == "":
		return Errorf(Invalid, "network.egressProxy.password: needs a username")
	}
	return p.TLS.check()
}

func (t *ProxyTLS) check() error {
	switch {
	case t == nil:
	case t.ServerName != "" && (!IsDomain(t.ServerName) || strings.HasPrefix(t.ServerName, "*")):
		return Errorf(Invalid, "network.egressProxy.tls.serverName: %.80q is no domain", t.ServerName)
	case len(t.CACert) > maxCACert:
		return Errorf(Invalid, "network.egressProxy.tls.caCert: has more than %d bytes", maxCACert)
	case t.CACert != "" && !x509.NewCertPool().AppendCertsFromPEM([]byte(t.CACert)):
		return Errorf(Invalid, "network.egressProxy.tls.caCert: holds no certificate in PEM")
	}
	return nil
}

func cutPort(s string) (host, port string, ok bool) {
	i := strings.LastIndexByte(s, ':')
	if i < 1 {
		return "", "", false
	}
	return strings.Trim(s[:i], "[]"), s[i+1:], true
}

// Destination is the range that an entry of AllowOut or DenyOut stands for: an
// address, a prefix, or "*". Domains stand for none.
func Destination(s string) (netip.Prefix, bool) {
	if s == "*" {
		s = AllTraffic
	}
	if s == "" || !strings.Contains(s, ":") && s[len(s)-1] > '9' { // spares a long list of domains an error each
		return netip.Prefix{}, false
	}
	if strings.Contains(s, "/") {
		p, err := netip.ParsePrefix(s)
		return p.Masked(), err == nil
	}
	addr, err := netip.ParseAddr(s)
	return netip.PrefixFrom(addr, addr.BitLen()), err == nil && addr.Zone() == ""
}

// IsDomain reports whether s is a domain name, or one behind "*.". A text that a
// program could take for an IPv4 address, such as 127.1 or 0x7f000001, is none.
func IsDomain(s string) bool {
	if len(s) > 253 {
		return false
	}
	last := ""
	for label := range strings.SplitSeq(strings.TrimPrefix(s, "*."), ".") {
		if !isLabel(label) {
			return false
		}
		last = label
	}
	if last[0] > '9' {
		return true
	}
	_, err := strconv.ParseUint(last, 0, 64)
	return err != nil
}

// isLabel reports whether s is one part of a name: letters, digits, and inside
// it hyphens. Underscores are in names of services.
func isLabel(s string) bool {
	for i := range len(s) {
		switch c := s[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '_':
		case c == '-' && i > 0 && i < len(s)-1:
		default:
			return false
		}
	}
	return len(s) > 0 && len(s) <= 63
}

var placeholder = regexp.MustCompile(`\$\{e2b\.([^}]*)\}`)

// Placeholders lists what a header's value wants filled in, without ${e2b. }.
func Placeholders(value string) []string {
	var out []string
	for _, m := range placeholder.FindAllStringSubmatch(value, -1) {
		out = append(out, m[1])
	}
	return out
}

// SecretPlaceholder is the name of the secret that a placeholder wants.
func SecretPlaceholder(ref string) (name string, ok bool) {
	name, ok = strings.CutPrefix(ref, "secrets.")
	return strings.ToLower(name), ok && secretName.MatchString(name)
}

// SecretNames are the secrets that a policy's rules name, sorted.
func (p NetworkPolicy) SecretNames() []string {
	var out []string
	for _, ref := range p.placeholders() {
		if name, ok := SecretPlaceholder(ref); ok {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// Expand fills the placeholders of a header's value in.
func Expand(value string, fill func(ref string) (string, error)) (string, error) {
	var failed error
	out := placeholder.ReplaceAllStringFunc(value, func(m string) string {
		v, err := fill(m[len("${e2b.") : len(m)-1])
		if err != nil && failed == nil {
			failed = err
		}
		return v
	})
	return out, failed
}

// Connection is what a sandbox tried to reach, as its host saw it.
type Connection struct {
	At       time.Time     `json:"at"`
	Allowed  bool          `json:"allowed"`
	Rule     string        `json:"rule"`           // what decided, e.g. "allowOut example.com"
	Protocol string        `json:"protocol"`       // tcp, tls, http or dns
	Name     string        `json:"name,omitempty"` // that it asked for
	Address  string        `json:"address"`        // address:port that it dialled
	Sent     int64         `json:"sent"`           // bytes, by the sandbox
	Received int64         `json:"received"`       // bytes
	Took     time.Duration `json:"took"`
	Open     bool          `json:"open,omitempty"`
}
