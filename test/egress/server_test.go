package egress_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/edge/proxy"
	"github.com/cay-run/cay/internal/machine/egress"
	"github.com/cay-run/cay/internal/machine/vnet"
)

// The server's domain, and two sandboxes' ports below it.
const (
	ownDomain = "cay.example"
	portOne   = "3000-one." + ownDomain
	portTwo   = "3000-two." + ownDomain
)

// handed is a listener of connections that the egress proxy hands over.
type handed struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func (h *handed) Accept() (net.Conn, error) {
	select {
	case c := <-h.conns:
		return c, nil
	case <-h.done:
		return nil, net.ErrClosed
	}
}

func (h *handed) Close() error   { h.once.Do(func() { close(h.done) }); return nil }
func (h *handed) Addr() net.Addr { return &net.TCPAddr{} }

// ownServer is the host's own server, with the real proxy in front of two
// sandboxes on this machine.
func (w *world) ownServer() *egress.Server {
	for _, name := range []string{portOne, portTwo, "api." + ownDomain} {
		w.certificate(name)
	}
	app, err := net.Listen("tcp4", "127.0.0.1:0")
	w.must(err)
	guests := &http.Server{Handler: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w.hit("sandbox %s from=%s key=%s", r.Host, r.Header.Get("X-Forwarded-For"), r.Header.Get("X-Key"))
		fmt.Fprintf(rw, "hello from %s, key %s", r.Host, r.Header.Get("X-Key"))
	})}
	go guests.Serve(app)
	w.t.Cleanup(func() { guests.Close() })
	front := proxy.New(proxy.Config{
		Lookup: func(id cay.SandboxID) (proxy.Target, error) {
			switch id {
			case "one":
				return proxy.Target{Instance: "one", Addr: netip.MustParseAddr("127.0.0.1"), Public: true}, nil
			case "two":
				return proxy.Target{Instance: "two", Addr: netip.MustParseAddr("127.0.0.1"), TrafficToken: "token"}, nil
			}
			return proxy.Target{}, cay.Errorf(cay.NotFound, "no sandbox %s", id)
		},
		Paths: true, Domain: ownDomain, Dial: w.dialTo(app.Addr().String()),
	})
	l := &handed{conns: make(chan net.Conn), done: make(chan struct{})}
	conf := &tls.Config{NextProtos: []string{"h2", "http/1.1"}, GetCertificate: func(h *tls.ClientHelloInfo) (*tls.Certificate, error) {
		c, ok := w.certs[h.ServerName]
		if !ok {
			return nil, errors.New("no certificate")
		}
		return &c, nil
	}}
	server := &http.Server{Handler: front.Hosts(ownDomain), TLSConfig: conf, Protocols: protocols()}
	go server.Serve(l)
	w.t.Cleanup(func() { server.Close(); l.Close(); front.Close() })
	return &egress.Server{
		Name:  func(name string) bool { return proxy.IsPort(name, ownDomain) },
		Ports: []uint16{443, 7070},
		Take: func(c net.Conn, secure bool) {
			if secure {
				c = tls.Server(c, conf)
			}
			select {
			case l.conns <- c:
			case <-l.done:
				c.Close()
			}
		},
	}
}

func anyName(*world) cay.NetworkPolicy { return cay.DefaultNetwork() }

// byHost is a policy that allows one sandbox's name, and sets a header for it.
func byHost(*world) cay.NetworkPolicy {
	return cay.NetworkPolicy{AllowInternet: true, DenyOut: []string{cay.AllTraffic}, AllowOut: []string{portOne}}
}

// toServer asks for a path of a host at the gateway, or at another address.
func toServer(w *world, at netip.Addr, port uint16, sni, host, path string, header ...string) (reply, error) {
	return w.client(at, port, sni, "h2").get(host, path, header...)
}

// dialTo is a dialer that reaches one address whatever it is asked for.
func (w *world) dialTo(address string) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, address)
	}
}

// own is an address of the host's.
func (w *world) own() netip.Addr { return w.near.Next() }

