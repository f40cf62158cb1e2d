// Package egress_test is the egress conformance suite: named attempts of a
// guest to reach closed places, against the real packet filter and the real
// egress proxy. A network namespace stands for the guest, or a sandbox with the
// capabilities of Docker (CAY_EGRESS_GUEST=docker); another namespace stands for the
// internet, whose servers the tests run themselves.
package egress_test

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"net/textproto"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/net/dns/dnsmessage"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/keys/identity"
	"github.com/cay-run/cay/internal/machine/egress"
	"github.com/cay-run/cay/internal/machine/vnet"
	"github.com/cay-run/cay/internal/machine/vnet/nettest"
)

// patience bounds what must happen; it is long because CI is slow.
const patience = 60 * time.Second

// world is a host with one guest and an internet.
type world struct {
	t       *testing.T
	net     *vnet.Manager
	proxy   *egress.Proxy
	slot    vnet.Slot
	guest   guestSockets // in the slot
	spec    cay.InstanceSpec
	guestCA *x509.CertPool // whom the guest trusts: servers and the authority
	onlyCay *x509.CertPool // the authority alone

	a, b, c netip.Addr   // public
	near    netip.Addr   // the host's neighbour
	private []netip.Addr // routed by the host, closed to guests
	path    string       // the internet's namespace
	certs   map[string]tls.Certificate

	mu      sync.Mutex
	zone    map[string][]netip.Addr
	hits    []string // what servers saw
	secrets map[string]string
	issuer  *identity.Issuer
	socks   []string // what the SOCKS server was asked
	asks    *person  // that the proxy asks; nil answers no
}

func unique() (string, [3]byte) {
	const letters = "abcdefghijklmnopqrstuvwxyz0123456789"
	var b [8]byte
	rand.Read(b[:])
	name := "t"
	for _, c := range b[:5] {
		name += string(letters[int(c)%len(letters)])
	}
	return name, [3]byte(b[5:])
}

func newWorld(t *testing.T) *world {
	if os.Geteuid() != 0 {
		t.Skip("NOT TESTED HERE: network namespaces need root")
	}
	w := &world{t: t, zone: map[string][]netip.Addr{}, secrets: map[string]string{"key": "s3cr3t-v4lue"}, certs: map[string]tls.Certificate{}}
	w.internet()
	w.names()
	w.servers()
	name, b := unique()
	authority, err := egress.OpenAuthority(t.TempDir())
	w.must(err)
	w.net, err = vnet.Open(t.Context(), vnet.Config{
		Name: name, Network: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 128 + b[0]%60, b[1], 0}), 28),
		Resolvers:   []netip.AddrPort{netip.AddrPortFrom(w.private[0], 53)},
		ServerPorts: []uint16{443, 7070},
	})
	w.must(err)
	t.Cleanup(func() {
		if err := w.net.Teardown(context.Background()); err != nil {
			t.Error(err)
		}
	})
	w.issuer, err = identity.Open(t.TempDir(), "https://api.cay.example", slog.New(slog.DiscardHandler))
	w.must(err)
	upstream := x509.NewCertPool()
	upstream.AddCert(w.certs["ca"].Leaf)
	w.proxy = egress.New(egress.Config{
		Dial: w.net.Dial, Original: vnet.Original, Closed: w.net.Closed, Resolvers: w.net.Resolvers(),
		Authority: authority, TLS: upstream, Gateway: vnet.Gateway, Server: w.ownServer(), Models: w.models,
		Identity: w.issuer.Token,
		Ask: func(ctx context.Context, q egress.Question) egress.Answer {
			w.mu.Lock()
			p := w.asks
			w.mu.Unlock()
			if p == nil {
				return egress.Answer{Why: "there is no person"}
			}
			return p.answer(ctx, q)
		},
		Secret: func(_ context.Context, _ cay.TeamID, name string) (string, error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			v, ok := w.secrets[name]
			if !ok {
				return "", cay.Errorf(cay.NotFound, "no secret %q", name)
			}
			return v, nil
		},
	})
	t.Cleanup(w.proxy.Close)
	d := w.net.Diverted()
	go w.proxy.Serve(d.Conns)
	go w.proxy.ServeUDP(d.Questions)
	go w.proxy.ServeTCP(d.QuestionConns)
	w.slot, err = w.net.Acquire(t.Context())
	w.must(err)
	w.guest = w.newGuest()
	w.spec = cay.InstanceSpec{Sandbox: "sandbox", Team: "team"}
	w.guestCA, w.onlyCay = upstream.Clone(), x509.NewCertPool()
	w.guestCA.AppendCertsFromPEM(authority.PEM())
	w.onlyCay.AppendCertsFromPEM(authority.PEM())
	return w
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// policy puts one in force.
func (w *world) policy(p cay.NetworkPolicy) {
	w.t.Helper()
	w.must(p.Check())
	w.spec.Network = p
	w.proxy.Set(w.slot.Addr, w.spec)
	w.must(w.net.Apply(w.t.Context(), w.slot, p))
}

