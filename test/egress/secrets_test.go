package egress_test

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/cay-run/cay"
)

const secretValue = "s3cr3t-v4lue"

func withKey(*world) cay.NetworkPolicy {
	key := []cay.HeaderRule{{Headers: map[string]string{"X-Key": "${e2b.secrets.key}", "X-Plain": "yes"}}}
	return cay.NetworkPolicy{AllowInternet: true, Identities: map[string]cay.IdentityToken{"cloud": {Audience: "sts.example"}}, Rules: map[string][]cay.HeaderRule{
		"a.example": key, "two.example": key, "*.w.example": key, "wrong.example": key, "moving.example": key,
		"*.id.example":  {{Headers: map[string]string{"X-Key": "${e2b.identity.tokens.cloud}"}}},
		"none.example":  {{Headers: map[string]string{"X-Key": "${e2b.identity.tokens.none}"}}},
		"c.example":     {{Headers: map[string]string{"X-Key": "${e2b.secrets.unknown}"}}},
		"plain.example": {{Headers: map[string]string{"X-Plain": "only"}}},
	}}
}

// keyless wants that no server was given the key.
func keyless(w *world) error { return unseen(w, secretValue) }

var secrets = group{"secrets", withKey, []attempt{
	{"a key is set over TLS", func(w *world) error {
		got, err := overTLS(w, w.a, 443, "a.example", "a.example")
		return errors.Join(status(got, err, 200, "hello from a.example"), saw(w, "key="+secretValue+" x=yes"))
	}},
	{"a key is set over HTTP/2", func(w *world) error {
		got, err := w.client(w.a, 443, "a.example", "h2").get("a.example", "/")
		if err == nil && got.proto != "HTTP/2.0" {
			return fmt.Errorf("the guest spoke %s", got.proto)
		}
		return errors.Join(status(got, err, 200, "HTTP/2.0"), saw(w, "key="+secretValue))
	}},
	{"a key is set below a wildcard", func(w *world) error {
		got, err := overTLS(w, w.a, 443, "sub.w.example", "sub.w.example")
		return errors.Join(status(got, err, 200, ""), saw(w, "key="+secretValue))
	}},
	{"the guest's own value is replaced", func(w *world) error {
		got, err := w.client(w.a, 443, "a.example").get("a.example", "/", "X-Key", "mine")
		return errors.Join(status(got, err, 200, ""), saw(w, "key="+secretValue+" x"))
	}},
	{"a new value takes effect at once", func(w *world) error {
		w.mu.Lock()
		w.secrets["key"] = "n3w"
		w.mu.Unlock()
		got, err := overTLS(w, w.a, 443, "a.example", "a.example")
		w.mu.Lock()
		w.secrets["key"] = secretValue
		w.mu.Unlock()
		return errors.Join(status(got, err, 200, ""), saw(w, "key=n3w"))
	}},
	{"an upload streams", func(w *world) error {
		got, err := w.client(w.a, 443, "a.example", "h2").do("POST", "a.example", "/upload", bytes.NewReader(make([]byte, 3<<20)))
		return status(got, err, 200, fmt.Sprint(3<<20))
	}},
	{"an echo in a header", func(w *world) error {
		got, err := w.client(w.a, 443, "a.example").get("a.example", "/echo")
		if err == nil && (got.header.Get("X-Echo") == "" || strings.Contains(got.header.Get("X-Echo"), secretValue)) {
			return fmt.Errorf("the header is %q", got.header.Get("X-Echo"))
		}
		return err
	}},
	{"an echo in a body", func(w *world) error {
		return masked(w, "/echo", "key is "+strings.Repeat("*", len(secretValue))+", again")
	}},
	{"an echo in drops", func(w *world) error {
		return masked(w, "/drip", "key is "+strings.Repeat("*", len(secretValue))+" in drops")
	}},
	{"an echo late in a body", func(w *world) error {
		return masked(w, "/late", "key is "+strings.Repeat("*", len(secretValue)))
	}},
	{"an echo in early hints", func(w *world) error { return hiddenEarly(w, "http/1.1") }},
	{"an echo in early hints of HTTP/2", func(w *world) error { return hiddenEarly(w, "h2") }},
	{"an echo in trailers", func(w *world) error { return hiddenTrailers(w, "http/1.1") }},
	{"an echo in trailers of HTTP/2", func(w *world) error { return hiddenTrailers(w, "h2") }},
	{"an echo after an upgrade", func(w *world) error {
		head, text, err := upgraded(w, "websocket")
		const stars = "************"
		switch {
		case err != nil:
			return err
		case strings.Contains(head+text, secretValue):
			return fmt.Errorf("it came back in %q, %q", head, text)
		case !strings.HasPrefix(head, "HTTP/1.1 101 ") || !strings.Contains(head, "X-Echo: "+stars):
			return fmt.Errorf("the head is %q", head)
		case text != "key is "+stars+".said\n and "+stars:
			return fmt.Errorf("the connection said %q", text)
		case strings.Contains(head, "permessage-deflate"):
			return errors.New("the server may compress what it repeats")
		}
		return saw(w, "key="+secretValue)
	}},
	{"an upgrade to a protocol that is not read", func(w *world) error {
		head, text, err := upgraded(w, "h2c")
		if err != nil || strings.Contains(head+text, secretValue) || strings.Contains(head, " 101 ") {
			return fmt.Errorf("%q, %q, %v", head, text, err)
		}
		return nil
	}},
	{"a key without TLS", func(w *world) error {
		got, err := w.client(w.a, 80, "").get("a.example", "/")
		return denied(w, got, err, "without TLS")
	}},
	{"a plain header without TLS is set", func(w *world) error {
		w.mu.Lock()
		w.zone["plain.example"] = []netip.Addr{w.a}
		w.mu.Unlock()
		got, err := w.client(w.a, 80, "").get("plain.example", "/")
		return errors.Join(status(got, err, 200, ""), saw(w, "x=only"))
	}},
	{"a key to a wrong certificate", func(w *world) error {
		w.mu.Lock()
		w.zone["wrong.example"] = []netip.Addr{w.a}
		w.mu.Unlock()
		got, err := overTLS(w, w.a, 443, "wrong.example", "wrong.example")
		return errors.Join(status(got, err, 502, "certificate"), keyless(w), unseen(w, "http "))
	}},
	{"a key to an address", func(w *world) error {
		_, err := overTLS(w, w.a, 443, w.a.String(), w.a.String())
		if err == nil {
			return errors.New("an address has a certificate")
		}
		return keyless(w)
	}},
	{"a key to an address that is not the name's", func(w *world) error {
		_, err := overTLS(w, w.b, 443, "a.example", "a.example")
		if err == nil {
			return errors.New("it got through")
		}
		return errors.Join(keyless(w), unseen(w, "http "))
	}},
	{"a key to another host of the connection", func(w *world) error {
		got, err := w.client(w.a, 443, "a.example").get("b.example", "/")
		return errors.Join(status(got, err, 421, "not the server name"), unseen(w, "http "))
	}},
	{"a key to another authority of HTTP/2", func(w *world) error {
		c := w.client(w.a, 443, "a.example", "h2")
		got, err := c.get("a.example", "/")
		if err := status(got, err, 200, ""); err != nil {
			return err
		}
		w.seen()
		got, err = c.get("two.example", "/")
		return errors.Join(status(got, err, 421, "not the server name"), unseen(w, "http "))
	}},
	{"a key to a name without a rule", func(w *world) error {
		got, err := overTLS(w, w.b, 443, "b.example", "b.example")
		return errors.Join(status(got, err, 200, "hello from b.example"), keyless(w))
	}},
	{"a key on another port", func(w *world) error {
		got, err := overTLS(w, w.a, 8443, "a.example", "a.example")
		return errors.Join(status(got, err, 200, ""), keyless(w))
	}},
	{"a key past the proxy by QUIC", func(w *world) error { return refused(w, w.udp(w.a, 443)) }},
	{"an unknown key", func(w *world) error {
		got, err := overTLS(w, w.c, 443, "c.example", "c.example")
		return errors.Join(status(got, err, 403, "unknown"), unseen(w, "http "))
	}},
	{"an identity token is set, and says whose it is", func(w *world) error {
		got, err := w.at("a.id.example", 443, "/echo")
		if err := status(got, err, 200, "key is ******"); err != nil {
			return err
		}
		return w.sawIdentity(got.header.Get("X-Echo"))
	}},
	{"an identity token without TLS", func(w *world) error {
		got, err := w.at("a.id.example", 80, "/")
		return errors.Join(denied(w, got, err, "without TLS"), unseen(w, "http "))
	}},
	{"an identity token that the sandbox does not have", func(w *world) error {
		got, err := w.at("none.example", 443, "/")
		return errors.Join(status(got, err, 403, "no identity token"), unseen(w, "http "))
	}},
	{"only the authority of this installation is seen", func(w *world) error {
		all := w.guestCA
		w.guestCA = w.onlyCay
		defer func() { w.guestCA = all }()
		got, err := overTLS(w, w.a, 443, "a.example", "a.example")
		if err := status(got, err, 200, ""); err != nil {
			return err
		}
		if _, err := overTLS(w, w.b, 443, "b.example", "b.example"); err == nil {
			return errors.New("a connection without a rule is intercepted")
		}
		return nil
	}},
}}

