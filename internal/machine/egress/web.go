package egress

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cay-run/cay"
)

const (
	maxHead       = 64 << 10
	headWithin    = 30 * time.Second
	webIdle       = 5 * time.Minute
	answerWithin  = 10 * time.Minute // until a server begins to answer
	handshakeTime = 10 * time.Second
)

// tlsRoots are the authorities that servers are verified with.
type tlsRoots = x509.CertPool

// web serves what is HTTP: it looks at every request of a connection, and
// sets headers where rules say so.
type web struct {
	p       *Proxy
	server  *http.Server
	arrived *arrivals
}

func newWeb(p *Proxy) *web {
	w := &web{p: p, arrived: &arrivals{conns: make(chan net.Conn), done: make(chan struct{})}}
	w.server = &http.Server{
		Handler:           w,
		ReadHeaderTimeout: headWithin,
		IdleTimeout:       webIdle,
		MaxHeaderBytes:    maxHead,
		Protocols:         new(http.Protocols),
		TLSConfig:         &tls.Config{NextProtos: []string{"h2", "http/1.1"}},
		ErrorLog:          slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug),
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, flowKey{}, visitOf(c))
		},
	}
	w.server.Protocols.SetHTTP1(true)
	w.server.Protocols.SetHTTP2(true)
	w.server.Protocols.SetUnencryptedHTTP2(true)
	p.work.Go(func() { _ = w.server.Serve(w.arrived) })
	return w
}

func (w *web) close() { _ = w.server.Close() }

type flowKey struct{}

// visit is a connection of a guest that speaks HTTP. It counts what goes
// through, and ends with the connection.
type visit struct {
	net.Conn
	r         *bufio.Reader
	flow      *flow
	tls       string // the server name, under TLS
	transport *http.Transport
	once      atomic.Pointer[string] // the name that the transport is used for
	packages  bool                   // it may be for the cache
	models    bool                   // it may be for models
	server    bool                   // it may be for this host's server
	pinned    atomic.Bool            // it is for the name of once alone, which a person is asked about
	asked     atomic.Bool            // and may go there
	inside    bool                   // it is for this host, which answers programs inside
}

func (v *visit) Read(b []byte) (int, error) {
	n, err := v.r.Read(b)
	v.flow.sent.Add(int64(n))
	return n, err
}

func (v *visit) Write(b []byte) (int, error) {
	n, err := v.Conn.Write(b)
	v.flow.received.Add(int64(n))
	return n, err
}

func (v *visit) Close() error {
	err := v.Conn.Close()
	if v.transport != nil {
		v.transport.CloseIdleConnections()
	}
	v.flow.finish()
	return err
}

func visitOf(c net.Conn) *visit {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	v, _ := c.(*visit)
	return v
}

// arrivals is a listener of connections that others accepted.
type arrivals struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
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

// serve hands a connection to the server; under TLS when there is a name.
func (w *web) serve(f *flow, br *bufio.Reader, name string) {
	v := &visit{Conn: f.conn, r: br, flow: f, tls: name, packages: w.p.isPackages(f.dst), models: w.p.isModels(f.dst), server: w.p.toServer(f.dst)}
	if name != "" && !w.p.isServer(f.guest.rules.Load(), name) {
		v.server = false // another name that leads to the gateway
	}
	v.transport = w.transport(v)
	var c net.Conn = v
	if name != "" {
		c = tls.Server(v, &tls.Config{
			NextProtos: []string{"h2", "http/1.1"},
			GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
				return w.p.cfg.Authority.certificate(name)
			},
		})
	}
	w.arrive(c)
}

func (w *web) arrive(c net.Conn) {
	select {
	case w.arrived.conns <- c:
	case <-w.arrived.done:
		_ = c.Close()
	}
}

