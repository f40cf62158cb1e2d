package certs

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/caddyserver/certmagic"
	"github.com/libdns/libdns"
	"github.com/miekg/dns"

	"github.com/cay-run/cay"
)

// OpenDNS returns the setter of the records that prove a domain:
//
//	exec:/path/to/program   is called with `set NAME VALUE` and `unset NAME VALUE`
//	rfc2136:server[:port]   is sent dynamic updates, signed with the key of a file
//
// The first reaches every provider that has a command line or an API, the
// second BIND, Knot and PowerDNS.
func OpenDNS(spec, tsig string) (certmagic.DNSProvider, error) {
	kind, rest, _ := strings.Cut(spec, ":")
	switch {
	case kind == "exec" && filepath.IsAbs(rest):
		if info, err := os.Stat(rest); err != nil || info.IsDir() || info.Mode()&0o111 == 0 {
			return nil, cay.Errorf(cay.Invalid, "the program %s that is to set DNS records cannot be run", rest)
		}
		return program(rest), nil
	case kind == "rfc2136" && rest != "":
		key, err := readKey(tsig)
		if err != nil {
			return nil, err
		}
		if _, _, err := net.SplitHostPort(rest); err != nil {
			rest = net.JoinHostPort(rest, "53")
		}
		return &updates{server: rest, key: key}, nil
	}
	return nil, cay.Errorf(cay.Invalid, "%.80q does not say who sets DNS records", spec).
		WithHint("want exec:/path/to/program or rfc2136:server:port")
}

// text is what a TXT record says, and where.
func text(zone string, rec libdns.Record) (name, value string, ttl time.Duration) {
	rr := rec.RR()
	return libdns.AbsoluteName(rr.Name, zone), rr.Data, rr.TTL
}

// program sets records by running a program.
type program string

const programTime = 2 * time.Minute

func (p program) AppendRecords(ctx context.Context, zone string, recs []libdns.Record) ([]libdns.Record, error) {
	return recs, p.each(ctx, "set", zone, recs)
}

func (p program) DeleteRecords(ctx context.Context, zone string, recs []libdns.Record) ([]libdns.Record, error) {
	return recs, p.each(ctx, "unset", zone, recs)
}

func (p program) each(ctx context.Context, verb, zone string, recs []libdns.Record) error {
	ctx, cancel := context.WithTimeout(ctx, programTime)
	defer cancel()
	for _, rec := range recs {
		name, value, _ := text(zone, rec)
		out, err := exec.CommandContext(ctx, string(p), verb, name, value).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%s %s %s: %w: %.500s", p, verb, name, err, out)
		}
	}
	return nil
}

// updates sets records by RFC 2136.
type updates struct {
	server string
	key    tsigKey
}

type tsigKey struct{ name, algorithm, secret string }

const updateTime = 10 * time.Second

func (u *updates) AppendRecords(ctx context.Context, zone string, recs []libdns.Record) ([]libdns.Record, error) {
	return recs, u.send(ctx, zone, recs, (*dns.Msg).Insert)
}

func (u *updates) DeleteRecords(ctx context.Context, zone string, recs []libdns.Record) ([]libdns.Record, error) {
	return recs, u.send(ctx, zone, recs, (*dns.Msg).Remove)
}

func (u *updates) send(ctx context.Context, zone string, recs []libdns.Record, put func(*dns.Msg, []dns.RR)) error {
	m := new(dns.Msg)
	m.SetUpdate(dns.Fqdn(zone))
	for _, rec := range recs {
		name, value, ttl := text(zone, rec)
		put(m, []dns.RR{&dns.TXT{
			Hdr: dns.RR_Header{Name: dns.Fqdn(name), Rrtype: dns.TypeTXT, Class: dns.ClassINET, Ttl: uint32(ttl.Seconds())},
			Txt: []string{value},
		}})
	}
	m.SetTsig(u.key.name, u.key.algorithm, 300, time.Now().Unix())
	c := &dns.Client{Net: "tcp", Timeout: updateTime, TsigSecret: map[string]string{u.key.name: u.key.secret}}
	reply, _, err := c.ExchangeContext(ctx, m, u.server)
	if err != nil {
		return fmt.Errorf("update of %s at %s: %w", zone, u.server, err)
	}
	if reply.Rcode != dns.RcodeSuccess {
		return fmt.Errorf("update of %s at %s: %s", zone, u.server, dns.RcodeToString[reply.Rcode])
	}
	return nil
}

// keyText is a key as tsig-keygen writes it.
var keyText = regexp.MustCompile(`(?s)^\s*key\s+"?([^"\s{]+)"?\s*\{\s*algorithm\s+"?([a-zA-Z0-9.-]+)"?\s*;\s*secret\s+"?([A-Za-z0-9+/=]+)"?\s*;\s*\}\s*;\s*$`)

func readKey(path string) (tsigKey, error) {
	if path == "" {
		return tsigKey{}, cay.Errorf(cay.Invalid, "rfc2136 wants the file of a key").WithHint("make one with tsig-keygen, and set CAY_ACME_TSIG")
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return tsigKey{}, cay.Wrap(cay.Invalid, err, "the key for DNS updates cannot be read")
	}
	found := keyText.FindSubmatch(b)
	if found == nil { // and nothing of what it says
		return tsigKey{}, cay.Errorf(cay.Invalid, "%s is not a key as tsig-keygen writes it", path)
	}
	return tsigKey{dns.CanonicalName(string(found[1])), dns.CanonicalName(string(found[2])), string(found[3])}, nil
}