// internet makes a namespace with public and private addresses that the host
// routes to.
func (w *world) internet() {
	t := w.t
	name, b := unique()
	x, y := b[0], nettest.Claim(t)
	w.path = filepath.Join("/run/netns", name)
	w.near = netip.AddrFrom4([4]byte{100, 101, x, y - 1})
	w.a = netip.AddrFrom4([4]byte{192, 88, 99, y})
	w.b = netip.AddrFrom4([4]byte{192, 88, 99, y | 0x80})
	w.c = netip.AddrFrom4([4]byte{192, 88, 99, y | 0xc0})
	w.private = []netip.Addr{
		netip.AddrFrom4([4]byte{10, 254, x, y}),
		netip.AddrFrom4([4]byte{172, 30, x, y}),
		netip.AddrFrom4([4]byte{192, 168, x, y}),
		netip.AddrFrom4([4]byte{169, 254, x, y}),
		netip.AddrFrom4([4]byte{100, 66, x, y}),
	}
	runtime.LockOSThread()
	home, err := netns.Get()
	w.must(err)
	ns, err := netns.NewNamed(name)
	w.must(err)
	w.must(netns.Set(home))
	home.Close()
	runtime.UnlockOSThread()
	t.Cleanup(func() { netns.DeleteNamed(name) })
	defer ns.Close()
	w.must(netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: "eth0", PeerNamespace: netlink.NsFd(ns)}))
	outer, err := netlink.LinkByName(name)
	w.must(err)
	t.Cleanup(func() { netlink.LinkDel(outer) })
	hostEnd := netip.AddrFrom4([4]byte{100, 101, x, y})
	w.must(netlink.AddrAdd(outer, &netlink.Addr{IPNet: ipnet(hostEnd, 31)}))
	w.must(netlink.LinkSetUp(outer))
	h, err := netlink.NewHandleAt(ns)
	w.must(err)
	defer h.Close()
	lo, err := h.LinkByName("lo")
	w.must(err)
	eth, err := h.LinkByName("eth0")
	w.must(err)
	w.must(h.LinkSetUp(lo))
	w.must(h.LinkSetUp(eth))
	w.must(h.AddrAdd(eth, &netlink.Addr{IPNet: ipnet(w.near, 31)}))
	w.must(h.RouteAdd(&netlink.Route{LinkIndex: eth.Attrs().Index, Gw: hostEnd.AsSlice()}))
	for _, a := range append([]netip.Addr{w.a, w.b, w.c}, w.private...) {
		w.must(h.AddrAdd(lo, &netlink.Addr{IPNet: ipnet(a, 32)}))
		w.must(netlink.RouteReplace(&netlink.Route{LinkIndex: outer.Attrs().Index, Dst: ipnet(a, 32), Gw: w.near.AsSlice()}))
	}
}

func ipnet(a netip.Addr, bits int) *net.IPNet {
	return &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(bits, 32)}
}

// inside runs f on a thread in a network namespace. Sockets that it makes
// belong there for good.
func inside[T any](path string, f func() (T, error)) (T, error) {
	type result struct {
		v   T
		err error
	}
	done := make(chan result, 1)
	go func() {
		runtime.LockOSThread() // for ever: the thread ends here
		var r result
		ns, err := netns.GetFromPath(path)
		if err == nil {
			defer ns.Close()
			err = netns.Set(ns)
		}
		if r.err = err; err == nil {
			r.v, r.err = f()
		}
		done <- r
	}()
	r := <-done
	return r.v, r.err
}

func (w *world) listen(addr string) net.Listener {
	l, err := inside(w.path, func() (net.Listener, error) { return net.Listen("tcp4", addr) })
	w.must(err)
	w.t.Cleanup(func() { l.Close() })
	return l
}