// transport reaches the one server that a visit is for.
func (w *web) transport(v *visit) *http.Transport {
	t := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			name := ""
			if n := v.once.Load(); n != nil {
				name = *n
			}
			if v.asked.Load() {
				return w.p.dialName(ctx, v.flow.guest.rules.Load(), name, v.flow.dst.Port())
			}
			if v.server {
				return w.p.dialServer(ctx, v)
			}
			return w.p.dial(ctx, v.flow.guest.rules.Load(), v.flow.dst, name)
		},
		DisableCompression:     true,
		ResponseHeaderTimeout:  answerWithin,
		IdleConnTimeout:        webIdle,
		TLSHandshakeTimeout:    handshakeTime,
		MaxResponseHeaderBytes: 1 << 20,
		Protocols:              new(http.Protocols),
	}
	t.Protocols.SetHTTP1(true)
	if v.tls != "" {
		t.Protocols.SetHTTP2(true)
		t.TLSClientConfig = &tls.Config{ServerName: v.tls, RootCAs: w.p.cfg.TLS, MinVersion: tls.VersionTLS12}
		// The way to the server is this process's memory.
		t.TLSClientConfig.InsecureSkipVerify = v.server
	}
	return t
}

// sameHost is why a request is refused for another host than those before it.
const sameHost = "one connection, one host"

// denial is why a request is refused.
type denial struct {
	status int
	rule   string
}

// ServeHTTP decides about one request and passes it on.
func (w *web) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	v, _ := r.Context().Value(flowKey{}).(*visit)
	if v == nil {
		panic(http.ErrAbortHandler)
	}
	if v.inside {
		w.answerInside(rw, r, v)
		return
	}
	host := requestName(r)
	if v.models && host == cay.ModelHost {
		w.serveModels(rw, r, v)
		return
	}
	rules := v.flow.guest.rules.Load()
	asked := w.p.toGateway(v.flow.dst, rules) && rules.decide(v.flow.dst.Addr(), host).ask && !w.p.isServer(rules, host)
	if v.packages && !asked && !(v.server && w.p.cfg.Server.Name(host)) {
		w.servePackages(rw, r, v, host)
		return
	}
	verdict, no := w.decide(v, r, host, asked)
	var secrets []string
	var header http.Header
	if no == nil {
		no = w.approveSecrets(r, v, host)
	}
	if no == nil {
		header, secrets, no = w.dress(r.Context(), v, host)
	}
	if no != nil {
		v.flow.refused("http", host, no.rule)
		w.deny(rw, r, v, host, *no)
		return
	}
	v.flow.allowed("http", host, verdict)
	if verdict.named {
		v.once.CompareAndSwap(nil, &host)
	}
	w.forward(rw, r, v, header, secrets)
}

// requestName is the clean name that a request is for; empty for an address.
func requestName(r *http.Request) string {
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	return cleanName(host)
}

// decide says whether a request may go on. One to the gateway, for a host that is
// asked about, is marked as such: its address says nothing.
func (w *web) decide(v *visit, r *http.Request, host string, asked bool) (verdict, *denial) {
	if v.server && !asked {
		return w.decideServer(v, r, host)
	}
	rules := v.flow.guest.rules.Load()
	addr := v.flow.dst.Addr()
	_, dressed := rules.headers.find(host)
	decision := rules.decide(addr, host)
	switch {
	case !asked && w.p.cfg.Closed(addr):
		return decision, &denial{http.StatusForbidden, closedRange}
	case v.pinned.Load() && *v.once.Load() != host:
		return decision, &denial{http.StatusMisdirectedRequest, sameHost}
	case decision.ask:
		no := w.decideAsked(v, r, host, decision)
		if no == nil {
			v.asked.Store(true)
		}
		return decision, no
	case v.tls != "" && host != v.tls:
		return decision, &denial{http.StatusMisdirectedRequest, "the host of the request is not the server name of TLS, " + v.tls}
	case r.Method == http.MethodConnect:
		return decision, &denial{http.StatusForbidden, "CONNECT"}
	case !decision.allow:
		return decision, &denial{http.StatusForbidden, decision.rule}
	case (decision.named || dressed) && !w.p.names.has(r.Context(), host, addr):
		return decision, &denial{http.StatusForbidden, "the address is not the name's"}
	case v.once.Load() != nil && decision.named && *v.once.Load() != host && rules.proxy != nil:
		// The SOCKS server resolved another name for this connection.
		return decision, &denial{http.StatusMisdirectedRequest, sameHost}
	}
	return decision, nil
}

