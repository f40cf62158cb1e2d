package certs

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/letsencrypt/pebble/v2/ca"
	"github.com/letsencrypt/pebble/v2/db"
	"github.com/letsencrypt/pebble/v2/va"
	"github.com/letsencrypt/pebble/v2/wfe"
	"github.com/libdns/libdns"
	"github.com/miekg/dns"
)

const keyFile = `key "cay." {
	algorithm hmac-sha256;
	secret "c2VjcmV0IG9mIGNheSdzIHRlc3Q=";
};
`

// zone is a name server for cay.test that takes signed updates.
type zone struct {
	t    *testing.T
	addr string

	mu      sync.Mutex
	records map[string][]dns.RR
	updates int
}

func newZone(t *testing.T) *zone {
	t.Helper()
	z := &zone{t: t, records: map[string][]dns.RR{}}
	var udp net.PacketConn
	var tcp net.Listener
	for range 20 { // the same port for both
		var err error
		if udp, err = net.ListenPacket("udp", "127.0.0.1:0"); err != nil {
			t.Fatal(err)
		}
		if tcp, err = net.Listen("tcp", udp.LocalAddr().String()); err == nil {
			break
		}
		udp.Close()
	}
	if tcp == nil {
		t.Fatal("no port is free for both TCP and UDP")
	}
	z.addr = tcp.Addr().String()
	secrets := map[string]string{"cay.": "c2VjcmV0IG9mIGNheSdzIHRlc3Q="}
	// The library takes no updates unless it is told to.
	accept := func(h dns.Header) dns.MsgAcceptAction { return dns.MsgAccept }
	for _, s := range []*dns.Server{{PacketConn: udp}, {Listener: tcp, TsigSecret: secrets}} {
		s.Handler, s.MsgAcceptFunc = dns.HandlerFunc(z.serve), accept
		go s.ActivateAndServe()
		t.Cleanup(func() { _ = s.Shutdown() })
	}
	return z
}

func (z *zone) serve(w dns.ResponseWriter, q *dns.Msg) {
	z.mu.Lock()
	defer z.mu.Unlock()
	m := new(dns.Msg).SetReply(q)
	m.Authoritative = true
	name := strings.ToLower(q.Question[0].Name)
	switch {
	case q.Opcode == dns.OpcodeUpdate:
		if q.IsTsig() == nil || w.TsigStatus() != nil {
			m.Rcode = dns.RcodeRefused
			break
		}
		z.update(q.Ns)
		m.SetTsig("cay.", dns.HmacSHA256, 300, time.Now().Unix())
	case !dns.IsSubDomain("cay.test.", name):
		m.Rcode = dns.RcodeNameError
	case q.Question[0].Qtype == dns.TypeSOA && name == "cay.test.":
		m.Answer = []dns.RR{&dns.SOA{Hdr: dns.RR_Header{Name: "cay.test.", Rrtype: dns.TypeSOA, Class: dns.ClassINET, Ttl: 1}, Ns: "ns.cay.test.", Mbox: "x.cay.test."}}
	case q.Question[0].Qtype == dns.TypeTXT:
		m.Answer = z.records[name]
	}
	_ = w.WriteMsg(m)
}

func (z *zone) update(rrs []dns.RR) {
	z.updates++
	for _, rr := range rrs {
		h := rr.Header()
		name := strings.ToLower(h.Name)
		if h.Class == dns.ClassINET {
			z.records[name] = append(z.records[name], rr)
			continue
		}
		var kept []dns.RR
		for _, old := range z.records[name] {
			if old.(*dns.TXT).Txt[0] != rr.(*dns.TXT).Txt[0] {
				kept = append(kept, old)
			}
		}
		z.records[name] = kept
	}
}

// acmeAuthority is an ACME server that asks that zone.
func acmeAuthority(t *testing.T, resolver string) (url, roots string, pool *x509.CertPool) {
	t.Helper()
	t.Setenv("PEBBLE_VA_NOSLEEP", "1")
	t.Setenv("PEBBLE_WFE_NONCEREJECT", "0")
	quiet := log.New(io.Discard, "", 0)
	records := db.NewMemoryStore()
	issuer := ca.New(quiet, records, "", "ecdsa", 0, 1, map[string]ca.Profile{"default": {}})
	front := wfe.New(quiet, records, va.New(quiet, 1, 1, true, resolver, records), issuer, []string{"test"}, true, false, 1, 1)
	s := httptest.NewTLSServer(front.Handler())
	t.Cleanup(s.Close)
	roots = filepath.Join(t.TempDir(), "roots.pem")
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	if err := os.WriteFile(roots, text, 0o600); err != nil {
		t.Fatal(err)
	}
	pool = x509.NewCertPool()
	pool.AddCert(issuer.GetRootCert(0).Cert)
	return s.URL + wfe.DirectoryPath, roots, pool
}