// at asks a name of the first server's for a path.
func (w *world) at(name string, port uint16, path string) (reply, error) {
	w.mu.Lock()
	w.zone[name] = []netip.Addr{w.a}
	w.mu.Unlock()
	sni := name
	if port == 80 {
		sni = ""
	}
	return w.client(w.a, port, sni).get(name, path)
}

// sawIdentity wants that a server was given a token of the guest, signed by
// this installation, and that the guest got stars of its length back.
func (w *world) sawIdentity(echo string) error {
	var text string
	for _, hit := range w.seen() {
		_, key, _ := strings.Cut(hit, "key=")
		text, _, _ = strings.Cut(key, " ")
	}
	if echo != "was "+strings.Repeat("*", len(text)) {
		return fmt.Errorf("the guest was told %q", echo)
	}
	published, err := w.issuer.Keys()
	if err != nil {
		return err
	}
	var keys jose.JSONWebKeySet
	if err := json.Unmarshal(published, &keys); err != nil {
		return err
	}
	token, err := jwt.ParseSigned(text, []jose.SignatureAlgorithm{jose.RS256})
	if err != nil {
		return fmt.Errorf("%w: %q", err, text)
	}
	var claims jwt.Claims
	if err := token.Claims(keys, &claims); err != nil {
		return err
	}
	return claims.Validate(jwt.Expected{
		Issuer: "https://api.cay.example", Subject: "spiffe://cay.example/team/team/sandbox/sandbox",
		AnyAudience: jwt.Audience{"sts.example"}, Time: time.Now(),
	})
}