func (w *world) hit(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hits = append(w.hits, fmt.Sprintf(format, args...))
}

// seen returns what servers saw since the last call.
func (w *world) seen() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := w.hits
	w.hits = nil
	return out
}

// servers starts what the internet offers, on every address of it.
func (w *world) servers() {
	w.authority()
	for _, name := range []string{"a.example", "b.example", "c.example", "sub.w.example", "two.example", "proxy.example", "a.id.example"} {
		w.certificate(name)
	}
	handler := http.HandlerFunc(w.web)
	quiet := log.New(io.Discard, "", 0)
	plain := &http.Server{Handler: handler, Protocols: protocols(), ErrorLog: quiet}
	secure := &http.Server{Handler: handler, Protocols: protocols(), ErrorLog: quiet, TLSConfig: &tls.Config{
		NextProtos: []string{"h2", "http/1.1"},
		GetCertificate: func(h *tls.ClientHelloInfo) (*tls.Certificate, error) {
			w.hit("tls %s", h.ServerName)
			c, ok := w.certs[h.ServerName]
			if !ok {
				c = w.certs["b.example"]
			}
			return &c, nil
		},
	}}
	for _, port := range []int{80, 8080} {
		go plain.Serve(w.listen(fmt.Sprintf("0.0.0.0:%d", port)))
	}
	for _, port := range []int{443, 853, 8443} {
		go secure.Serve(tls.NewListener(w.listen(fmt.Sprintf("0.0.0.0:%d", port)), secure.TLSConfig))
	}
	w.t.Cleanup(func() { plain.Close(); secure.Close() })
	go w.accept(w.listen("0.0.0.0:22"), func(c net.Conn) { io.WriteString(c, "SSH-2.0-world\r\n") })
	go w.accept(w.listen("0.0.0.0:9000"), func(c net.Conn) { io.Copy(c, c) })
	go w.accept(w.listen("0.0.0.0:1080"), w.serveSOCKS)
	go w.accept(tls.NewListener(w.listen("0.0.0.0:1443"), &tls.Config{Certificates: []tls.Certificate{w.certs["proxy.example"]}}), w.serveSOCKS)
	for _, port := range []uint16{123, 443, 853, 5353} {
		for _, a := range []netip.Addr{w.a, w.b, w.private[0]} { // so that answers come from where they are awaited
			addr := netip.AddrPortFrom(a, port).String()
			c, err := inside(w.path, func() (net.PacketConn, error) { return net.ListenPacket("udp4", addr) })
			w.must(err)
			w.t.Cleanup(func() { c.Close() })
			go w.echo(c)
		}
	}
}

func protocols() *http.Protocols {
	p := new(http.Protocols)
	p.SetHTTP1(true)
	p.SetHTTP2(true)
	p.SetUnencryptedHTTP2(true)
	return p
}

func (w *world) accept(l net.Listener, serve func(net.Conn)) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		w.hit("tcp %s", c.LocalAddr())
		go func() { defer c.Close(); serve(c) }()
	}
}

func (w *world) echo(c net.PacketConn) {
	buf := make([]byte, 2048)
	for {
		n, from, err := c.ReadFrom(buf)
		if err != nil {
			return
		}
		w.hit("udp %s", c.LocalAddr())
		c.WriteTo(buf[:n], from)
	}
}

