package egress

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/cay-run/cay"
)

// A policy may have names, and uses of secrets, that a person is asked about. The
// guest's connection waits here for the answer. Until it is a yes nothing of the
// guest's leaves the host, no question about the name either: the guest is told
// that the gateway is the name's address, and the proxy dials the name itself.

const (
	// askedWithin is how long a connection waits for an answer. The question waits
	// on; the next connection joins it.
	askedWithin = time.Minute
	// askedAgain is how long a refusal stands in for another question, so that a
	// guest which tries without end costs little.
	askedAgain = 5 * time.Second
	// askedMost bounds the different questions of a guest at once.
	askedMost = 32

	noAnswers = "this server has no approvals"
)

// Question is what a guest wants to do that a person decides.
type Question struct {
	Team    cay.TeamID
	Sandbox cay.SandboxID
	Kind    cay.ApprovalKind
	Subject string // what a decision may be remembered for
	Title   string
	Body    string // all that matters: equal questions have equal ones
}

// Answer says whether a guest may, and why not.
type Answer struct {
	Yes bool
	Why string
}

// asked is a question of a guest that waits, or was refused a moment ago.
type asked struct {
	done   chan struct{}
	answer Answer
	until  time.Time // of a refusal; set before done is closed
}

// asks are the questions of a guest. The zero value is empty.
type asks struct {
	mu  sync.Mutex
	now map[string]*asked
}

// join returns an equal question, and whether the caller has to ask it.
// nil means that there are too many.
func (a *asks) join(question string) (x *asked, first bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for question, x := range a.now {
		if !x.until.IsZero() && time.Now().After(x.until) {
			delete(a.now, question)
		}
	}
	if x := a.now[question]; x != nil {
		return x, false
	}
	if len(a.now) >= askedMost {
		return nil, false
	}
	if a.now == nil {
		a.now = map[string]*asked{}
	}
	x = &asked{done: make(chan struct{})}
	a.now[question] = x
	return x, true
}

// end gives the answer to all that wait for it.
func (a *asks) end(question string, x *asked, answer Answer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	x.answer = answer
	if answer.Yes {
		delete(a.now, question) // whether it counts again is not known here
	} else {
		x.until = time.Now().Add(askedAgain)
	}
	close(x.done)
}

// ask has a question of a guest answered. It ends with ctx.
func (p *Proxy) ask(ctx context.Context, g *guest, q Question) Answer {
	if p.cfg.Ask == nil {
		return Answer{Why: noAnswers}
	}
	q.Team, q.Sandbox = g.team, g.sandbox
	question := string(q.Kind) + "\x00" + q.Subject + "\x00" + q.Body
	x, first := g.asks.join(question)
	if x == nil {
		return Answer{Why: fmt.Sprintf("%d other questions of the sandbox wait for an answer", askedMost)}
	}
	if first && !p.start(func() {
		// The one that asked may leave; the others wait for the same answer.
		within, cancel := context.WithTimeout(p.ctx, askedWithin)
		defer cancel()
		g.asks.end(question, x, p.cfg.Ask(within, q))
	}) {
		g.asks.end(question, x, Answer{Why: "the server stops"})
	}
	select {
	case <-x.done:
		return x.answer
	case <-ctx.Done():
		return Answer{Why: "the connection ended"}
	}
}

// toGateway reports whether a connection was sent to where the name server leads
// guests for names that are asked about.
func (p *Proxy) toGateway(dst netip.AddrPort, r *rules) bool {
	return dst.Addr() == p.cfg.Gateway && p.cfg.Gateway.IsValid() && !r.asks.empty()
}

// isAsked reports whether a clean name, which no rule allows, is asked about.
func (p *Proxy) isAsked(r *rules, name string) bool {
	_, ok := r.asks.find(name, r.policy.AskOut)
	return ok && p.cfg.Gateway.IsValid()
}

// answerAsked leads a guest to the gateway.
func (p *Proxy) answerAsked(h dnsmessage.Header, q dnsmessage.Question) []byte {
	return p.answerCached(h, q)
}

// mayReach asks whether a flow may go to a host, unless that was answered for the
// flow before. It returns why not.
func (p *Proxy) mayReach(ctx context.Context, f *flow, protocol, name string) (why string) {
	if f.mayGo(name) {
		return ""
	}
	port := strconv.Itoa(int(f.dst.Port()))
	answer := p.ask(ctx, f.guest, Question{
		Kind: cay.EgressApproval, Subject: name + ":" + port, Title: cay.Fit("Reach "+name+" at port "+port, maxTitle),
		Body: "The sandbox wants to connect to " + name + " at port " + port + ", by " + protocol + ".",
	})
	if !answer.Yes {
		return answer.Why
	}
	f.let(name)
	return ""
}

