package server

import (
	"crypto/tls"
	"net"
	"net/http"
	"sync"

	"github.com/cay-run/cay/internal/edge/proxy"
	"github.com/cay-run/cay/internal/machine/egress"
	"github.com/cay-run/cay/internal/trail"
)

// A sandbox reaches another by its public name, where that leads to this
// server: its connection is handed over within this process, and served as one
// from elsewhere, by the proxy alone.

// arrivals is a listener of connections that others accepted.
type arrivals struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func newArrivals() *arrivals {
	return &arrivals{conns: make(chan net.Conn), done: make(chan struct{})}
}

func (a *arrivals) Accept() (net.Conn, error) {
	select {
	case c := <-a.conns:
		return c, nil
	case <-a.done:
		return nil, net.ErrClosed
	}
}

func (a *arrivals) Close() error   { a.once.Do(func() { close(a.done) }); return nil }
func (a *arrivals) Addr() net.Addr { return &net.TCPAddr{} }

// inner is this server as its own guests reach it.
func (s *Server) inner() *egress.Server {
	s.arrivals = newArrivals()
	s.later(s.arrivals.Close)
	domain := s.cfg.ClientDomain()
	return &egress.Server{
		Name:  func(name string) bool { return proxy.IsPort(name, domain) },
		Ports: s.cfg.ClientPorts(),
		Take: func(c net.Conn, secure bool) {
			select {
			case <-s.ready:
			case <-s.arrivals.done:
				c.Close()
				return
			}
			conf := s.tls
			switch {
			case secure && conf == nil:
				c.Close()
				return
			case secure:
				c = tls.Server(c, conf)
			}
			select {
			case s.arrivals.conns <- c:
			case <-s.arrivals.done:
				c.Close()
			}
		},
	}
}

// innerServer serves the connections of guests.
func (s *Server) innerServer() *http.Server {
	var face http.Handler = s.proxy.Hosts(s.cfg.ClientDomain())
	if s.tls != nil {
		face = onlyTLS(face)
	}
	h := newHTTP(trail.Follow(trail.REST, face), s.log)
	h.BaseContext = s.watched
	return h
}
