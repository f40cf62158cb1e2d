package certs

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io/fs"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cay-run/cay"
)

const (
	authorityYears = 10
	leafFor        = 90 * 24 * time.Hour // browsers take no local one for more than two years; ours is made as needed
	leafAgain      = 24 * time.Hour      // how old one may be: addresses of machines change
	skew           = time.Hour           // clocks of clients may be behind
)

// Local is an authority of this installation. Who trusts it trusts it for the
// names that it was made for and for addresses, and for nothing else: it says
// so itself.
type Local struct {
	names []string
	cert  *x509.Certificate
	key   *ecdsa.PrivateKey
	path  string

	mu     sync.Mutex
	leaves map[string]*tls.Certificate // by the one name more that each is for
}

// maxLeaves bounds what names that nobody has can cost.
const maxLeaves = 256

// LocalPath is where the certificate of a data directory's authority is.
func LocalPath(data string) string { return filepath.Join(data, "tls", "authority.crt") }

// OpenLocal reads the authority of a data directory, or makes it. One that is
// not for these names is replaced, and has to be trusted again.
func OpenLocal(data string, names []string, log *slog.Logger) (*Local, error) {
	l := &Local{names: names, path: LocalPath(data)}
	keyPath := strings.TrimSuffix(l.path, ".crt") + ".key"
	err := l.read(keyPath)
	if err == nil && !l.covers() {
		log.Warn("the server has another domain than its authority; a new authority is made and has to be trusted", "file", l.path)
		err = fs.ErrNotExist
	}
	if errors.Is(err, fs.ErrNotExist) {
		if err = l.make(keyPath); err == nil {
			err = l.read(keyPath)
		}
	}
	if err != nil {
		return nil, cay.Wrap(cay.Internal, err, "the authority for TLS cannot be used").
			WithHint("if it is damaged, remove %s; a new one is made, and has to be trusted", filepath.Dir(l.path))
	}
	return l, nil
}

func (l *Local) read(keyPath string) error {
	pair, err := tls.LoadX509KeyPair(l.path, keyPath)
	if err != nil {
		return err
	}
	key, ok := pair.PrivateKey.(*ecdsa.PrivateKey)
	if !ok {
		return errors.New("its key is not an ECDSA key")
	}
	l.cert, l.key = pair.Leaf, key
	return nil
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
		if !slices.ContainsFunc(l.cert.PermittedDNSDomains, func(p string) bool { return base == p || strings.HasSuffix(base, "."+p) }) {
			return false
		}
	}
	return time.Now().AddDate(0, 6, 0).Before(l.cert.NotAfter)
}

// make writes the key before the certificate: a certificate that is there has
// its key.
func (l *Local) make(keyPath string) error {
	if err := os.MkdirAll(filepath.Dir(l.path), 0o755); err != nil {
		return err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: serial(),
		Subject:      pkix.Name{CommonName: "Cay of this installation, " + now.Format(time.DateOnly), Organization: []string{"Cay"}},
		NotBefore:    now.Add(-skew), NotAfter: now.AddDate(authorityYears, 0, 0),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true,
		KeyUsage:            x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		PermittedDNSDomains: bases(l.names), PermittedDNSDomainsCritical: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	if err := writeAside(keyPath, 0o600, &pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}); err != nil {
		return err
	}
	return writeAside(l.path, 0o644, &pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func writeAside(path string, mode fs.FileMode, block *pem.Block) error {
	f, err := os.OpenFile(path+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, mode)
	if err != nil {
		return err
	}
	if err := errors.Join(pem.Encode(f, block), f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

func serial() *big.Int {
	n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		panic(err) // the system's randomness never fails
	}
	return n
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
	now := time.Now()
	if c := l.leaves[more]; c != nil && now.Before(c.Leaf.NotBefore.Add(skew+leafAgain)) {
		return c, nil
	}
	c, err := l.sign(more, now)
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
func (l *Local) sign(more string, now time.Time) (*tls.Certificate, error) {
	template := &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{Organization: []string{"Cay"}},
		NotBefore: now.Add(-skew), NotAfter: now.Add(leafFor), IPAddresses: addresses(),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
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
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	der, err := x509.CreateCertificate(rand.Reader, template, l.cert, &key.PublicKey, l.key)
	if err != nil {
		return nil, err
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return &tls.Certificate{Certificate: [][]byte{der, l.cert.Raw}, PrivateKey: key, Leaf: leaf}, nil
}