func hiddenEarly(w *world, protocol string) error {
	got, err := w.client(w.a, 443, "a.example", protocol).get("a.example", "/early")
	if err == nil && (len(got.early) != 1 || got.early[0] != "<"+strings.Repeat("*", len(secretValue))+">; rel=preload") {
		return fmt.Errorf("the early hints are %q", got.early)
	}
	return status(got, err, 200, "in time")
}

func hiddenTrailers(w *world, protocol string) error {
	got, err := w.client(w.a, 443, "a.example", protocol).get("a.example", "/trailers")
	for _, name := range []string{"X-Announced", "X-Surprise"} {
		if err == nil && got.trailer.Get(name) != strings.Repeat("*", len(secretValue)) {
			return fmt.Errorf("the trailers are %q", got.trailer)
		}
	}
	return status(got, err, 200, "a body")
}

// upgraded asks for a protocol, says something, and returns what came.
func upgraded(w *world, protocol string) (head, text string, err error) {
	raw, err := w.tcp(w.a, 443)
	if err != nil {
		return "", "", err
	}
	c := tls.Client(raw, &tls.Config{ServerName: "a.example", RootCAs: w.guestCA})
	defer c.Close()
	_, err = io.WriteString(c, "GET /upgrade HTTP/1.1\r\nHost: a.example\r\nConnection: Upgrade\r\nUpgrade: "+protocol+
		"\r\nSec-WebSocket-Extensions: permessage-deflate\r\n\r\n")
	if err != nil {
		return "", "", err
	}
	r := bufio.NewReader(c)
	for head == "" || !strings.HasSuffix(head, "\r\n\r\n") {
		line, err := r.ReadString('\n')
		if err != nil {
			return head, "", err
		}
		head += line
	}
	if !strings.Contains(head, " 101 ") {
		return head, "", nil
	}
	if _, err := io.WriteString(c, "said\n"); err != nil {
		return head, "", err
	}
	all, err := io.ReadAll(r)
	if errors.Is(err, io.ErrUnexpectedEOF) { // the server leaves without a word, as here
		err = nil
	}
	return head, string(all), err
}

