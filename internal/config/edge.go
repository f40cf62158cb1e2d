package config

import (
	"net"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/cay-run/cay"
)

// Ways to speak TLS on the one port.
const (
	TLSOff   = "off"
	TLSFiles = "files" // a certificate that the operator brings
	TLSLocal = "local" // an authority of this installation, see `cay cert`
	TLSACME  = "acme"  // an authority such as Let's Encrypt
)

// Edge is how clients reach the port, but for its address.
type Edge struct {
	// TLS is one of the ways above. Empty is files where TLSCert is set, local
	// where the port is this machine's alone and there is no Domain, else off.
	TLS     string `yaml:"tls"`
	TLSCert string `yaml:"tlsCert"`
	TLSKey  string `yaml:"tlsKey"`
	// TLSNames are more names and addresses that a local certificate is for.
	TLSNames []string `yaml:"tlsNames"`
	// ACME's: the operator's mail address; the authority's directory and the
	// certificates that signed it; the setter of DNS records and its key; the
	// name server that is asked whether they are there.
	ACMEEmail     string `yaml:"acmeEmail"`
	ACMEDirectory string `yaml:"acmeDirectory"`
	ACMERoots     string `yaml:"acmeRoots"`
	ACMEDNS       string `yaml:"acmeDNS"`
	ACMETSIG      string `yaml:"acmeTSIG"`
	ACMEResolver  string `yaml:"acmeResolver"`
	// Paths says whether sandboxes are reached by /s/<id>/<port>/: on, off, or,
	// when empty, where there is no Domain.
	Paths string `yaml:"paths"`
	// PublicURL is the address of the API for those who are told one.
	PublicURL string `yaml:"url"`
	// Login is how people log in.
	Login `yaml:",inline"`
}

var edgeVariables = slices.Concat([]Variable{
	{"CAY_TLS", "tls", "TLS on the one port: off, files, local (see cay cert) or acme [files where CAY_TLS_CERT is set, local on localhost without a domain, else off]",
		func(c *Config, v string) error { c.TLS = v; return nil }},
	{"CAY_TLS_CERT", "tlsCert", "certificate, PEM, its issuers after it; may be renewed in place",
		func(c *Config, v string) error { c.TLSCert = v; return nil }},
	{"CAY_TLS_KEY", "tlsKey", "its key, PEM",
		func(c *Config, v string) error { c.TLSKey = v; return nil }},
	{"CAY_TLS_NAMES", "tlsNames", "more names and addresses of this server, for a local certificate [its own addresses]",
		func(c *Config, v string) error { c.TLSNames = commas(v); return nil }},
	{"CAY_ACME_DNS", "acmeDNS", "who sets DNS records: exec:/path/to/program or rfc2136:server:port",
		func(c *Config, v string) error { c.ACMEDNS = v; return nil }},
	{"CAY_ACME_TSIG", "acmeTSIG", "file of the key for rfc2136, as tsig-keygen writes it",
		func(c *Config, v string) error { c.ACMETSIG = v; return nil }},
	{"CAY_ACME_EMAIL", "acmeEmail", "mail address that the authority may write to [none]",
		func(c *Config, v string) error { c.ACMEEmail = v; return nil }},
	{"CAY_ACME_DIRECTORY", "acmeDirectory", "the authority's directory [Let's Encrypt]",
		func(c *Config, v string) error { c.ACMEDirectory = v; return nil }},
	{"CAY_ACME_ROOTS", "acmeRoots", "PEM file of what the directory's certificate is signed with [the system's]",
		func(c *Config, v string) error { c.ACMERoots = v; return nil }},
	{"CAY_ACME_RESOLVER", "acmeResolver", "host:port asked whether a record is there [the zone's own servers]",
		func(c *Config, v string) error { c.ACMEResolver = v; return nil }},
	{"CAY_URL", "url", "address of the API for people's browsers and for clouds, e.g. https://api.example.com [https://api.<domain>, else that of the port]",
		func(c *Config, v string) error { c.PublicURL = v; return nil }},
	{"CAY_PATHS", "paths", "sandboxes at /s/<id>/<port>/: on or off [on without a domain]",
		func(c *Config, v string) error { c.Paths = v; return nil }},
}, loginVariables)

// TLSMode is the way in which the port speaks TLS.
func (c Config) TLSMode() string {
	switch {
	case c.TLS != "":
		return c.TLS
	case c.TLSCert != "":
		return TLSFiles
	case c.Domain == "" && c.Loopback():
		return TLSLocal
	}
	return TLSOff
}

// LocalName is the domain of a server that was given none. Names below
// localhost are this machine by themselves: for browsers and curl always, for
// other programs where the system resolves them (libnss-myhostname). It is not
// localhost itself, because OpenSSL refuses a wildcard of one label.
const LocalName = "cay.localhost"

// Loopback reports whether the one port is reached from this machine alone.
func (c Config) Loopback() bool {
	host, _, err := net.SplitHostPort(c.Listen)
	return err == nil && (host == "localhost" || net.ParseIP(host).IsLoopback())
}

// ClientDomain is the domain that clients use, with a port where it is not
// 443. Without a Domain it is of use on this machine alone.
func (c Config) ClientDomain() string {
	if c.Domain != "" {
		return c.Domain
	}
	_, port, _ := net.SplitHostPort(c.Listen)
	if port == "443" {
		return LocalName
	}
	return net.JoinHostPort(LocalName, port)
}

