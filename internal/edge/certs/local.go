package certs

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/keys/authority"
)

const (
	leafFor   = 90 * 24 * time.Hour // browsers take no local one for more than two years; ours is made as needed
	leafAgain = 24 * time.Hour      // how old one may be: addresses of machines change
)

// Local is an authority of this installation. Its own certificate limits it to
// the names that it was made for and to addresses, so that is all a client
// trusts it for.
type Local struct {
	names []string
	files authority.Files
	ca    *authority.Authority

	mu     sync.Mutex
	leaves map[string]*tls.Certificate // by the one name more that each is for
}

// maxLeaves bounds the cost of requests for unknown names.
const maxLeaves = 256

// LocalPath is where the certificate of a data directory's authority is.
func LocalPath(data string) string { return filepath.Join(data, "tls", "authority.crt") }

// OpenLocal reads the authority of a data directory, or makes it. One that is
// not for these names is replaced, and has to be trusted again.
func OpenLocal(data string, names []string, log *slog.Logger) (*Local, error) {
	path := LocalPath(data)
	l := &Local{names: names, files: authority.Files{Cert: path, Key: strings.TrimSuffix(path, ".crt") + ".key", Mode: 0o644}}
	var err error
	l.ca, err = l.files.Read()
	if err == nil && !l.covers() {
		log.Warn("the server has another domain than its authority; a new authority is made and has to be trusted", "file", path)
		err = fs.ErrNotExist
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = l.make()
	}
	if err != nil {
		return nil, cay.Wrap(cay.Internal, err, "the authority for TLS cannot be used").
			WithHint("if it is damaged, remove %s; a new one is made, and has to be trusted", filepath.Dir(path))
	}
	return l, nil
}

// PEM is the authority's certificate.
func (l *Local) PEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: l.ca.Cert.Raw})
}

// bases are the domains that names lie in.
func bases(names []string) (out []string) {
	for _, n := range names {
		if n = strings.TrimPrefix(n, "*."); net.ParseIP(n) == nil && !slices.Contains(out, n) {
			out = append(out, n)
		}
	}
	return out
}

func (l *Local) covers() bool {
	for _, base := range bases(l.names) {
		if !slices.ContainsFunc(l.ca.Cert.PermittedDNSDomains, func(p string) bool { return base == p || strings.HasSuffix(base, "."+p) }) {
			return false
		}
	}
	return time.Now().AddDate(0, 6, 0).Before(l.ca.Cert.NotAfter)
}

func (l *Local) make() (err error) {
	if err := os.MkdirAll(filepath.Dir(l.files.Cert), 0o755); err != nil {
		return err
	}
	name := "Cay of this installation, " + time.Now().Format(time.DateOnly)
	if err := l.files.Make(name, bases(l.names)...); err != nil {
		return err
	}
	l.ca, err = l.files.Read()
	return err
}

// Get returns a certificate for all names and addresses of this server. Hosts
// below localhost get their own: clients refuse a wildcard of a single label.
func (l *Local) Get(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	more := ""
	if label, found := strings.CutSuffix(strings.ToLower(hello.ServerName), ".localhost"); found && !strings.ContainsAny(label, ".*") {
		more = label + ".localhost"
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if c := l.leaves[more]; c != nil && time.Now().Before(c.Leaf.NotBefore.Add(authority.Skew+leafAgain)) {
		return c, nil
	}
	c, err := l.sign(more)
	if err != nil {
		return nil, err
	}
	if l.leaves == nil || len(l.leaves) >= maxLeaves {
		l.leaves = map[string]*tls.Certificate{}
	}
	l.leaves[more] = c
	return c, nil
}

// sign makes a certificate for all names and one more, if it is not empty.
func (l *Local) sign(more string) (*tls.Certificate, error) {
	template := x509.Certificate{IPAddresses: addresses()}
	for _, n := range l.names {
		if ip := net.ParseIP(n); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, n)
		}
	}
	if more != "" {
		template.DNSNames = append(template.DNSNames, more)
	}
	key, err := authority.NewKey()
	if err != nil {
		return nil, err
	}
	c, err := l.ca.Sign(template, key, leafFor)
	if err != nil {
		return nil, err
	}
	c.Certificate = append(c.Certificate, l.ca.Cert.Raw)
	return c, nil
}
