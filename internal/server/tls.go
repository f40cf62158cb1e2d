package server

import (
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cay-run/cay/internal/config"
	"github.com/cay-run/cay/internal/conns"
	"github.com/cay-run/cay/internal/edge/certs"
)

// openLocal opens the authority of this installation, where the server's
// certificates are of it.
func (s *Server) openLocal() (err error) {
	c := s.cfg
	if c.TLSMode() != config.TLSLocal {
		return nil
	}
	if s.local, err = certs.OpenLocal(c.Data, certs.Names(c.ClientDomain(), c.TLSNames), s.log); err != nil {
		return err
	}
	_, err = certs.Bundle(c.Data) // for users who may read it and not write it
	return err
}

// openTLS finds the certificates that the configuration wants; nil is none.
func (s *Server) openTLS() error {
	var get certs.Getter
	var err error
	c := s.cfg
	switch c.TLSMode() {
	case config.TLSFiles:
		get, err = certs.Files(c.TLSCert, c.TLSKey, s.log)
	case config.TLSLocal:
		get = s.local.Get
	case config.TLSACME:
		var managed *certs.Managed
		managed, err = certs.OpenACME(certs.ACME{
			Data: c.Data, Domain: c.Domain, Email: c.ACMEEmail, Directory: c.ACMEDirectory, Roots: c.ACMERoots,
			DNS: c.ACMEDNS, TSIG: c.ACMETSIG, Resolver: c.ACMEResolver, Log: s.log,
		})
		if err == nil {
			s.later(managed.Close)
			get = managed.Get
		}
	default:
		return nil
	}
	if err != nil {
		return err
	}
	s.tls = get.Config()
	s.http.Protocols.SetHTTP2(true)
	s.http.Handler = onlyTLS(s.http.Handler)
	return nil
}

// secure is a listener that takes TLS too, where there are certificates.
func (s *Server) secure(l net.Listener) net.Listener {
	if s.tls == nil {
		return l
	}
	return listenEither(l, s.tls)
}

// onlyTLS keeps keys off the wire: a client from elsewhere in the clear is shown
// the way, a browser by itself. On this machine there is no wire, and perhaps a
// proxy that has ended TLS for us.
func onlyTLS(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		from, err := netip.ParseAddrPort(r.RemoteAddr)
		if r.TLS != nil || err == nil && from.Addr().Unmap().IsLoopback() {
			next.ServeHTTP(w, r)
			return
		}
		if r.Method == http.MethodGet && strings.Contains(r.Header.Get("Accept"), "text/html") {
			http.Redirect(w, r, "https://"+r.Host+r.URL.RequestURI(), http.StatusPermanentRedirect)
			return
		}
		w.Header().Set("Content-Type", "application/json; charset=utf-8")
		w.WriteHeader(http.StatusForbidden)
		body, _ := json.Marshal(map[string]any{"code": http.StatusForbidden, "message": "This server speaks TLS: use https://" + r.Host})
		_, _ = w.Write(body)
	})
}

// helloTime is how long a connection may take to say its first byte.
const helloTime = 10 * time.Second

// either accepts connections with TLS and without on one port: by their first
// byte, which is 22 in TLS and a letter in HTTP.
type either struct {
	net.Listener
	conf *tls.Config

	ready chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func listenEither(l net.Listener, conf *tls.Config) net.Listener {
	e := &either{Listener: l, conf: conf, ready: make(chan net.Conn), done: make(chan struct{})}
	go e.take()
	return e
}

// take lets each connection think about its first byte by itself.
func (e *either) take() {
	for conn := range conns.Each(e.Listener) {
		go e.sort(conn)
	}
	e.stop()
}

func (e *either) stop() { e.once.Do(func() { close(e.done) }) }

func (e *either) sort(conn net.Conn) {
	first, err := peek(conn)
	if err != nil {
		conn.Close()
		return
	}
	if first == 22 {
		conn = tls.Server(conn, e.conf)
	}
	select {
	case e.ready <- conn:
	case <-e.done:
		conn.Close()
	}
}

// peek reads a connection's first byte and leaves it there.
func peek(conn net.Conn) (byte, error) {
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return 0, fmt.Errorf("%T is no TCP connection", conn)
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return 0, err
	}
	if err := conn.SetReadDeadline(time.Now().Add(helloTime)); err != nil {
		return 0, err
	}
	var b [1]byte
	var n int
	var failed error
	err = raw.Read(func(fd uintptr) bool {
		n, _, failed = unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK)
		return failed != unix.EAGAIN
	})
	if err = errors.Join(err, failed); err != nil {
		return 0, err
	}
	if n == 0 {
		return 0, net.ErrClosed
	}
	return b[0], conn.SetReadDeadline(time.Time{})
}

// Accept returns the next connection that has said something.
func (e *either) Accept() (net.Conn, error) {
	select {
	case conn := <-e.ready:
		return conn, nil
	case <-e.done:
		return nil, net.ErrClosed
	}
}

// Close ends accepting.
func (e *either) Close() error {
	e.stop()
	return e.Listener.Close()
}
