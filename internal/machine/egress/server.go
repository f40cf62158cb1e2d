package egress

import (
	"bufio"
	"context"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/cay-run/cay"
)

// Server is this host's own server, as guests reach it: by the names of
// sandboxes' ports below its domain, and by no other.
type Server struct {
	// Name reports whether a name is one of them. It is in lower case.
	Name func(name string) bool
	// Ports are those that the names are used with.
	Ports []uint16
	// Take serves a guest's connection, which begins with TLS or with HTTP. It
	// must answer for the names of Name alone.
	Take func(c net.Conn, tls bool)
}

// toServer reports whether a connection may be for the server: it was sent to
// the gateway, where our name server leads, or to an address of the host's own.
// The packet filter diverts none to other closed addresses.
func (p *Proxy) toServer(dst netip.AddrPort) bool {
	s := p.cfg.Server
	return s != nil && slices.Contains(s.Ports, dst.Port()) && (dst.Addr() == p.cfg.Gateway || p.cfg.Closed(dst.Addr()))
}

// isServer reports whether a guest's clean name is for the server: not where a
// SOCKS server finds addresses.
func (p *Proxy) isServer(r *rules, name string) bool {
	return p.cfg.Server != nil && r.proxy == nil && p.cfg.Server.Name(name)
}

// decideServer says whether a guest may reach a sandbox by its public name: by
// the rules of names, because the address means nothing.
func (r *rules) decideServer(name string) verdict {
	if i, ok := r.names.find(name); ok {
		return verdict{allow: true, rule: "allowOut " + r.policy.AllowOut[i], named: true}
	}
	if r.everything() {
		return verdict{allow: true, rule: "internet access"}
	}
	return verdict{rule: "no rule allows the name"}
}

// handleHost takes a connection to the gateway, or to the host itself, on. It
// is for the package cache or for the server by the name that it asks for.
func (p *Proxy) handleHost(f *flow, r *rules) {
	br := bufio.NewReaderSize(f.conn, peekSize)
	first, err := f.first(br, firstWord)
	switch {
	case err != nil:
		p.drop(f, "tcp", "", closedRange)
	case first == recordHandshake:
		hello, err := readHello(br)
		_ = f.conn.SetReadDeadline(time.Time{})
		switch {
		case err == nil && p.toServer(f.dst) && p.isServer(r, hello.name):
			p.handleServer(f, br, r, hello.name)
		case err == nil && p.isPackages(f.dst) && p.cached(r, hello.name) && p.cfg.Authority != nil:
			p.web.serve(f, br, hello.name)
		case err == nil && p.toGateway(f.dst, r) && r.decide(f.dst.Addr(), hello.name).ask:
			p.handleAsked(f, br, r, hello, r.decide(f.dst.Addr(), hello.name))
		case p.isPackages(f.dst):
			p.dropTLS(f, hello.name, notCached)
		default:
			p.dropTLS(f, hello.name, closedRange)
		}
	case isHTTP(br):
		_ = f.conn.SetReadDeadline(time.Time{})
		p.web.serve(f, br, "")
	default:
		p.drop(f, "tcp", "", closedRange)
	}
}

// closedRange is why a connection to an address that no policy opens is refused.
const closedRange = "closed range"

// handleServer has the server take a connection under TLS that a guest may
// make. One whose requests get headers is read here first.
func (p *Proxy) handleServer(f *flow, br *bufio.Reader, r *rules, name string) {
	v := r.decideServer(name)
	if !v.allow {
		p.dropTLS(f, name, v.rule)
		return
	}
	if _, dressed := r.headers.find(name); dressed && p.cfg.Authority != nil {
		p.web.serve(f, br, name)
		return
	}
	f.allowed("tls", name, v)
	p.cfg.Server.Take(&visit{Conn: f.conn, r: br, flow: f}, true)
}

// decideServer decides about a request to the server.
func (w *web) decideServer(v *visit, r *http.Request, host string) (verdict, *denial) {
	rules := v.flow.guest.rules.Load()
	decision := rules.decideServer(host)
	switch {
	case !w.p.isServer(rules, host):
		return decision, &denial{http.StatusForbidden, closedRange}
	case v.tls != "" && host != v.tls:
		return decision, &denial{http.StatusMisdirectedRequest, "the host of the request is not the server name of TLS, " + v.tls}
	case r.Method == http.MethodConnect:
		return decision, &denial{http.StatusForbidden, "CONNECT"}
	case !decision.allow:
		return decision, &denial{http.StatusForbidden, decision.rule}
	}
	return decision, nil
}

// dialServer connects to the server within this process, in the name of a
// guest.
func (p *Proxy) dialServer(_ context.Context, v *visit) (net.Conn, error) {
	here, there := net.Pipe()
	go p.cfg.Server.Take(&inner{Conn: there, from: v.flow.conn.RemoteAddr()}, v.tls != "")
	return here, nil
}

// inner is the server's end of a connection within this process.
type inner struct {
	net.Conn
	from net.Addr
}

func (c *inner) RemoteAddr() net.Addr { return c.from }

// answerServer leads a guest that may reach a sandbox by its public name to the
// gateway, from where its connections get to the server.
func (p *Proxy) answerServer(g *guest, h dnsmessage.Header, q dnsmessage.Question, r *rules, name string) []byte {
	if v := r.decideServer(name); !v.allow {
		g.refuse(cay.Connection{Protocol: "dns", Name: name, Address: "dns", Rule: v.rule})
		return reply(h, q, dnsmessage.RCodeRefused, nil)
	}
	return p.answerCached(h, q)
}
