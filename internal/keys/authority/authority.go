// Package authority keeps a certificate authority of this installation in two
// files and signs with it. Packages that use it decide which clients trust it,
// and for which names: the server's own certificates (certs) have one, and the
// certificates that guests see for hosts with a secret (egress) another.
package authority

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
	"time"
)

const (
	years = 10
	// Skew is how far the clock of a certificate's reader may be behind.
	Skew = time.Hour
)

// Files are where an authority is.
type Files struct {
	Cert, Key string
	Mode      fs.FileMode // the certificate's; the key is its owner's alone
}

// Authority signs certificates.
type Authority struct {
	Cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// NewKey makes a key, for an authority or for a certificate.
func NewKey() (*ecdsa.PrivateKey, error) { return ecdsa.GenerateKey(elliptic.P256(), rand.Reader) }

// Read reads an authority; fs.ErrNotExist says that there is none.
func (f Files) Read() (*Authority, error) {
	pair, err := tls.LoadX509KeyPair(f.Cert, f.Key)
	if err != nil {
		return nil, err
	}
	key, ok := pair.PrivateKey.(*ecdsa.PrivateKey)
	if !ok {
		return nil, errors.New("its key is not an ECDSA key")
	}
	return &Authority{Cert: pair.Leaf, key: key}, nil
}

// Make makes an authority, or a new one in place of an old. It says itself
// that it is for some domains only, if any are given. The key is written before
// the certificate: a certificate that is there has its key.
func (f Files) Make(name string, domains ...string) error {
	key, err := NewKey()
	if err != nil {
		return err
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: serial(),
		Subject:      pkix.Name{CommonName: name, Organization: []string{"Cay"}},
		NotBefore:    now.Add(-Skew), NotAfter: now.AddDate(years, 0, 0),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true,
		KeyUsage:            x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		PermittedDNSDomains: domains, PermittedDNSDomainsCritical: len(domains) > 0,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	if err := write(f.Key, 0o600, &pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}); err != nil {
		return err
	}
	return write(f.Cert, f.Mode, &pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// write replaces a file as a whole, and it is on the disk when it is there.
func write(path string, mode fs.FileMode, block *pem.Block) error {
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

// Sign makes a server's certificate for the names and addresses of a template,
// from Skew ago until it has been valid for a time from now.
func (a *Authority) Sign(template x509.Certificate, key *ecdsa.PrivateKey, valid time.Duration) (*tls.Certificate, error) {
	now := time.Now()
	template.SerialNumber = serial()
	template.Subject = pkix.Name{Organization: []string{"Cay"}}
	template.NotBefore, template.NotAfter = now.Add(-Skew), now.Add(valid)
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	der, err := x509.CreateCertificate(rand.Reader, &template, a.Cert, &key.PublicKey, a.key)
	if err != nil {
		return nil, err
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, nil
}
