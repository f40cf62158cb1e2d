package egress

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/netip"

	"golang.org/x/net/dns/dnsmessage"
)

// Packages answers for hosts that sandboxes install packages from. Guests that
// policy lets reach such a host are told that the gateway is its address.
type Packages interface {
	// Has reports whether it answers for a host, in lower case.
	Has(name string) bool
	// Serve answers a request to a host that Has knows.
	Serve(rw http.ResponseWriter, r *http.Request, scheme, name string)
}

// cached reports whether a guest is served a host from the cache: one that it
// may reach by name, or because it may reach everything, by the straight way.
// Where addresses, a proxy or headers matter, the host itself is asked, as if
// there were no cache: it is no way around any policy.
func (p *Proxy) cached(r *rules, name string) bool {
	if p.cfg.Packages == nil || !p.cfg.Packages.Has(name) || r.proxy != nil {
		return false
	}
	if _, dressed := r.headers.find(name); dressed {
		return false
	}
	_, named := r.names.find(name)
	return named || r.policy.AllowInternet && len(r.denied) == 0
}

func (p *Proxy) isPackages(dst netip.AddrPort) bool {
	return p.cfg.Packages != nil && dst.Addr() == p.cfg.Gateway
}

// answerCached answers with the gateway, for a short time: policies change.
func (p *Proxy) answerCached(h dnsmessage.Header, q dnsmessage.Question) []byte {
	if q.Type != dnsmessage.TypeA {
		return reply(h, q, dnsmessage.RCodeSuccess, nil)
	}
	return replyFor(h, q, dnsmessage.RCodeSuccess, []netip.Addr{p.cfg.Gateway}, memberTTL)
}

// notCached is why a connection to the cache is refused.
const notCached = "the package cache is not for it"

// servePackages has the cache answer a request, if it is for one of its hosts
// and the guest may reach that now.
func (w *web) servePackages(rw http.ResponseWriter, r *http.Request, v *visit, host string) {
	var no *denial
	switch {
	case v.tls != "" && host != v.tls:
		no = &denial{http.StatusMisdirectedRequest, "the host of the request is not the server name of TLS, " + v.tls}
	case r.Method == http.MethodConnect || !w.p.cached(v.flow.guest.rules.Load(), host):
		no = &denial{http.StatusForbidden, notCached}
	}
	if no != nil {
		v.flow.refused("http", host, no.rule)
		w.deny(rw, r, v, host, *no)
		return
	}
	v.flow.allowed("http", host, verdict{rule: "package cache"})
	scheme := "http"
	if v.tls != "" {
		scheme = "https"
	}
	w.p.cfg.Packages.Serve(rw, r, scheme, host)
}

// DialHost connects to a host by its name, as guests may: to addresses that
// are open to them.
func (p *Proxy) DialHost(ctx context.Context, network, address string) (net.Conn, error) {
	name, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	a, err := p.names.lookup(ctx, name)
	if err != nil {
		return nil, err
	}
	err = errors.New(name + " has no address that is open to sandboxes")
	for _, addr := range a.addrs {
		var c net.Conn
		within, cancel := context.WithTimeout(ctx, dialWithin)
		c, err = p.cfg.Dial(within, "tcp4", net.JoinHostPort(addr.String(), port))
		cancel()
		if err == nil {
			return c, nil
		}
	}
	return nil, err
}
