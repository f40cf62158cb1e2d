package certs

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/caddyserver/certmagic"
	"go.uber.org/zap"

	"github.com/cay-run/cay"
)

// ACME says how certificates are asked for. All of them are wildcards, so the
// only proof there is goes through DNS.
type ACME struct {
	Data      string // the data directory
	Domain    string // and all hosts right below it
	Email     string
	Directory string // of the authority; empty is Let's Encrypt
	Roots     string // PEM file of what signed the directory's own certificate; empty is the system's
	DNS       string // the program or server that sets records, see OpenDNS
	TSIG      string // the key's file, for rfc2136
	Resolver  string // host:port that is asked whether a record is there; empty asks the zone's own servers
	Log       *slog.Logger
}

// Managed keeps a certificate for as long as it is open.
type Managed struct {
	cache  *certmagic.Cache
	config *certmagic.Config
	cancel context.CancelFunc
}

// OpenACME asks for a certificate, in the background, and renews it in time.
// A certificate of an earlier run is there at once.
func OpenACME(a ACME) (*Managed, error) {
	provider, err := OpenDNS(a.DNS, a.TSIG)
	if err != nil {
		return nil, err
	}
	roots, err := rootsOf(a.Roots)
	if err != nil {
		return nil, err
	}
	domain := a.Domain
	if host, _, err := net.SplitHostPort(domain); err == nil {
		domain = host
	}
	m := &Managed{}
	quiet := zap.NewNop()
	m.cache = certmagic.NewCache(certmagic.CacheOptions{
		GetConfigForCert: func(certmagic.Certificate) (*certmagic.Config, error) { return m.config, nil },
		Logger:           quiet,
	})
	m.config = certmagic.New(m.cache, certmagic.Config{
		Storage: &certmagic.FileStorage{Path: filepath.Join(a.Data, "tls", "acme")},
		OnEvent: a.tell,
		Logger:  quiet,
	})
	solver := &certmagic.DNS01Solver{}
	solver.DNSProvider, solver.TTL, solver.Logger = provider, time.Minute, quiet
	if a.Resolver != "" {
		solver.Resolvers = []string{a.Resolver}
	}
	directory := a.Directory
	if directory == "" {
		directory = certmagic.LetsEncryptProductionCA
	}
	m.config.Issuers = []certmagic.Issuer{certmagic.NewACMEIssuer(m.config, certmagic.ACMEIssuer{
		CA: directory, TestCA: directory, Email: a.Email, Agreed: true, TrustedRoots: roots,
		DNS01Solver: solver, Logger: quiet,
	})}
	ctx, cancel := context.WithCancel(context.Background())
	m.cancel = cancel
	if err := m.config.ManageAsync(ctx, []string{domain, "*." + domain}); err != nil {
		err = errors.Join(err, m.Close())
		return nil, cay.Wrap(cay.Unavailable, err, "certificates for %s cannot be managed", domain)
	}
	return m, nil
}

// tell logs what people want to know of.
func (a ACME) tell(_ context.Context, event string, data map[string]any) error {
	switch event {
	case "cert_obtained":
		a.Log.Info("a certificate was obtained", "name", data["identifier"], "renewal", data["renewal"])
	case "cert_failed":
		a.Log.Error("a certificate could not be obtained; it will be tried again", "name", data["identifier"], "err", data["error"])
	}
	return nil
}

// Get finds the certificate for a name. Until there is one, handshakes fail.
func (m *Managed) Get(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	return m.config.GetCertificate(hello)
}

// Close ends renewing.
func (m *Managed) Close() error {
	if m.cancel != nil {
		m.cancel()
	}
	m.cache.Stop()
	return nil
}

func rootsOf(path string) (*x509.CertPool, error) {
	if path == "" {
		return nil, nil
	}
	text, err := os.ReadFile(path)
	pool := x509.NewCertPool()
	if err == nil && !pool.AppendCertsFromPEM(text) {
		err = &fs.PathError{Op: "parse", Path: path, Err: errors.New("it holds no certificate in PEM")}
	}
	if err != nil {
		return nil, cay.Wrap(cay.Invalid, err, "the roots of the ACME directory cannot be read")
	}
	return pool, nil
}
