package egress

import (
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/keys/authority"
)

const (
	leafFor   = 7 * 24 * time.Hour
	leafAgain = 24 * time.Hour // before its end a leaf is made anew
	maxLeaves = 1024
)

// Authority signs certificates that the guests of this installation trust,
// and no other party.
type Authority struct {
	signer *authority.Authority
	pem    []byte
	leaf   *ecdsa.PrivateKey // of all leaves

	mu     sync.Mutex
	leaves map[string]*tls.Certificate
}

// OpenAuthority reads the authority below a directory, or makes it.
func OpenAuthority(dir string) (*Authority, error) {
	dir = filepath.Join(dir, "authority")
	files := authority.Files{Cert: filepath.Join(dir, "egress.crt"), Key: filepath.Join(dir, "egress.key"), Mode: 0o600}
	certPEM, err := os.ReadFile(files.Cert)
	if errors.Is(err, fs.ErrNotExist) {
		if err := errors.Join(os.MkdirAll(dir, 0o700), files.Make("Cay egress of this installation")); err != nil {
			return nil, cay.Wrap(cay.Internal, err, "the authority for egress cannot be made in %s", dir)
		}
		certPEM, err = os.ReadFile(files.Cert)
	}
	if err != nil {
		return nil, cay.Wrap(cay.Internal, err, "the authority for egress cannot be read")
	}
	found, err := files.Read()
	if err != nil {
		return nil, cay.Wrap(cay.Internal, err, "the authority for egress in %s is damaged", dir).
			WithHint("remove the directory; a new one is made, and templates are built again")
	}
	leaf, err := authority.NewKey()
	if err != nil {
		return nil, cay.Wrap(cay.Internal, err, "no key can be made")
	}
	return &Authority{signer: found, pem: certPEM, leaf: leaf, leaves: map[string]*tls.Certificate{}}, nil
}

// PEM is the authority's certificate, for guests to trust.
func (a *Authority) PEM() []byte { return a.pem }

// certificate is one for a name, made when it is first asked for.
func (a *Authority) certificate(name string) (*tls.Certificate, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if c := a.leaves[name]; c != nil && time.Now().Before(c.Leaf.NotAfter.Add(-leafAgain)) {
		return c, nil
	}
	c, err := a.signer.Sign(x509.Certificate{DNSNames: []string{name}}, a.leaf, leafFor)
	if err != nil {
		return nil, err
	}
	if len(a.leaves) >= maxLeaves {
		clear(a.leaves)
	}
	a.leaves[name] = c
	return c, nil
}