// web says what it was asked, and repeats a key in many ways.
func (w *world) web(rw http.ResponseWriter, r *http.Request) {
	w.hit("http %s %s key=%s x=%s", r.Host, r.URL.Path, r.Header.Get("X-Key"), r.Header.Get("X-Plain"))
	switch r.URL.Path {
	case "/redirect":
		http.Redirect(rw, r, "http://"+w.private[0].String()+"/", http.StatusFound)
	case "/echo":
		rw.Header().Set("X-Echo", "was "+r.Header.Get("X-Key"))
		fmt.Fprintf(rw, "key is %s, again %s.", r.Header.Get("X-Key"), r.Header.Get("X-Key"))
	case "/drip":
		for _, b := range []byte("key is " + r.Header.Get("X-Key") + " in drops") {
			rw.Write([]byte{b})
			rw.(http.Flusher).Flush()
		}
	case "/late":
		fmt.Fprintf(rw, "%s key is %s", strings.Repeat("-", 1<<20), r.Header.Get("X-Key"))
	case "/early":
		rw.Header().Set("Link", "<"+r.Header.Get("X-Key")+">; rel=preload")
		rw.WriteHeader(http.StatusEarlyHints)
		rw.Header().Del("Link")
		fmt.Fprint(rw, "in time")
	case "/trailers":
		rw.Header().Set("Trailer", "X-Announced")
		fmt.Fprint(rw, "a body")
		rw.(http.Flusher).Flush() // HTTP/1 has no trailers after a body of a known length
		rw.Header().Set("X-Announced", r.Header.Get("X-Key"))
		rw.Header().Set(http.TrailerPrefix+"X-Surprise", r.Header.Get("X-Key"))
	case "/upgrade":
		c, buffered, err := rw.(http.Hijacker).Hijack()
		if err != nil {
			return
		}
		defer c.Close()
		key := r.Header.Get("X-Key")
		fmt.Fprintf(c, "HTTP/1.1 101 %s\r\nConnection: Upgrade\r\nUpgrade: %s\r\nX-Echo: %s\r\nX-Extensions: %s\r\n\r\nkey is %s.",
			key, r.Header.Get("Upgrade"), key, r.Header.Get("Sec-Websocket-Extensions"), key)
		line, _ := buffered.ReadString('\n')
		fmt.Fprintf(c, "%s and %s", line, key)
	case "/upload":
		n, _ := io.Copy(io.Discard, r.Body)
		fmt.Fprintf(rw, "%d bytes", n)
	default:
		fmt.Fprintf(rw, "hello from %s, %s", r.Host, r.Proto)
	}
}

func (w *world) authority() {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	w.must(err)
	w.certs["ca"] = w.sign(&x509.Certificate{
		Subject: pkix.Name{CommonName: "World"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}, key, nil)
}

func (w *world) certificate(name string) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	w.must(err)
	ca := w.certs["ca"]
	w.certs[name] = w.sign(&x509.Certificate{DNSNames: []string{name}}, key, &ca)
}

func (w *world) sign(template *x509.Certificate, key *ecdsa.PrivateKey, by *tls.Certificate) tls.Certificate {
	template.SerialNumber = big.NewInt(time.Now().UnixNano())
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, signer := template, any(key)
	if by != nil {
		parent, signer = by.Leaf, by.PrivateKey
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	w.must(err)
	leaf, err := x509.ParseCertificate(der)
	w.must(err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

// names starts the host's name server, on a private address as in a cloud, and
// another on a public one.
func (w *world) names() {
	for _, a := range []netip.Addr{w.private[0], w.b} {
		addr := netip.AddrPortFrom(a, 53).String()
		c, err := inside(w.path, func() (net.PacketConn, error) { return net.ListenPacket("udp4", addr) })
		w.must(err)
		w.t.Cleanup(func() { c.Close() })
		go w.serveNames(c)
		go w.accept(w.listen(addr), func(c net.Conn) {
			var size [2]byte
			if _, err := io.ReadFull(c, size[:]); err != nil {
				return
			}
			b := make([]byte, binary.BigEndian.Uint16(size[:]))
			io.ReadFull(c, b)
			reply := w.resolve(b)
			c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(reply))), reply...))
		})
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.zone["a.example"] = []netip.Addr{w.a}
	w.zone["b.example"] = []netip.Addr{w.b}
	w.zone["c.example"] = []netip.Addr{w.c}
	w.zone["sub.w.example"] = []netip.Addr{w.a}
	w.zone["two.example"] = []netip.Addr{w.a, w.b}
	w.zone["private.example"] = []netip.Addr{w.private[1]}
	w.zone["mixed.example"] = []netip.Addr{w.private[1], w.a}
	w.zone["meta.example"] = []netip.Addr{netip.MustParseAddr("169.254.169.254")}
	w.zone["proxy.example"] = []netip.Addr{w.c}
}

func (w *world) serveNames(c net.PacketConn) {
	buf := make([]byte, 2048)
	for {
		n, from, err := c.ReadFrom(buf)
		if err != nil {
			return
		}
		if reply := w.resolve(buf[:n]); reply != nil {
			c.WriteTo(reply, from)
		}
	}
}

