// Package member has the certificates by which the nodes of a cluster know each
// other, and the tokens that let a machine in. An authority of the cluster signs
// them; every member has its key, sealed in the records.
package member

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"io/fs"
	"math/big"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/keys/seal"
)

const (
	// Dir is the directory of a data directory that a member has its files in.
	Dir = "cluster"

	years    = 10                  // of the authority
	lasts    = 2                   // years of a member
	renewed  = 90 * 24 * time.Hour // after which a start makes a new one
	skew     = time.Hour           // that another machine's clock may be behind
	certFile = "node.crt"
	keyFile  = "node.key"
	next     = ".next" // of a certificate that the records may not have yet
	caFile   = "authority.crt"
	scheme   = "cay"
)

// Authority signs the certificates of members.
type Authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// NewAuthority makes the authority of a cluster, as PEM texts.
func NewAuthority(cluster string) (cert, key []byte, err error) {
	own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: "cluster " + cluster, Organization: []string{"Cay"}},
		NotBefore: now.Add(-skew), NotAfter: now.AddDate(years, 0, 0),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &own.PublicKey, own)
	if err != nil {
		return nil, nil, err
	}
	key, err = encodeKey(own)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), key, err
}

// OpenAuthority reads what NewAuthority made.
func OpenAuthority(cert, key []byte) (*Authority, error) {
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, cay.Wrap(cay.Internal, err, "the authority of the cluster is damaged")
	}
	own, ok := pair.PrivateKey.(*ecdsa.PrivateKey)
	if !ok {
		return nil, cay.Errorf(cay.Internal, "the authority of the cluster is damaged: its key is no ECDSA key")
	}
	return &Authority{pair.Leaf, own}, nil
}

// Files are those of a member, as PEM texts.
type Files struct{ Cert, Key, Authority []byte }

// Issue makes the files of a new member. They name it and the cluster.
func (a *Authority) Issue(cluster string, node cay.NodeID) (Files, error) {
	own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Files{}, err
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: string(node), Organization: []string{"Cay"}},
		NotBefore: now.Add(-skew), NotAfter: earlier(now.AddDate(lasts, 0, 0), a.cert.NotAfter),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		DNSNames: []string{string(node)}, URIs: []*url.URL{{Scheme: scheme, Host: cluster, Path: "/" + string(node)}},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &own.PublicKey, a.key)
	if err != nil {
		return Files{}, err
	}
	key, err := encodeKey(own)
	return Files{
		Cert: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), Key: key,
		Authority: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw}),
	}, err
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

func encodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

func serial() *big.Int {
	n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		panic(err) // the system's randomness never fails
	}
	return n
}

// Write puts the files into a data directory: the certificate last, without which it
// is no member's.
func (f Files) Write(data string) error { return f.write(data, "") }

// WriteNext puts the files of a renewed member beside those that it has: TakeNext has them follow, once the
// records have the new certificate.
func (f Files) WriteNext(data string) error { return f.write(data, next) }

// TakeNext has the files of WriteNext follow, if they are there and have a certificate of that fingerprint.
func TakeNext(data, fingerprint string) error {
	at := func(name string) string { return filepath.Join(data, Dir, name) }
	cert, err := os.ReadFile(at(certFile + next))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	key, err2 := os.ReadFile(at(keyFile + next))
	authority, err3 := os.ReadFile(at(caFile))
	if err := errors.Join(err, err2, err3); err != nil {
		return cay.Wrap(cay.Unavailable, err, "cannot read the next certificate of this machine")
	}
	m, err := Parse(Files{cert, key, authority})
	if err != nil || m.Fingerprint != fingerprint {
		return nil // of a renewal that broke off
	}
	return Files{cert, key, authority}.Write(data)
}

func (f Files) write(data, as string) error {
	dir := filepath.Join(data, Dir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return cay.Wrap(cay.Unavailable, err, "cannot make %s", dir)
	}
	for _, one := range []struct {
		name string
		text []byte
	}{{keyFile + as, f.Key}, {caFile, f.Authority}, {certFile + as, f.Cert}} {
		if err := write(filepath.Join(dir, one.name), one.text); err != nil {
			return cay.Wrap(cay.Unavailable, err, "cannot write the certificate of this machine")
		}
	}
	return nil
}