// dress makes the headers that a request for host is to have, and tells which
// secrets are in them.
func (w *web) dress(ctx context.Context, v *visit, host string) (http.Header, []string, *denial) {
	rule, ok := v.flow.guest.rules.Load().headers.find(host)
	if !ok {
		return nil, nil, nil
	}
	header := http.Header{}
	var secrets []string
	for name, value := range rule.Headers {
		text, err := cay.Expand(value, func(ref string) (string, error) {
			got, err := w.fill(ctx, v, host, ref)
			if err == nil && got != "" {
				secrets = append(secrets, got)
			}
			return got, err
		})
		if err != nil {
			return nil, nil, &denial{http.StatusForbidden, err.Error()}
		}
		header.Set(name, text)
	}
	return header, secrets, nil
}

// fill returns what a placeholder stands for: a secret of the team, or an
// identity token of the sandbox.
func (w *web) fill(ctx context.Context, v *visit, host, ref string) (string, error) {
	if v.tls == "" {
		return "", errors.New("a secret is not sent without TLS")
	}
	if secret, ok := cay.SecretPlaceholder(ref); ok {
		got, err := w.secret(ctx, v.flow.guest.team, secret)
		if err == nil && w.p.cfg.OnSecret != nil {
			w.p.cfg.OnSecret(v.flow.guest.team, v.flow.guest.sandbox, secret, host)
		}
		return got, err
	}
	if name, ok := cay.IdentityPlaceholder(ref); ok {
		return w.identity(v.flow.guest, name)
	}
	return "", fmt.Errorf("the placeholder %q is not known", ref)
}

func (w *web) secret(ctx context.Context, team cay.TeamID, name string) (string, error) {
	got, err := w.p.cfg.Secret(ctx, team, name)
	if err != nil {
		return "", fmt.Errorf("the secret %q cannot be read: %s", name, cay.KindOf(err))
	}
	if strings.ContainsFunc(got, func(c rune) bool { return c < ' ' && c != '\t' || c == 0x7f }) {
		return "", fmt.Errorf("the secret %q holds line breaks or other control characters", name)
	}
	return got, nil
}

func (w *web) identity(g *guest, name string) (string, error) {
	t, ok := g.rules.Load().policy.Identities[name]
	if !ok || w.p.cfg.Identity == nil {
		return "", fmt.Errorf("the sandbox has no identity token %q", name)
	}
	got, err := w.p.cfg.Identity(g.team, g.sandbox, t.Audience)
	if err != nil {
		w.p.cfg.Log.Error("no identity token", "sandbox", g.sandbox, "err", err)
		return "", fmt.Errorf("the identity token %q cannot be made: %s", name, cay.KindOf(err))
	}
	return got, nil
}

// refusal is what a guest is told of a request that was not allowed.
type refusal struct {
	Code      int    `json:"code"`
	Message   string `json:"message"`
	Rule      string `json:"rule"`
	Host      string `json:"host,omitempty"`
	Address   string `json:"address"`
	SandboxID string `json:"sandboxId"`
}

// takeBody reads a short body before a refusal. Over HTTP/2 an answer that is complete
// before the request resets the stream, and clients lose the answer with it.
func takeBody(rw http.ResponseWriter, r *http.Request) {
	const most, patience = 64 << 10, time.Second
	if r.ProtoMajor < 2 || r.Method == http.MethodConnect || r.Header.Get("Expect") != "" {
		return
	}
	control := http.NewResponseController(rw)
	_ = control.SetReadDeadline(time.Now().Add(patience))
	_, _ = io.CopyN(io.Discard, r.Body, most)
	_ = control.SetReadDeadline(time.Time{})
}

