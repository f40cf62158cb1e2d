package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/cay-run/cay/internal/config"
	"github.com/cay-run/cay/internal/edge/certs"
	"github.com/cay-run/cay/internal/edge/proxy"

	"github.com/cay-run/cay"
)

// elsewhere is a connection whose other end is not this machine.
type elsewhere struct{ net.Conn }

func (elsewhere) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(10, 201, 0, 7), Port: 1} }

// A guest's connection is served by the proxy alone, with the server's own
// certificates, as one from elsewhere.
func TestInner(t *testing.T) {
	app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s from %s", r.Host, r.Header.Get("X-Forwarded-For"))
	}))
	defer app.Close()
	cfg := config.Default()
	cfg.Data, cfg.TLS, cfg.Domain = t.TempDir(), config.TLSLocal, "cay.test:8443"
	s := &Server{cfg: cfg, log: slog.New(slog.DiscardHandler), ready: make(chan struct{})}
	if err := s.openTelemetry(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.proxy = proxy.New(proxy.Config{
		Domain: cfg.Domain, Paths: true,
		Lookup: func(cay.SandboxID) (proxy.Target, error) {
			return proxy.Target{Instance: "i", Addr: netip.MustParseAddr("127.0.0.1"), Public: true}, nil
		},
		Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, app.Listener.Addr().String())
		},
	})
	defer s.proxy.Close()
	api := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the API was reached") })
	s.http = &http.Server{Handler: api, Protocols: new(http.Protocols), ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug)}
	s.http.Protocols.SetHTTP1(true)
	if err := errors.Join(s.openLocal(), s.openTLS()); err != nil {
		t.Fatal(err)
	}
	in := s.inner()
	server := s.innerServer()
	served := make(chan error)
	go func() { served <- server.Serve(s.arrivals) }()
	close(s.ready)

	text, err := os.ReadFile(certs.LocalPath(cfg.Data))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(text)
	ask := func(url, host string) (int, string) {
		dial := func(secure bool) func(context.Context, string, string) (net.Conn, error) {
			return func(context.Context, string, string) (net.Conn, error) {
				here, there := net.Pipe()
				go in.Take(elsewhere{there}, secure)
				return here, nil
			}
		}
		tr := &http.Transport{DialContext: dial(strings.HasPrefix(url, "https")), TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: true}
		defer tr.CloseIdleConnections()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = host
		resp, err := tr.RoundTrip(req)
		if err != nil {
			t.Fatalf("%s: %v", url, err)
		}
		defer resp.Body.Close()
		b, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, string(b)
	}
	const name = "3000-iabc.cay.test"
	if code, body := ask("https://"+name+"/sandboxes", name+":8443"); code != 200 || body != name+":8443 from 10.201.0.7" {
		t.Errorf("a sandbox: %d %s", code, body)
	}
	for _, host := range []string{"api.cay.test", "cay.test", "localhost", "3000-iother.cay.test", "3000-iabc.other.test"} {
		if code, body := ask("https://"+name+"/sandboxes", host); code != 421 {
			t.Errorf("%s: %d %s", host, code, body)
		}
	}
	if code, body := ask("http://"+name+"/", name); code != 403 || !strings.Contains(body, "speaks TLS") {
		t.Errorf("in the clear: %d %s", code, body)
	}
	for name, want := range map[string]bool{
		name: true, "49983-iabc-client.cay.test": true, "api.cay.test": false, "cay.test": false,
		"3000-iabc.cay.test.evil.test": false, "3000-iabc.sub.cay.test": false, "x-iabc.cay.test": false,
	} {
		if in.Name(name) != want {
			t.Errorf("%s is a sandbox's name: %v", name, !want)
		}
	}
	server.Close()
	if err := <-served; err != http.ErrServerClosed {
		t.Errorf("Serve: %v", err)
	}
	late, there := net.Pipe()
	go in.Take(there, false)
	if _, err := late.Read(make([]byte, 1)); err == nil {
		t.Error("a connection is taken after the end")
	}
}
