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
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cay-run/cay/internal/config"
	"github.com/cay-run/cay/internal/edge/certs"
)

// tlsServer serves the answer of a handler as the real server does.
func tlsServer(t *testing.T, cfg config.Config, h http.Handler) (addr string, roots *x509.CertPool) {
	t.Helper()
	cfg.Data = t.TempDir()
	s := &Server{cfg: cfg, log: slog.New(slog.NewTextHandler(io.Discard, nil))}
	s.http = newHTTP(h, s.log)
	if err := errors.Join(s.openLocal(), s.openTLS()); err != nil {
		t.Fatal(err)
	}
	l, err := listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l = s.secure(l)
	served := make(chan error)
	go func() { served <- s.http.Serve(l) }()
	t.Cleanup(func() {
		s.http.Close()
		if err := <-served; err != http.ErrServerClosed {
			t.Errorf("Serve: %v", err)
		}
		s.Close()
	})
	roots = x509.NewCertPool()
	if text, err := os.ReadFile(certs.LocalPath(cfg.Data)); err == nil {
		roots.AppendCertsFromPEM(text)
	}
	return l.Addr().String(), roots
}

// to is a client that finds every host at one address.
func to(t *testing.T, addr string, roots *x509.CertPool, set func(*http.Protocols)) *http.Client {
	tr := &http.Transport{
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, addr)
		},
		TLSClientConfig: &tls.Config{RootCAs: roots}, Protocols: new(http.Protocols),
	}
	set(tr.Protocols)
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

func TestOnePortForAll(t *testing.T) {
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%d tls=%v %s", r.ProtoMajor, r.TLS != nil, r.Host)
	})
	cfg := config.Default()
	cfg.TLS, cfg.Domain = config.TLSLocal, "cay.test:8443"
	addr, roots := tlsServer(t, cfg, h)
	silent, err := net.Dial("tcp", addr) // holds no other client up
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	h1 := func(p *http.Protocols) { p.SetHTTP1(true) }
	h2 := func(p *http.Protocols) { p.SetHTTP2(true) }
	h2c := func(p *http.Protocols) { p.SetUnencryptedHTTP2(true) }
	for _, tt := range []struct {
		url  string
		set  func(*http.Protocols)
		want string
	}{
		{"http://localhost/", h1, "1 tls=false localhost"},
		{"http://localhost/", h2c, "2 tls=false localhost"},
		{"https://49983-iabc.cay.test/", h1, "1 tls=true 49983-iabc.cay.test"},
		{"https://api.cay.test/", h2, "2 tls=true api.cay.test"},
		{"https://127.0.0.1/", h2, "2 tls=true 127.0.0.1"},
	} {
		resp, err := to(t, addr, roots, tt.set).Get(tt.url)
		if err != nil {
			t.Errorf("%s: %v", tt.url, err)
			continue
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if string(body) != tt.want {
			t.Errorf("%s: %s, want %s", tt.url, body, tt.want)
		}
	}
	if _, err := to(t, addr, roots, h1).Get("https://evil.test/"); err == nil {
		t.Error("it has a certificate for any name")
	}
}

// A client has a thousand requests under way on one connection of HTTP/2.
func TestAThousandRequestsOnOneConnection(t *testing.T) {
	const all = 1000
	var under atomic.Int32
	full := make(chan struct{})
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if under.Add(1) == all {
			close(full)
		}
		select {
		case <-full:
		case <-r.Context().Done():
		}
	})
	cfg := config.Default()
	cfg.TLS, cfg.Domain = config.TLSLocal, "cay.test:8443"
	addr, roots := tlsServer(t, cfg, h)
	client := to(t, addr, roots, func(p *http.Protocols) { p.SetHTTP2(true) })
	client.Timeout = time.Minute
	client.Transport.(*http.Transport).MaxConnsPerHost = 1
	var work errgroup.Group
	for range all {
		work.Go(func() error {
			resp, err := client.Get("https://api.cay.test/")
			if err == nil {
				resp.Body.Close()
			}
			return err
		})
	}
	if err := work.Wait(); err != nil {
		t.Errorf("%d came in: %v", under.Load(), err)
	}
}

// Keys do not cross a wire in the clear where the server speaks TLS.
func TestPlainHTTPFromElsewhere(t *testing.T) {
	h := onlyTLS(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "in") }))
	for _, tt := range []struct {
		from, accept string
		tls          bool
		status       int
		want         string
	}{
		{"192.0.2.1:5", "text/html,*/*", false, 308, "https://box:7070/a?b"},
		{"192.0.2.1:5", "*/*", false, 403, "use https://box:7070"},
		{"192.0.2.1:5", "*/*", true, 200, "in"},
		{"127.0.0.1:5", "*/*", false, 200, "in"},
		{"[::1]:5", "*/*", false, 200, "in"},
	} {
		r := httptest.NewRequest("GET", "/a?b", nil)
		r.Host, r.RemoteAddr = "box:7070", tt.from
		r.Header.Set("Accept", tt.accept)
		if tt.tls {
			r.TLS = &tls.ConnectionState{}
		}
		rec := httptest.NewRecorder()
		h.ServeHTTP(rec, r)
		if rec.Code != tt.status || !strings.Contains(rec.Header().Get("Location")+rec.Body.String(), tt.want) {
			t.Errorf("%+v: %d %v %s", tt, rec.Code, rec.Header(), rec.Body)
		}
	}
}