// A wildcard certificate is got from an ACME authority, by records that are set
// with signed updates, and taken away after.
func TestACME(t *testing.T) {
	z := newZone(t)
	directory, roots, pool := acmeAuthority(t, z.addr)
	tsig := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(tsig, []byte(keyFile), 0o600); err != nil {
		t.Fatal(err)
	}
	data := t.TempDir()
	settings := ACME{
		Data: data, Domain: "cay.test:8443", Email: "me@cay.test", Directory: directory, Roots: roots,
		DNS: "rfc2136:" + z.addr, TSIG: tsig, Resolver: z.addr, Log: quiet,
	}
	m, err := OpenACME(settings)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { m.Close() }()
	for _, name := range []string{"3000-iabc.cay.test", "cay.test"} {
		c := eventually(t, m, name)
		inter := x509.NewCertPool()
		for _, cert := range c[1:] {
			inter.AddCert(cert)
		}
		if _, err := c[0].Verify(x509.VerifyOptions{Roots: pool, Intermediates: inter, DNSName: name}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := shown(m, "evil.test"); err == nil {
		t.Error("there is a certificate for any name")
	}
	z.mu.Lock()
	for name, left := range z.records {
		if len(left) > 0 {
			t.Errorf("%s is left in the zone: %v", name, left)
		}
	}
	before := z.updates
	z.mu.Unlock()
	if before < 4 {
		t.Errorf("%d updates", before)
	}
	// The certificate is there at once after a restart, and not requested again.
	m.Close()
	if m, err = OpenACME(settings); err != nil {
		t.Fatal(err)
	}
	eventually(t, m, "3000-iabc.cay.test")
	z.mu.Lock()
	defer z.mu.Unlock()
	if z.updates != before {
		t.Error("a certificate is asked for at every start")
	}
}

// shown is the chain that a client sees that asks for a name.
func shown(m *Managed, name string) ([]*x509.Certificate, error) {
	client, server := net.Pipe()
	defer client.Close()
	go func() {
		defer server.Close()
		_ = tls.Server(server, Getter(m.Get).Config()).Handshake()
	}()
	c := tls.Client(client, &tls.Config{ServerName: name, InsecureSkipVerify: true}) // verified below
	if err := c.Handshake(); err != nil {
		return nil, err
	}
	return c.ConnectionState().PeerCertificates, nil
}

func eventually(t *testing.T, m *Managed, name string) []*x509.Certificate {
	t.Helper()
	var err error
	for begun := time.Now(); time.Since(begun) < time.Minute; time.Sleep(20 * time.Millisecond) {
		var c []*x509.Certificate
		if c, err = shown(m, name); err == nil {
			return c
		}
	}
	t.Fatalf("no certificate for %s: %v", name, err)
	return nil
}

// The program is called with what to set and to take away.
func TestProgram(t *testing.T) {
	dir := t.TempDir()
	script, told := filepath.Join(dir, "dns"), filepath.Join(dir, "told")
	text := fmt.Sprintf("#!/bin/sh\necho \"$@\" >>%s\n[ \"$3\" != bad ] || { echo no such zone; exit 1; }\n", told)
	if err := os.WriteFile(script, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
	p, err := OpenDNS("exec:"+script, "")
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	rec := record("_acme-challenge.sub", "value")
	if _, err := p.AppendRecords(ctx, "cay.test.", rec); err != nil {
		t.Error(err)
	}
	if _, err := p.DeleteRecords(ctx, "cay.test.", rec); err != nil {
		t.Error(err)
	}
	if _, err := p.AppendRecords(ctx, "cay.test.", record("x", "bad")); err == nil || !strings.Contains(err.Error(), "no such zone") {
		t.Errorf("its failure: %v", err)
	}
	got, _ := os.ReadFile(told)
	want := "set _acme-challenge.sub.cay.test. value\nunset _acme-challenge.sub.cay.test. value\nset x.cay.test. bad\n"
	if string(got) != want {
		t.Errorf("it was told\n%s", got)
	}
}

func TestBadDNS(t *testing.T) {
	dir := t.TempDir()
	bad := filepath.Join(dir, "key")
	if err := os.WriteFile(bad, []byte(`key a { algorithm hmac-sha256; secret "hush!"; };`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range [][2]string{{"", ""}, {"route66", ""}, {"exec:relative", ""}, {"exec:" + dir, ""}, {"exec:" + bad, ""},
		{"rfc2136:ns", ""}, {"rfc2136:ns", dir + "/none"}, {"rfc2136:ns", bad}} {
		if _, err := OpenDNS(tt[0], tt[1]); err == nil {
			t.Errorf("%q is taken", tt)
		} else if strings.Contains(err.Error(), "hush") {
			t.Error("the key is told")
		}
	}
}

func record(name, value string) []libdns.Record {
	return []libdns.Record{libdns.RR{Type: "TXT", Name: name, Data: value, TTL: time.Minute}}
}