var hairpin = group{"public names of sandboxes", anyName, []attempt{
	{"the name leads to the gateway", func(w *world) error {
		return errors.Join(answers(w, "udp4", portOne, dnsmessage.TypeA, vnet.Gateway), answers(w, "udp4", portOne, dnsmessage.TypeAAAA), unseen(w, "dns"))
	}},
	{"a sandbox by its name", func(w *world) error {
		got, err := toServer(w, vnet.Gateway, 443, portOne, portOne, "/")
		return errors.Join(status(got, err, 200, "hello from "+portOne), saw(w, "from="+w.slot.Addr.String()))
	}},
	{"a sandbox by its name and the server's port, over HTTP/1", func(w *world) error {
		got, err := w.client(vnet.Gateway, 7070, portOne).get(portOne+":7070", "/")
		return status(got, err, 200, "hello from "+portOne+":7070")
	}},
	{"a sandbox without TLS", func(w *world) error {
		got, err := w.client(vnet.Gateway, 7070, "").get(portOne, "/")
		return status(got, err, 200, "hello from "+portOne)
	}},
	{"a sandbox at the host's own address", func(w *world) error {
		got, err := toServer(w, w.own(), 443, portOne, portOne, "/")
		return status(got, err, 200, "hello from "+portOne)
	}},
	{"another port of the host's own address", func(w *world) error { return closed(w, w.own(), 22) }},
	{"a private sandbox without its token", func(w *world) error {
		got, err := toServer(w, vnet.Gateway, 443, portTwo, portTwo, "/")
		return errors.Join(status(got, err, 403, "is missing"), unseen(w, "sandbox "))
	}},
	{"a private sandbox with its token", func(w *world) error {
		got, err := toServer(w, vnet.Gateway, 443, portTwo, portTwo, "/", "e2b-traffic-access-token", "token")
		return status(got, err, 200, "hello from "+portTwo)
	}},
	{"a sandbox that is not there", func(w *world) error {
		w.certificate("3000-none." + ownDomain)
		got, err := toServer(w, vnet.Gateway, 443, "3000-none."+ownDomain, "3000-none."+ownDomain, "/")
		return status(got, err, 502, "was not found")
	}},
	{"the API by its name", func(w *world) error {
		_, err := toServer(w, vnet.Gateway, 443, "api."+ownDomain, "api."+ownDomain, "/sandboxes")
		if err == nil {
			return errors.New("it got through")
		}
		return nil
	}},
	{"the API behind a sandbox's name", func(w *world) error {
		for _, host := range []string{"api." + ownDomain, ownDomain, "localhost", "127.0.0.1:7070", portTwo, "3000-one.other.example"} {
			got, err := toServer(w, vnet.Gateway, 443, portOne, host, "/sandboxes", "e2b-traffic-access-token", "token")
			if err := status(got, err, 421, ""); err != nil {
				return fmt.Errorf("%s: %w", host, err)
			}
		}
		return unseen(w, "sandbox ")
	}},
	{"the API without TLS", func(w *world) error {
		for _, host := range []string{"api." + ownDomain, ownDomain, "localhost", vnet.Gateway.String()} {
			got, err := w.client(vnet.Gateway, 7070, "").get(host, "/sandboxes")
			if err := status(got, err, 403, "closed range"); err != nil {
				return fmt.Errorf("%s: %w", host, err)
			}
		}
		return nil
	}},
	{"another sandbox by path or by headers", func(w *world) error {
		got, err := toServer(w, vnet.Gateway, 443, portOne, portOne, "/s/two/3000/", "E2b-Sandbox-Id", "two", "E2b-Sandbox-Port", "3000")
		return errors.Join(status(got, err, 200, "hello from "+portOne))
	}},
	{"without a name", func(w *world) error {
		_, err := w.says(vnet.Gateway, 7070, "\x00\x01\x02\x03")
		return refused(w, err)
	}},
	{"an upgrade", func(w *world) error {
		c, err := w.tcp(vnet.Gateway, 7070)
		if err != nil {
			return err
		}
		fmt.Fprintf(c, "CONNECT %s:443 HTTP/1.1\r\nHost: %s\r\n\r\n", portOne, portOne)
		b := make([]byte, 64)
		n, _ := c.Read(b)
		if !strings.Contains(string(b[:n]), " 403 ") {
			return fmt.Errorf("CONNECT is answered with %q", b[:n])
		}
		return nil
	}},
	{"a policy that allows one name", func(w *world) error {
		w.policy(byHost(w))
		got, err := toServer(w, vnet.Gateway, 443, portOne, portOne, "/")
		if err := errors.Join(status(got, err, 200, "hello"), answers(w, "udp4", portOne, dnsmessage.TypeA, vnet.Gateway)); err != nil {
			return err
		}
		w.seen()
		if err := code(w, portTwo, dnsmessage.TypeA, dnsmessage.RCodeRefused); err != nil {
			return err
		}
		if err := alert(w, vnet.Gateway, 443, clientHello(1<<14, false, portTwo)); err != nil {
			return err
		}
		got, err = w.client(vnet.Gateway, 7070, "").get(portTwo, "/")
		return errors.Join(status(got, err, 403, "no rule allows the name"), unseen(w, "sandbox "))
	}},
	{"a policy that allows nothing", func(w *world) error {
		w.policy(cay.NetworkPolicy{})
		return errors.Join(alert(w, vnet.Gateway, 443, clientHello(1<<14, false, portOne)), unseen(w, "sandbox "))
	}},
	{"a policy with header rules", func(w *world) error {
		p := cay.DefaultNetwork()
		p.Rules = map[string][]cay.HeaderRule{portOne: {{Headers: map[string]string{"X-Key": "${e2b.secrets.key}"}}}}
		w.policy(p)
		got, err := toServer(w, vnet.Gateway, 443, portOne, portOne, "/")
		return errors.Join(status(got, err, 200, "key ************"), saw(w, "key="+secretValue))
	}},
	{"a policy that changes cuts the connection", func(w *world) error {
		c := w.client(vnet.Gateway, 443, portOne, "h2")
		got, err := c.get(portOne, "/")
		if err := status(got, err, 200, "hello"); err != nil {
			return err
		}
		w.policy(cay.NetworkPolicy{})
		w.seen()
		if got, err := c.get(portOne, "/"); err == nil {
			return fmt.Errorf("it goes on: %d", got.status)
		}
		return unseen(w, "sandbox ")
	}},
}}