func write(path string, text []byte) error {
	f, err := os.OpenFile(path+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// Remove takes the files out of a data directory.
func Remove(data string) error { return os.RemoveAll(filepath.Join(data, Dir)) }

// Member is a machine of a cluster.
type Member struct {
	Cluster     string
	Node        cay.NodeID
	Fingerprint string
	// Expires is the expiry of its certificate, AuthorityExpires of the cluster's authority.
	Expires, AuthorityExpires time.Time

	cert  tls.Certificate
	roots *x509.CertPool
}

// IsOld reports whether the certificate of a member is to be renewed.
func (m *Member) IsOld(now time.Time) bool {
	made, ends := m.cert.Leaf.NotBefore, m.cert.Leaf.NotAfter
	return now.Sub(made) > renewed || ends.Sub(made) > (lasts*366+1)*24*time.Hour
}

// Open reads the files of a data directory; nil where it is no member's.
func Open(data string) (*Member, error) {
	dir := filepath.Join(data, Dir)
	if _, err := os.Stat(filepath.Join(dir, certFile)); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	cert, e1 := os.ReadFile(filepath.Join(dir, certFile))
	key, e2 := os.ReadFile(filepath.Join(dir, keyFile))
	authority, e3 := os.ReadFile(filepath.Join(dir, caFile))
	if err := errors.Join(e1, e2, e3); err != nil {
		return nil, cay.Wrap(cay.Unavailable, err, "cannot read this machine's certificate in %s", dir)
	}
	m, err := Parse(Files{cert, key, authority})
	if err != nil {
		return nil, cay.Wrap(cay.Internal, err, "this machine's certificate in %s is damaged", dir).
			WithHint("remove the node from the cluster, and join again with an empty data directory")
	}
	return m, nil
}

// Parse reads the files of a member.
func Parse(f Files) (*Member, error) {
	pair, err := tls.X509KeyPair(f.Cert, f.Key)
	if err != nil {
		return nil, err
	}
	cluster, node := named(pair.Leaf)
	if node == "" {
		return nil, errors.New("it names no node")
	}
	m := &Member{Cluster: cluster, Node: node, Fingerprint: fingerprint(pair.Leaf), cert: pair, roots: x509.NewCertPool()}
	if !m.roots.AppendCertsFromPEM(f.Authority) {
		return nil, errors.New("the authority's certificate is none")
	}
	block, _ := pem.Decode(f.Authority)
	authority, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, err
	}
	m.Expires, m.AuthorityExpires = pair.Leaf.NotAfter, authority.NotAfter
	return m, nil
}

// named returns the cluster and the node of a certificate.
func named(c *x509.Certificate) (cluster string, node cay.NodeID) {
	if len(c.URIs) != 1 || c.URIs[0].Scheme != scheme {
		return "", ""
	}
	return c.URIs[0].Host, cay.NodeID(strings.TrimPrefix(c.URIs[0].Path, "/"))
}

func fingerprint(c *x509.Certificate) string {
	sum := sha256.Sum256(c.Raw)
	return hex.EncodeToString(sum[:])
}

// ServerConfig takes members alone: admit is asked for each connection whether a
// node has a certificate of that fingerprint.
func (m *Member) ServerConfig(admit func(node cay.NodeID, fingerprint string) error) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{m.cert},
		ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: m.roots,
		SessionTicketsDisabled: true, // each connection asks whether the other one is still a member
		VerifyConnection: func(s tls.ConnectionState) error {
			cluster, node := named(s.PeerCertificates[0])
			if cluster != m.Cluster || node == "" {
				return errors.New("the certificate is of another cluster")
			}
			return admit(node, fingerprint(s.PeerCertificates[0]))
		},
	}
}

// ClientConfig reaches one node, whose certificate has a fingerprint.
func (m *Member) ClientConfig(node cay.NodeID, print string) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{m.cert}, RootCAs: m.roots, ServerName: string(node),
		VerifyConnection: func(s tls.ConnectionState) error {
			if fingerprint(s.PeerCertificates[0]) != print {
				return errors.New("the certificate is not the one that the records have of node " + string(node))
			}
			return nil
		},
	}
}

// Peer returns the node at the other end of a connection that ServerConfig took.
func Peer(s *tls.ConnectionState) cay.NodeID {
	_, node := named(s.PeerCertificates[0])
	return node
}

const (
	tokenPrefix = "cay_join_"
	tokenBytes  = 32
)

// Token lets a machine join. It is told once and kept nowhere.
type Token struct{ secret []byte }

// NewToken makes a token.
func NewToken() Token {
	secret := make([]byte, tokenBytes)
	rand.Read(secret)
	return Token{secret}
}

// ParseToken reads a token's text.
func ParseToken(text string) (Token, error) {
	digits, ok := strings.CutPrefix(strings.TrimSpace(text), tokenPrefix)
	secret, err := hex.DecodeString(digits)
	if !ok || err != nil || len(secret) != tokenBytes {
		return Token{}, cay.Errorf(cay.Invalid, "that is no join token").WithHint("cay cluster token on a member prints one: %s and 64 digits", tokenPrefix)
	}
	return Token{secret}, nil
}

func (t Token) String() string { return tokenPrefix + hex.EncodeToString(t.secret) }

// Digest is what the records have of the token.
func (t Token) Digest() string {
	sum := sha256.Sum256(append([]byte("cay join token\x00"), t.secret...))
	return hex.EncodeToString(sum[:])
}

// Seal encrypts what the token is to open; Open decrypts it.
func (t Token) Seal(plain []byte) (string, error) {
	key, err := t.key()
	if err != nil {
		return "", err
	}
	return key.Seal(plain, t.Digest()), nil
}

// Open decrypts what was sealed for the token.
func (t Token) Open(text string) ([]byte, error) {
	key, err := t.key()
	if err != nil {
		return nil, err
	}
	return key.Open(text, t.Digest())
}

func (t Token) key() (*seal.Key, error) {
	secret, err := hkdf.Key(sha256.New, t.secret, nil, "cay join bundle", 32)
	if err != nil {
		return nil, err
	}
	return seal.NewKey(secret)
}

// NewNodeID makes the id of a new member.
func NewNodeID() cay.NodeID {
	b := make([]byte, 6)
	rand.Read(b)
	return cay.NodeID("n" + hex.EncodeToString(b))
}