func (w *world) resolve(query []byte) []byte {
	var m dnsmessage.Message
	if m.Unpack(query) != nil || len(m.Questions) != 1 {
		return nil
	}
	q := m.Questions[0]
	name := strings.TrimSuffix(strings.ToLower(q.Name.String()), ".")
	w.hit("dns %s %s", q.Type, name)
	w.mu.Lock()
	addrs, ok := w.zone[name]
	w.mu.Unlock()
	out := dnsmessage.Message{Header: dnsmessage.Header{ID: m.ID, Response: true, RecursionAvailable: true}, Questions: m.Questions}
	if !ok {
		out.RCode = dnsmessage.RCodeNameError
	}
	owner := q.Name
	if name == "private.example" { // by way of an alias
		owner = dnsmessage.MustNewName("alias.example.")
		out.Answers = append(out.Answers, dnsmessage.Resource{
			Header: dnsmessage.ResourceHeader{Name: q.Name, Type: dnsmessage.TypeCNAME, Class: dnsmessage.ClassINET, TTL: 1},
			Body:   &dnsmessage.CNAMEResource{CNAME: owner},
		})
	}
	if q.Type == dnsmessage.TypeA {
		for _, a := range addrs {
			out.Answers = append(out.Answers, dnsmessage.Resource{
				Header: dnsmessage.ResourceHeader{Name: owner, Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET, TTL: 1},
				Body:   &dnsmessage.AResource{A: a.As4()},
			})
		}
	}
	b, err := out.Pack()
	if err != nil {
		return nil
	}
	return b
}

// serveSOCKS is a SOCKS5 server with the password "p" of user "u".
func (w *world) serveSOCKS(c net.Conn) {
	r := bufio.NewReader(c)
	read := func(n int) []byte {
		b := make([]byte, n)
		if _, err := io.ReadFull(r, b); err != nil {
			return make([]byte, n)
		}
		return b
	}
	hello := read(2)
	methods := read(int(hello[1]))
	if !strings.Contains(string(methods), "\x02") {
		c.Write([]byte{5, 0xff})
		return
	}
	c.Write([]byte{5, 2})
	user := read(int(read(2)[1]))
	password := read(int(read(1)[0]))
	if string(user) != "u" || string(password) != "p" {
		c.Write([]byte{1, 1})
		return
	}
	c.Write([]byte{1, 0})
	request := read(4)
	host := ""
	switch request[3] {
	case 1:
		host = netip.AddrFrom4([4]byte(read(4))).String()
	case 3:
		host = string(read(int(read(1)[0])))
	}
	port := binary.BigEndian.Uint16(read(2))
	w.mu.Lock()
	w.socks = append(w.socks, host)
	target := host
	if addrs := w.zone[host]; len(addrs) > 0 {
		target = addrs[0].String()
	}
	w.mu.Unlock()
	far, err := inside(w.path, func() (net.Conn, error) {
		return net.DialTimeout("tcp4", net.JoinHostPort(target, fmt.Sprint(port)), patience)
	})
	if err != nil {
		c.Write([]byte{5, 5, 0, 1, 0, 0, 0, 0, 0, 0})
		return
	}
	defer far.Close()
	c.Write([]byte{5, 0, 0, 1, 0, 0, 0, 0, 0, 0})
	go func() { io.Copy(far, r); far.Close() }()
	io.Copy(c, far)
}

// The guest's side.

// dial connects as the guest, from an address of its own.
func (w *world) dial(network, addr string) (net.Conn, error) {
	return w.guest.dial(network, addr, netip.Addr{})
}

// tcp connects as the guest.
func (w *world) tcp(a netip.Addr, port uint16) (net.Conn, error) {
	c, err := w.dial("tcp4", netip.AddrPortFrom(a, port).String())
	if err == nil {
		c.SetDeadline(time.Now().Add(patience))
		w.t.Cleanup(func() { c.Close() })
	}
	return c, err
}

// says connects, sends, and returns what comes until the end.
func (w *world) says(a netip.Addr, port uint16, text string) (string, error) {
	c, err := w.tcp(a, port)
	if err != nil {
		return "", err
	}
	if _, err := io.WriteString(c, text); err != nil {
		return "", err
	}
	buf := make([]byte, 4096)
	n, err := c.Read(buf)
	if n == 0 && err == nil {
		err = io.ErrNoProgress
	}
	if n > 0 {
		err = nil
	}
	return string(buf[:n]), err
}

// reply is what a server answered to a request.
type reply struct {
	status  int
	header  http.Header
	body    string
	proto   string
	trailer http.Header
	early   []string // the links of early hints
}