// mayGo and let keep which names a flow was allowed by an answer.
func (f *flow) mayGo(name string) bool {
	f.guest.mu.Lock()
	defer f.guest.mu.Unlock()
	return f.goes[name]
}

func (f *flow) let(name string) {
	f.guest.mu.Lock()
	defer f.guest.mu.Unlock()
	if f.goes == nil {
		f.goes = map[string]bool{}
	}
	f.goes[name] = true
}

// allows reports whether a flow may go on under a name: by its policy, or by an
// answer where the policy asks.
func (f *flow) allows(r *rules, name string) bool {
	v := r.decide(f.dst.Addr(), name)
	if name == cay.ModelHost {
		v = r.decideModels()
	}
	return v.allow || v.ask && f.mayGo(name)
}

// waiting returns a context that ends when the flow is cut.
func (f *flow) waiting(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	f.guest.mu.Lock()
	f.stop = cancel
	over := f.guest.over
	f.guest.mu.Unlock()
	if over {
		cancel()
	}
	return ctx, cancel
}

// handleAsked takes a connection under TLS on, to a name that is asked about.
func (p *Proxy) handleAsked(f *flow, br *bufio.Reader, r *rules, h hello, v verdict) {
	if h.ech {
		p.dropTLS(f, h.name, "the client hides the server's name (ECH)")
		return
	}
	if f.dst.Port() == portDNSOverT {
		p.dropTLS(f, h.name, "DNS over TLS")
		return
	}
	ctx, cancel := f.waiting(p.ctx)
	why := p.mayReach(ctx, f, "TLS", h.name)
	cancel()
	if why != "" {
		p.dropTLS(f, h.name, v.rule+": "+why)
		return
	}
	if _, dressed := r.headers.find(h.name); dressed && p.cfg.Authority != nil {
		p.web.serve(f, br, h.name)
		return
	}
	p.tunnel(f, br, "tls", h.name, v)
}

// decideAsked decides about a request to a host that is asked about. It waits for
// the answer.
func (w *web) decideAsked(v *visit, r *http.Request, host string, decision verdict) *denial {
	switch {
	case v.tls != "" && host != v.tls:
		return &denial{http.StatusMisdirectedRequest, "the host of the request is not the server name of TLS, " + v.tls}
	case r.Method == http.MethodConnect:
		return &denial{http.StatusForbidden, "CONNECT"}
	case !v.once.CompareAndSwap(nil, &host) && *v.once.Load() != host: // the transport dials one name
		return &denial{http.StatusMisdirectedRequest, sameHost}
	}
	v.pinned.Store(true)
	protocol := "HTTP"
	if v.tls != "" {
		protocol = "TLS"
	}
	if why := w.p.mayReach(r.Context(), v.flow, protocol, host); why != "" {
		return &denial{http.StatusForbidden, decision.rule + ": " + why}
	}
	return nil
}

// maxRequestLine bounds what is told of a request, and maxTitle a title.
const (
	maxRequestLine = 500
	maxTitle       = 200
)

// requestLine is a request in one line that is safe to show. The query may be
// secret: a digest stands for it, by which two requests differ.
func requestLine(r *http.Request) string {
	line := r.Method + " " + r.URL.EscapedPath()
	if r.URL.RawQuery != "" {
		sum := sha256.Sum256([]byte(r.URL.RawQuery))
		line += "?…" + hex.EncodeToString(sum[:4])
	}
	return cay.Fit(line, maxRequestLine)
}

// approveSecrets asks whether a request may get the secrets of a rule that wants
// that.
func (w *web) approveSecrets(r *http.Request, v *visit, host string) *denial {
	rule, ok := v.flow.guest.rules.Load().headers.find(host)
	if !ok || !rule.Approve {
		return nil
	}
	names := strings.Join(rule.SecretNames(), ", ")
	answer := w.p.ask(r.Context(), v.flow.guest, Question{
		Kind: cay.SecretApproval, Subject: cay.Fit(host+" "+names, maxRequestLine), Title: cay.Fit("Use a secret for "+host, maxTitle),
		Body: "A request of the sandbox to " + host + " wants the secrets of a rule: " + names + "\n\n" + requestLine(r),
	})
	if !answer.Yes {
		return &denial{http.StatusForbidden, "rules " + host + " approve: " + answer.Why}
	}
	return nil
}

// dialName connects to a name as guests may, or through the policy's proxy, which
// finds its address.
func (p *Proxy) dialName(ctx context.Context, r *rules, name string, port uint16) (net.Conn, error) {
	if r.proxy != nil {
		within, cancel := context.WithTimeout(ctx, dialWithin)
		defer cancel()
		return p.dialSOCKS(within, r.proxy, netip.AddrPortFrom(netip.IPv4Unspecified(), port), name)
	}
	if name == "" {
		return nil, errors.New("no name to dial")
	}
	return p.DialHost(ctx, "tcp4", net.JoinHostPort(name, strconv.Itoa(int(port))))
}