func (w *web) deny(rw http.ResponseWriter, r *http.Request, v *visit, host string, d denial) {
	takeBody(rw, r)
	rw.Header().Set("Content-Type", "application/json; charset=utf-8")
	rw.Header().Set("X-Cay-Egress", "denied")
	rw.Header().Set("Connection", "close")
	rw.WriteHeader(d.status)
	_ = json.NewEncoder(rw).Encode(refusal{ // the guest may be gone
		Code: d.status, Message: "the sandbox's network policy does not allow this: " + d.rule,
		Rule: d.rule, Host: host, Address: v.flow.dst.String(), SandboxID: string(v.flow.guest.sandbox),
	})
}

func (w *web) forward(rw http.ResponseWriter, r *http.Request, v *visit, header http.Header, secrets []string) {
	scheme := "http"
	if v.tls != "" {
		scheme = "https"
	}
	hidden := needlesOf(secrets)
	proxy := httputil.ReverseProxy{
		Transport:     v.transport,
		FlushInterval: -1,
		ErrorLog:      w.server.ErrorLog,
		Rewrite: func(pr *httputil.ProxyRequest) {
			pr.Out.URL = &url.URL{
				Scheme: scheme, Host: target(v), Path: pr.In.URL.Path, RawPath: pr.In.URL.RawPath,
				RawQuery: pr.In.URL.RawQuery, ForceQuery: pr.In.URL.ForceQuery,
			}
			pr.Out.Host = pr.In.Host
			for _, name := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"} {
				if values := pr.In.Header.Values(name); len(values) > 0 {
					pr.Out.Header[name] = values
				}
			}
			if _, ok := pr.In.Header["User-Agent"]; !ok {
				pr.Out.Header["User-Agent"] = nil
			}
			for name, values := range header {
				pr.Out.Header[name] = values
			}
			if len(secrets) > 0 {
				legible(pr.Out.Header)
			}
		},
		ErrorHandler: func(rw http.ResponseWriter, _ *http.Request, err error) {
			w.fail(rw, v, err)
		},
	}
	if len(hidden) > 0 {
		proxy.Transport = roundTrip(func(out *http.Request) (*http.Response, error) {
			return v.transport.RoundTrip(hidden.early(out))
		})
		proxy.ModifyResponse = func(resp *http.Response) error {
			hidden.answer(resp)
			return nil
		}
	}
	proxy.ServeHTTP(rw, r)
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// legible has a server repeat a secret in no form that cannot be masked:
// compressed, or by a protocol that is not read here.
func legible(h http.Header) {
	h.Del("Accept-Encoding")
	h.Del("Sec-Websocket-Extensions")
	if upgrade := h.Get("Upgrade"); upgrade != "" && !strings.EqualFold(upgrade, "websocket") {
		h.Del("Upgrade")
		h.Del("Connection")
		h.Del("Http2-Settings")
	}
}

// target is what the transport thinks it dials: the address, or the name when
// that is to be verified.
func target(v *visit) string {
	if v.tls != "" {
		return net.JoinHostPort(v.tls, fmt.Sprint(v.flow.dst.Port()))
	}
	return v.flow.dst.String()
}

// fail tells a guest that a server could not be reached.
func (w *web) fail(rw http.ResponseWriter, v *visit, err error) {
	rule := "the server cannot be reached"
	var certificate *tls.CertificateVerificationError
	if errors.As(err, &certificate) {
		rule = "the server's certificate is not good for " + v.tls
		v.flow.refused("tls", v.tls, rule)
	}
	host := v.tls
	rw.Header().Set("Content-Type", "application/json; charset=utf-8")
	rw.WriteHeader(http.StatusBadGateway)
	_ = json.NewEncoder(rw).Encode(refusal{
		Code: http.StatusBadGateway, Message: rule, Rule: rule, Host: host,
		Address: v.flow.dst.String(), SandboxID: string(v.flow.guest.sandbox),
	})
}
