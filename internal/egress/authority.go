package egress

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
	"math/big"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/cay-run/cay"
)

const (
	authorityYears = 10
	leafFor        = 7 * 24 * time.Hour
	leafAgain      = 24 * time.Hour // before its end a leaf is made anew
	skew           = time.Hour      // guests' clocks may be behind
	maxLeaves      = 1024
)

// Authority signs certificates that the guests of this installation trust,
// and nobody else.
type Authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
	leaf *ecdsa.PrivateKey // of all leaves

	mu     sync.Mutex
	leaves map[string]*tls.Certificate
}

// OpenAuthority reads the authority below a directory, or makes it.
func OpenAuthority(dir string) (*Authority, error) {
	dir = filepath.Join(dir, "authority")
	certPath, keyPath := filepath.Join(dir, "egress.crt"), filepath.Join(dir, "egress.key")
	certPEM, err := os.ReadFile(certPath)
	if errors.Is(err, fs.ErrNotExist) {
		if err := makeAuthority(dir, certPath, keyPath); err != nil {
			return nil, cay.Wrap(cay.Internal, err, "the authority for egress cannot be made in %s", dir)
		}
		certPEM, err = os.ReadFile(certPath)
	}
	if err != nil {
		return nil, cay.Wrap(cay.Internal, err, "the authority for egress cannot be read")
	}
	pair, err := tls.LoadX509KeyPair(certPath, keyPath)
	if err != nil {
		return nil, cay.Wrap(cay.Internal, err, "the authority for egress in %s is damaged", dir).
			WithHint("remove the directory; a new one is made, and templates are built again")
	}
	key, ok := pair.PrivateKey.(*ecdsa.PrivateKey)
	if !ok {
		return nil, cay.Errorf(cay.Internal, "the authority for egress has no ECDSA key")
	}
	leaf, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, cay.Wrap(cay.Internal, err, "no key can be made")
	}
	return &Authority{cert: pair.Leaf, key: key, pem: certPEM, leaf: leaf, leaves: map[string]*tls.Certificate{}}, nil
}

// PEM is the authority's certificate, for guests to trust.
func (a *Authority) PEM() []byte { return a.pem }

// makeAuthority writes the key before the certificate: a certificate that is
// there has its key.
func makeAuthority(dir, certPath, keyPath string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	now := time.Now()
	name := pkix.Name{CommonName: "Cay egress of this installation", Organization: []string{"Cay"}}
	template := &x509.Certificate{
		SerialNumber: serial(), Subject: name,
		NotBefore: now.Add(-skew), NotAfter: now.AddDate(authorityYears, 0, 0),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	if err := writeAside(keyPath, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})); err != nil {
		return err
	}
	return writeAside(certPath, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

func writeAside(path string, data []byte) error {
	f, err := os.OpenFile(path+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
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

// certificate is one for a name, made when it is first asked for.
func (a *Authority) certificate(name string) (*tls.Certificate, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	if c := a.leaves[name]; c != nil && now.Before(c.Leaf.NotAfter.Add(-leafAgain)) {
		return c, nil
	}
	template := &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{Organization: []string{"Cay"}},
		DNSNames: []string{name}, NotBefore: now.Add(-skew), NotAfter: now.Add(leafFor),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &a.leaf.PublicKey, a.key)
	if err != nil {
		return nil, err
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	if len(a.leaves) >= maxLeaves {
		clear(a.leaves)
	}
	c := &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: a.leaf, Leaf: leaf}
	a.leaves[name] = c
	return c, nil
}