// get makes requests over one connection.
type client struct {
	w         *world
	transport *http.Transport
	scheme    string
}

// web is an HTTP client at one address. With a server name it is over TLS.
func (w *world) client(a netip.Addr, port uint16, sni string, protocols ...string) *client {
	dial := func(context.Context, string, string) (net.Conn, error) { return w.tcp(a, port) }
	tr := &http.Transport{DialContext: dial, MaxConnsPerHost: 0, ResponseHeaderTimeout: patience}
	c := &client{w: w, transport: tr, scheme: "http"}
	if sni != "" {
		c.scheme = "https"
		tr.DialTLSContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			raw, err := w.tcp(a, port)
			if err != nil {
				return nil, err
			}
			next := protocols
			if len(next) == 0 {
				next = []string{"http/1.1"}
			}
			t := tls.Client(raw, &tls.Config{ServerName: sni, RootCAs: w.guestCA, NextProtos: next})
			return t, t.HandshakeContext(ctx)
		}
	}
	if len(protocols) > 0 {
		tr.Protocols = new(http.Protocols)
		tr.Protocols.SetHTTP2(sni != "")
		tr.Protocols.SetUnencryptedHTTP2(sni == "")
	}
	w.t.Cleanup(tr.CloseIdleConnections)
	return c
}

func (c *client) do(method, host, path string, body io.Reader, header ...string) (reply, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	// One name for the transport: all requests share the connection.
	req, err := http.NewRequestWithContext(ctx, method, c.scheme+"://guest.invalid"+path, body)
	if err != nil {
		return reply{}, err
	}
	req.Host = host
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	var early []string
	req = req.WithContext(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{Got1xxResponse: func(_ int, h textproto.MIMEHeader) error {
		early = append(early, h.Get("Link"))
		return nil
	}}))
	resp, err := c.transport.RoundTrip(req)
	if err != nil {
		return reply{}, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return reply{resp.StatusCode, resp.Header, string(text), resp.Proto, resp.Trailer, early}, err
}

func (c *client) get(host, path string, header ...string) (reply, error) {
	return c.do("GET", host, path, nil, header...)
}

// udpTo is a guest's socket to an address.
func (w *world) udpTo(to netip.AddrPort) (net.Conn, error) {
	return w.dial("udp4", to.String())
}

// ask asks a name server; network is udp4 or tcp4.
func (w *world) ask(network string, server netip.AddrPort, name string, kind dnsmessage.Type) (dnsmessage.Message, error) {
	n, err := dnsmessage.NewName(name + ".")
	if err != nil {
		return dnsmessage.Message{}, err
	}
	query := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: 77, RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: n, Type: kind, Class: dnsmessage.ClassINET}},
	}
	b, err := query.Pack()
	if err != nil {
		return dnsmessage.Message{}, err
	}
	return w.askRaw(network, server, b)
}

func (w *world) askRaw(network string, server netip.AddrPort, query []byte) (m dnsmessage.Message, err error) {
	c, err := w.dial(network, server.String())
	if err != nil {
		return m, err
	}
	defer c.Close()
	buf := make([]byte, 65535)
	n := 0
	if network == "tcp4" {
		c.SetDeadline(time.Now().Add(patience))
		c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(query))), query...))
		if _, err := io.ReadFull(c, buf[:2]); err != nil {
			return m, err
		}
		n, err = io.ReadFull(c, buf[:binary.BigEndian.Uint16(buf[:2])])
	} else {
		// A refused port answers at once; a dropped packet is sent again.
		for range 3 {
			c.SetDeadline(time.Now().Add(3 * time.Second))
			if _, err = c.Write(query); err != nil {
				return m, err
			}
			if n, err = c.Read(buf); err == nil || !errors.Is(err, os.ErrDeadlineExceeded) {
				break
			}
		}
	}
	if err != nil {
		return m, err
	}
	return m, m.Unpack(buf[:n])
}

// udp sends a datagram and wants it back.
func (w *world) udp(a netip.Addr, port uint16) error {
	c, err := w.dial("udp4", netip.AddrPortFrom(a, port).String())
	if err != nil {
		return err
	}
	defer c.Close()
	for range 3 {
		c.SetDeadline(time.Now().Add(2 * time.Second))
		if _, err = c.Write([]byte("hello")); err != nil {
			return err
		}
		if _, err = c.Read(make([]byte, 16)); err == nil || !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
	}
	return err
}