func masked(w *world, path, want string) error {
	got, err := w.client(w.a, 443, "a.example").get("a.example", path)
	return status(got, err, 200, want)
}

func bySOCKS(w *world) cay.NetworkPolicy {
	return cay.NetworkPolicy{
		AllowInternet: true, AllowOut: []string{"a.example", w.b.String()}, DenyOut: []string{cay.AllTraffic},
		Proxy: &cay.EgressProxy{Address: w.c.String() + ":1080", Username: "u", Password: "p"},
	}
}

// asked takes what the SOCKS server was asked since the last call.
func asked(w *world) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := w.socks
	w.socks = nil
	return out
}

func wantAsked(w *world, want ...string) error {
	if got := asked(w); !slices.Equal(got, want) {
		return fmt.Errorf("the SOCKS server was asked for %q, want %q", got, want)
	}
	return nil
}

var socks = group{"egress proxy", bySOCKS, []attempt{
	{"a name goes to the proxy as a name", func(w *world) error {
		asked(w)
		got, err := overTLS(w, w.a, 443, "a.example", "a.example")
		return errors.Join(status(got, err, 200, "hello"), wantAsked(w, "a.example"))
	}},
	{"a request goes to the proxy", func(w *world) error {
		got, err := w.client(w.a, 80, "").get("a.example", "/")
		return errors.Join(status(got, err, 200, "hello"), wantAsked(w, "a.example"))
	}},
	{"an address goes to the proxy", func(w *world) error {
		got, err := w.says(w.b, 9000, "hello")
		if err != nil || got != "hello" {
			return fmt.Errorf("got %q, %v", got, err)
		}
		return wantAsked(w, w.b.String())
	}},
	{"the proxy by its name", func(w *world) error {
		p := bySOCKS(w)
		p.Proxy.Address = "proxy.example:1080"
		w.policy(p)
		got, err := w.client(w.a, 80, "").get("a.example", "/")
		return errors.Join(status(got, err, 200, "hello"), wantAsked(w, "a.example"))
	}},
	{"a denied name never gets to the proxy", func(w *world) error {
		err := alert(w, w.c, 443, clientHello(1<<14, false, "c.example"))
		return errors.Join(err, wantAsked(w))
	}},
	{"datagrams past the proxy", func(w *world) error { return refused(w, w.udp(w.b, 123)) }},
	{"a wrong password", func(w *world) error {
		p := bySOCKS(w)
		p.Proxy.Password = "q"
		w.policy(p)
		_, err := w.says(w.b, 9000, "hello")
		if err == nil {
			return errors.New("it got through")
		}
		return errors.Join(unseen(w, ":9000"), wantAsked(w))
	}},
	{"the proxy over TLS", func(w *world) error {
		return overProxyTLS(w, "proxy.example:1443", cay.ProxyTLS{}, true)
	}},
	{"the proxy over TLS, by a name and an authority that are told", func(w *world) error {
		own := cay.ProxyTLS{ServerName: "proxy.example", CACert: inPEM(w.certs["ca"])}
		return overProxyTLS(w, w.c.String()+":1443", own, true)
	}},
	{"a proxy with another's certificate", func(w *world) error {
		return overProxyTLS(w, "proxy.example:1443", cay.ProxyTLS{ServerName: "a.example"}, false)
	}},
	{"a proxy whose authority is not trusted", func(w *world) error {
		own := cay.ProxyTLS{CACert: inPEM(w.certs["a.example"])}
		return overProxyTLS(w, "proxy.example:1443", own, false)
	}},
	{"a proxy that speaks no TLS", func(w *world) error {
		return overProxyTLS(w, "proxy.example:1080", cay.ProxyTLS{}, false)
	}},
	{"a proxy that is away", func(w *world) error {
		p := bySOCKS(w)
		p.Proxy.Address = w.c.String() + ":1081"
		w.policy(p)
		_, err := w.says(w.b, 9000, "hello")
		return refused(w, err)
	}},
	{"a proxy at a private address", func(w *world) error {
		p := bySOCKS(w)
		p.Proxy.Address = w.private[0].String() + ":1080"
		w.policy(p)
		_, err := w.says(w.b, 9000, "hello")
		return refused(w, err)
	}},
	{"a proxy on the host", func(w *world) error {
		p := bySOCKS(w)
		p.Proxy.Address = "127.0.0.1:1080"
		w.policy(p)
		_, err := w.says(w.b, 9000, "hello")
		return refused(w, err)
	}},
}}

