package certs

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

func local(t *testing.T, data string, names ...string) *Local {
	t.Helper()
	l, err := OpenLocal(data, names, quiet)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func trusts(t *testing.T, l *Local) *x509.CertPool {
	t.Helper()
	text, err := os.ReadFile(l.files.Cert)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		t.Fatal("no certificate")
	}
	return pool
}

func TestLocal(t *testing.T) {
	data := t.TempDir()
	l := local(t, data, Names("cay.test:8443", []string{"box", "192.0.2.7"})...)
	pool := trusts(t, l)
	c, err := l.Get(&tls.ClientHelloInfo{})
	if err != nil {
		t.Fatal(err)
	}
	for name, good := range map[string]bool{
		"localhost": true, "3000-iabc.localhost": true, "cay.test": true, "49983-iabc.cay.test": true, "api.cay.test": true,
		"box": true, "127.0.0.1": true, "::1": true, "192.0.2.7": true,
		"example.com": false, "cay.test.example.com": false, "192.0.2.8": false,
	} {
		c, err := l.Get(&tls.ClientHelloInfo{ServerName: name})
		if err != nil {
			t.Fatal(err)
		}
		_, err = c.Leaf.Verify(x509.VerifyOptions{Roots: pool, DNSName: name})
		if (err == nil) != good {
			t.Errorf("%s: %v", name, err)
		}
	}
	if again, _ := l.Get(&tls.ClientHelloInfo{}); again != c {
		t.Error("a certificate is made for every connection")
	}
	if info, err := os.Stat(filepath.Join(data, "tls", "authority.key")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the key: %v, %v", info.Mode(), err)
	}
	for i := range 3 * maxLeaves {
		if _, err := l.Get(&tls.ClientHelloInfo{ServerName: fmt.Sprintf("x%d.localhost", i)}); err != nil {
			t.Fatal(err)
		}
	}
	if len(l.leaves) > maxLeaves {
		t.Errorf("%d certificates are kept", len(l.leaves))
	}
	if same := local(t, data, Names("cay.test", nil)...); !same.ca.Cert.Equal(l.ca.Cert) {
		t.Error("fewer names make another authority")
	}
	other := local(t, data, Names("other.test", nil)...)
	if other.ca.Cert.Equal(l.ca.Cert) {
		t.Error("the authority signs for names that it says it is not for")
	}
}

// A client that trusts the authority trusts it for this server's names alone.
func TestLocalIsBounded(t *testing.T) {
	l := local(t, t.TempDir(), Names("cay.test", nil)...)
	pool := trusts(t, l)
	l.names = append(l.names, "bank.example")
	c, err := l.Get(&tls.ClientHelloInfo{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Leaf.Verify(x509.VerifyOptions{Roots: pool, DNSName: "bank.example"}); err == nil {
		t.Error("it signs for any name")
	}
}

// put writes the local authority's certificate as an operator's.
func put(t *testing.T, dir string, l *Local, at time.Time) (cert, key string) {
	t.Helper()
	c, err := l.Get(&tls.ClientHelloInfo{})
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(c.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	cert, key = filepath.Join(dir, "c.pem"), filepath.Join(dir, "k.pem")
	for path, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: c.Certificate[0]}, key: {Type: "PRIVATE KEY", Bytes: der}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, at, at); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key
}

func TestFiles(t *testing.T) {
	dir := t.TempDir()
	first := local(t, t.TempDir(), Names("cay.test", nil)...)
	second := local(t, t.TempDir(), Names("cay.test", nil)...)
	cert, key := put(t, dir, first, time.Unix(1e9, 0))
	f := &files{cert: cert, key: key, log: quiet}
	if err := f.load(); err != nil {
		t.Fatal(err)
	}
	shown := func() string {
		f.looked = time.Time{} // as if time had gone by
		c, err := f.get(nil)
		if err != nil {
			t.Fatal(err)
		}
		return c.Leaf.SerialNumber.String()
	}
	before := shown()
	put(t, dir, second, time.Unix(1e9+60, 0))
	after := shown()
	if c, _ := second.Get(&tls.ClientHelloInfo{}); after == before || after != c.Leaf.SerialNumber.String() {
		t.Errorf("after a renewal %s is shown, before %s", after, before)
	}
	if err := os.WriteFile(key, []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	if shown() != after {
		t.Error("a damaged key ends what worked")
	}
	if _, err := Files(cert, key, quiet); err == nil {
		t.Error("a damaged key is taken at the start")
	}
}

func TestHandshake(t *testing.T) {
	l := local(t, t.TempDir(), Names("cay.test", nil)...)
	client, server := net.Pipe()
	go func() {
		s := tls.Server(server, Getter(l.Get).Config())
		_ = s.Handshake()
	}()
	c := tls.Client(client, &tls.Config{RootCAs: trusts(t, l), ServerName: "3000-iabc.cay.test", NextProtos: []string{"h2"}})
	if err := c.Handshake(); err != nil || c.ConnectionState().NegotiatedProtocol != "h2" {
		t.Errorf("%v, %+v", err, c.ConnectionState().NegotiatedProtocol)
	}
	client.Close()
	server.Close()
}