// ClientPorts are the ports that clients use with the domain: the domain's, and
// the one that the server listens on.
func (c Config) ClientPorts() []uint16 {
	var out []uint16
	for _, address := range []string{c.ClientDomain(), c.Listen} {
		_, port, err := net.SplitHostPort(address)
		if err != nil {
			port = "443"
		}
		if n, err := strconv.ParseUint(port, 10, 16); err == nil && n != 0 && !slices.Contains(out, uint16(n)) {
			out = append(out, uint16(n))
		}
	}
	return out
}

// LocalhostName reports whether the domain is below localhost, which no name
// server knows.
func (c Config) LocalhostName() bool {
	host, _, err := net.SplitHostPort(c.ClientDomain())
	if err != nil {
		host = c.ClientDomain()
	}
	return host == "localhost" || strings.HasSuffix(host, ".localhost")
}

// URL is the address of the API, without a slash at its end: of the logins of
// people, and of the issuer of sandboxes' identity tokens.
func (c Config) URL() string {
	if c.PublicURL != "" {
		return strings.TrimSuffix(c.PublicURL, "/")
	}
	if c.Domain != "" || c.TLSMode() == TLSLocal && c.Loopback() {
		return "https://api." + c.ClientDomain()
	}
	scheme := "https://"
	if c.TLSMode() == TLSOff {
		scheme = "http://"
	}
	host, port, _ := net.SplitHostPort(c.Listen)
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "localhost"
	}
	return scheme + net.JoinHostPort(host, port)
}

// ConsoleURL is the address of the console for people who are told one, without a
// slash at its end: below the domain, else where it alone listens, else on this
// machine.
func (c Config) ConsoleURL() string {
	if c.Domain != "" {
		return "https://console." + c.Domain
	}
	if host, port, err := net.SplitHostPort(c.ConsoleListen); err == nil {
		scheme := "http://"
		if mode := c.TLSMode(); mode != TLSOff && mode != TLSLocal {
			scheme = "https://"
		}
		if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
			host = "localhost"
			if at, err := url.Parse(c.PublicURL); err == nil && at.Hostname() != "" {
				host = at.Hostname()
			}
		}
		return scheme + net.JoinHostPort(host, port)
	}
	_, port, _ := net.SplitHostPort(c.Listen)
	return "http://" + net.JoinHostPort("console.localhost", port)
}

// urlProblem says what is wrong with the address of the API.
func (c Config) urlProblem() error {
	at, err := url.Parse(c.PublicURL)
	if c.PublicURL == "" || err == nil && (at.Scheme == "https" || at.Scheme == "http") && at.Host != "" && at.User == nil &&
		strings.Trim(at.Path, "/") == "" && at.RawQuery == "" && at.Fragment == "" {
		return nil
	}
	return cay.Errorf(cay.Invalid, "url %q is not an address such as https://api.example.com, without a path", c.PublicURL)
}

// PathForm reports whether sandboxes are reached by paths.
func (c Config) PathForm() bool {
	return c.Paths == "on" || c.Paths == "" && c.Domain == ""
}

// edgeProblems lists what is wrong with how clients reach the port.
func (c Config) edgeProblems() []error {
	host, port, err := net.SplitHostPort(c.Domain)
	if err != nil {
		host, port = c.Domain, "1"
	}
	_, wrong := strconv.ParseUint(port, 10, 16)
	mode := c.TLSMode()
	var out []error
	if wrong != nil || strings.ContainsAny(host, "/: ") || strings.HasPrefix(host, ".") || c.Domain != "" && host == "" {
		out = append(out, cay.Errorf(cay.Invalid, "domain %q is not a plain domain name such as sandbox.example.com, with a port or without", c.Domain))
	}
	switch {
	case !slices.Contains([]string{TLSOff, TLSFiles, TLSLocal, TLSACME}, mode):
		out = append(out, cay.Errorf(cay.Invalid, "TLS %q is none of off, files, local, acme", mode))
	case (mode == TLSFiles) != (c.TLSCert != "") || (c.TLSCert != "") != (c.TLSKey != ""):
		out = append(out, cay.Errorf(cay.Invalid, "TLS with files wants both a certificate and a key").
			WithHint("set CAY_TLS_CERT and CAY_TLS_KEY, and CAY_TLS to nothing or files"))
	case mode == TLSACME && (c.Domain == "" || c.ACMEDNS == ""):
		out = append(out, cay.Errorf(cay.Invalid, "TLS by ACME wants a domain, and who sets its DNS records").WithHint("set CAY_DOMAIN and CAY_ACME_DNS"))
	}
	out = append(append(out, c.urlProblem()), c.loginProblems()...)
	if !slices.Contains([]string{"", "on", "off"}, c.Paths) {
		out = append(out, cay.Errorf(cay.Invalid, "paths %q is neither on nor off", c.Paths))
	}
	for _, path := range []string{c.TLSCert, c.TLSKey, c.ACMERoots, c.ACMETSIG} {
		if path != "" && !filepath.IsAbs(path) {
			out = append(out, cay.Errorf(cay.Invalid, "the file %q is not an absolute path", path))
		}
	}
	return out
}