var live = group{"changes of policy", byName, []attempt{
	{"a narrower policy cuts what it no longer allows", func(w *world) error {
		c, err := w.tcp(w.a, 443)
		if err != nil {
			return err
		}
		c.Write(clientHello(1<<14, false, "a.example"))
		if _, err := c.Read(make([]byte, 1)); err != nil {
			return err
		}
		w.policy(cay.NetworkPolicy{})
		_, err = io.Copy(io.Discard, c)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return errors.New("it goes on")
		}
		return nil
	}},
	{"a direct connection ends when only names are allowed", func(w *world) error {
		w.policy(cay.DefaultNetwork())
		c, err := w.tcp(w.a, 9000)
		if err != nil {
			return err
		}
		io.WriteString(c, "a")
		if _, err := c.Read(make([]byte, 1)); err != nil {
			return err
		}
		w.policy(byName(w))
		for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
			if _, err := io.WriteString(c, "b"); err != nil {
				return nil
			}
		}
		return errors.New("it goes on")
	}},
	{"a wider policy takes effect at once", func(w *world) error {
		if err := closed(w, w.b, 9000); err != nil {
			return err
		}
		w.policy(cay.DefaultNetwork())
		got, err := w.says(w.b, 9000, "hello")
		if err != nil || got != "hello" {
			return fmt.Errorf("got %q, %v", got, err)
		}
		return nil
	}},
	{"what was tried is listed", func(w *world) error {
		got, err := w.client(w.b, 80, "").get("b.example", "/")
		if err := status(got, err, 403, ""); err != nil {
			return err
		}
		list := w.proxy.Connections(w.slot.Addr)
		last := list[len(list)-1]
		if last.Allowed || last.Name != "b.example" || last.Rule != "denyOut 0.0.0.0/0" || last.Protocol != "http" {
			return fmt.Errorf("listed as %+v", last)
		}
		return nil
	}},
}}

// overProxyTLS wants a connection through a SOCKS server that is reached over
// TLS, or none at all.
func overProxyTLS(w *world, address string, how cay.ProxyTLS, through bool) error {
	p := bySOCKS(w)
	p.Proxy.Address, p.Proxy.TLS = address, &how
	w.policy(p)
	asked(w)
	got, err := w.says(w.b, 9000, "hello")
	switch {
	case through && (err != nil || got != "hello"):
		return fmt.Errorf("got %q, %v", got, err)
	case through:
		return wantAsked(w, w.b.String())
	case err == nil:
		return errors.New("it got through")
	}
	return errors.Join(unseen(w, ":9000"), wantAsked(w))
}

func inPEM(c tls.Certificate) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Certificate[0]}))
}
