// Package certs has the certificates that the server itself shows: those an
// operator brings, those of an authority of this installation, or those of an
// ACME authority.
//
// It has nothing to do with the authority that guests trust for header rules;
// that one belongs to egress, and neither trusts the other.
package certs

import (
	"crypto/tls"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"github.com/cay-run/cay"
)

// Getter finds the certificate for a client's first words.
type Getter func(*tls.ClientHelloInfo) (*tls.Certificate, error)

// Config makes crypto/tls use it, for HTTP/1.1 and HTTP/2.
func (g Getter) Config() *tls.Config {
	return &tls.Config{
		MinVersion:     tls.VersionTLS12,
		NextProtos:     []string{"h2", "http/1.1"},
		GetCertificate: g,
	}
}

// reloadAfter is how often files are looked at, so that a renewal needs
// no signal.
const reloadAfter = 10 * time.Second

// files are a certificate and its key, as an operator brings them.
type files struct {
	cert, key string
	log       *slog.Logger

	mu     sync.Mutex
	pair   *tls.Certificate
	stamp  [2]time.Time // when the files were changed last
	looked time.Time
}

// Files shows a certificate of two PEM files, and what comes after it in the
// same place.
func Files(cert, key string, log *slog.Logger) (Getter, error) {
	f := &files{cert: cert, key: key, log: log}
	if err := f.load(); err != nil {
		return nil, cay.Wrap(cay.Invalid, err, "the certificate %s cannot be used with the key %s", cert, key).
			WithHint("both are PEM; the certificate's file begins with the server's own, its issuers follow")
	}
	return f.get, nil
}

func (f *files) load() error {
	stamp, err := f.stamps()
	if err != nil {
		return err
	}
	pair, err := tls.LoadX509KeyPair(f.cert, f.key)
	if err != nil {
		return err
	}
	f.pair, f.stamp = &pair, stamp
	return nil
}

func (f *files) stamps() (out [2]time.Time, err error) {
	for i, name := range []string{f.cert, f.key} {
		info, err := os.Stat(name)
		if err != nil {
			return out, err
		}
		out[i] = info.ModTime()
	}
	return out, nil
}

// get keeps what it has when what lies there now is no good: both files cannot
// change at once.
func (f *files) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if time.Since(f.looked) < reloadAfter {
		return f.pair, nil
	}
	f.looked = time.Now()
	if stamp, err := f.stamps(); err != nil || stamp != f.stamp {
		if err = f.load(); err != nil {
			f.log.Warn("a changed certificate cannot be used; the one before it is", "file", f.cert, "err", err)
		}
	}
	return f.pair, nil
}

// Names are what a server is called: by its domain, at home, and at its
// addresses.
func Names(domain string, more []string) []string {
	names := []string{"localhost"}
	if domain != "" {
		if host, _, err := net.SplitHostPort(domain); err == nil {
			domain = host
		}
		names = append(names, domain, "*."+domain)
	}
	return append(names, more...)
}

// addresses are those of this machine.
func addresses() []net.IP {
	out := []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}
	all, err := net.InterfaceAddrs()
	if err != nil {
		return out
	}
	for _, a := range all {
		if n, ok := a.(*net.IPNet); ok && n.IP.IsGlobalUnicast() {
			out = append(out, n.IP)
		}
	}
	return out
}
