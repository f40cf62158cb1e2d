package proxy

import (
	"cmp"
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"path"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/conns"
	"github.com/cay-run/cay/internal/edge/doors"
	"github.com/cay-run/cay/internal/edge/rates"
	"github.com/cay-run/cay/internal/guest"
	"github.com/cay-run/cay/internal/trail"
)

// Target is a sandbox's address, and the tokens that open it.
type Target struct {
	Instance     cay.InstanceID
	Team         cay.TeamID
	Addr         netip.Addr
	Public       bool // false: ports want TrafficToken
	TrafficToken string
	AccessToken  string // the agent's, for what the proxy asks of it
	MaskHost     string // what users' servers see as Host; "${PORT}" is replaced
	HTTPSPorts   []int  // ports whose servers speak TLS
	// AskCommands are patterns of commands and code that wait for MayStart.
	AskCommands []string
}

// Fate is the state of a sandbox that does not run, as far as it is known, and why it
// ended if it has.
type Fate struct {
	State cay.State
	Cause cay.Cause
}

// Config says where sandboxes are.
type Config struct {
	// Lookup finds a running sandbox. NotFound is what it says of one that
	// is over; it says so before Cut is called.
	Lookup func(cay.SandboxID) (Target, error)
	// Asleep finds a sandbox that is paused and that traffic may wake; its
	// Target has no address. Wake has it run, or says why it cannot; callers
	// wait for it. Nil means that nothing is ever woken.
	Asleep func(cay.SandboxID) (Target, bool)
	Wake   func(context.Context, cay.SandboxID) error
	// Fate says what became of a sandbox that Lookup does not find. Nil knows nothing.
	Fate func(cay.SandboxID) Fate
	// Used is called before an authorized request that may change a sandbox
	// reaches it; a command is one that starts a program or runs code. The
	// request waits for the call. Nil makes no call.
	Used func(ctx context.Context, id cay.SandboxID, command bool)
	// MayStart returns why a command or code may not start in a sandbox that has
	// AskCommands; it may wait until ctx ends. It is required where one has. The parties
	// that ask are those that were given the token, where none is named.
	MayStart func(ctx context.Context, id cay.SandboxID, s cay.Start, by ...cay.Origins) error
	// AccessOf returns the plain token of a sandbox that a token of one party stands for,
	// and that party, if it is such a token. Nil knows none.
	AccessOf func(id cay.SandboxID, token string) (access string, by cay.Origins, marked bool)
	// Tokens yields the access tokens of the sandboxes that a signed file URL
	// may reach: those that run, and those that traffic may wake. Nil means
	// that such URLs need a host or headers.
	Tokens func(context.Context) iter.Seq2[cay.SandboxID, string]
	// Domain is the server's own, if it has one, with a port where it has one.
	Domain string
	// Paths offers the path form, /s/<id>/<port>/. Where it is not offered and
	// there is a Domain, such paths lead to the host below it.
	Paths bool
	// Dial replaces the net package's in tests.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	Log  *slog.Logger
}

// Proxy serves the ports of sandboxes. Its methods are safe for concurrent
// use.
type Proxy struct {
	cfg    Config
	search chan struct{} // held by the one search for a signature's sandbox
	closed atomic.Bool   // its server ends, and no sandbox with it

	mu        sync.Mutex
	upstreams map[cay.SandboxID]*upstream
	joints    map[*joined]struct{} // nil after Drain
}

// New returns a proxy.
func New(cfg Config) *Proxy {
	if cfg.Dial == nil {
		cfg.Dial = (&net.Dialer{KeepAliveConfig: conns.Patience}).DialContext
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	return &Proxy{cfg: cfg, search: make(chan struct{}, 1), upstreams: map[cay.SandboxID]*upstream{}, joints: map[*joined]struct{}{}}
}

// Wrap returns a handler that serves requests to sandboxes and leaves all
// others to next.
func (p *Proxy) Wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch at := p.find(r); {
		case at.verdict == notOurs:
			next.ServeHTTP(p.replyTo(w, r), r)
		case at.verdict == broken:
			badRoute(w, r, at)
		case at.moved != "":
			move(w, at)
		default:
			p.serve(w, at.inside(r), at)
		}
	})
}

// find tells which sandbox a request is for. The order is part of the
// contract: host label, path, headers, signature, and the page that asks.
func (p *Proxy) find(r *http.Request) place {
	if rt, v := parseHost(r.Host); v != notOurs {
		return place{route: rt, verdict: v, way: byHost}
	}
	if at := p.byPathForm(r); at.verdict != notOurs {
		return at
	}
	if trustsHeaders(r.Host, p.cfg.Domain) {
		if rt, v := parseHeaders(r.Header); v != notOurs {
			return place{route: rt, verdict: v, way: byHeaders}
		}
		if rt, v := p.signedFiles(r); v != notOurs {
			return place{route: rt, verdict: v, way: bySignature}
		}
	}
	return p.astray(r)
}

func badRoute(w http.ResponseWriter, r *http.Request, at place) {
	switch at.way {
	case byHost:
		rates.Refuse(w, http.StatusBadRequest, "Invalid host: want <port>-<sandbox id>.<domain>")
	case byHeaders:
		rates.Refuse(w, http.StatusBadRequest, "Invalid headers "+headerID+" or "+headerPort)
	case byPath:
		badPath(at.id).write(w, r)
	default:
		w.Header().Set("Content-Type", "application/json; charset=utf-8")
		w.Header().Set("Access-Control-Allow-Origin", "*")
		rates.TellRetry(w.Header(), cay.Retry{})
		w.WriteHeader(http.StatusUnauthorized)
		reason := "invalid signature"
		if _, signature := signatureOf(r); signature.Plausible() && signature.Expired(time.Now()) {
			reason = "signature is already expired"
		}
		fmt.Fprintf(w, `{"code":401,"message":%q}`, reason)
	}
}

// move tells where a request has to be made, with its method and body.
func move(w http.ResponseWriter, at place) {
	h := w.Header()
	h.Set("Location", at.moved)
	h.Set("Cache-Control", "no-store")
	h.Set("Vary", "Referer, Cookie")
	w.WriteHeader(http.StatusTemporaryRedirect)
}

// Cut breaks every connection to an instance of a sandbox and forgets it.
// Lookup must say already that it is over, or that there is another, or the
// next request opens new ones.
func (p *Proxy) Cut(id cay.SandboxID, instance cay.InstanceID) {
	p.mu.Lock()
	l := p.upstreams[id]
	if l != nil && l.instance != instance {
		l = nil // of one that came after it
	} else {
		delete(p.upstreams, id)
	}
	p.mu.Unlock()
	if l != nil {
		p.cfg.Log.Debug("connections cut", "sandbox", id, "instance", l.instance, "addr", l.addr)
		if p.isSaved(id) {
			l.rest()
		}
		l.cut()
	}
}

// Close is Break at the end of the server. Requests under way get no answer: the sandboxes live on.
func (p *Proxy) Close() {
	p.closed.Store(true)
	p.Break()
}

// Break breaks all connections.
func (p *Proxy) Break() {
	p.mu.Lock()
	upstreams := p.upstreams
	p.upstreams = map[cay.SandboxID]*upstream{}
	p.mu.Unlock()
	for _, l := range upstreams {
		l.cut()
	}
}

// trip is one request on its way.
type trip struct {
	place
	in       *http.Request // as it came, but for its prefix
	target   Target
	upstream *upstream
	upload   *upload // nil without a body
	wakes    int     // how often the sandbox was woken for it
}

func (p *Proxy) serve(w http.ResponseWriter, r *http.Request, at place) {
	if r.Method == http.MethodConnect {
		rates.Refuse(w, http.StatusMethodNotAllowed, "CONNECT is not offered")
		return
	}
	if followed := trail.Of(r.Context()); followed != nil {
		followed.Face, followed.Sandbox = faceOf(at.port), at.id
	}
	r, by := p.unmark(r, at.id)
	target, l, err := p.reach(w, r, at)
	if err != nil {
		p.gone(at.id, err).write(w, r)
		return
	}
	if l == nil {
		return // answered
	}
	if answered(w, r, at, target) {
		return
	}
	// Over HTTP/1 the server would else drain and close the request's body when
	// the answer begins, under the transport that still reads it; the transport
	// then drops the guest's connection in mid-answer.
	if r.ProtoMajor == 1 {
		_ = http.NewResponseController(w).EnableFullDuplex() // net/http's own writers can
	}
	if !p.mayStart(w, r, at, target, l, by) {
		return
	}
	if p.cfg.Used != nil {
		if target, l, err = p.use(w, r, at, target, l); err != nil {
			p.gone(at.id, err).write(w, r)
			return
		}
		if l == nil {
			return // answered
		}
	}
	p.carryOn(w, &trip{place: at, in: r, target: target, upstream: l})
}

// carryOn sends a request to its guest.
func (p *Proxy) carryOn(w http.ResponseWriter, t *trip) {
	if isUpgrade(t.in) && !doors.Is(t.port) {
		p.upgrade(w, t.in, t)
		return
	}
	p.forward(w, t)
}

// reach finds the upstream of a sandbox, and has one that is paused run first. When it
// returns neither an upstream nor an error, it has answered.
func (p *Proxy) reach(w http.ResponseWriter, r *http.Request, at place) (Target, *upstream, error) {
	for wakes := 0; ; wakes++ {
		target, l, err := p.upstream(at.id)
		if err == nil || p.cfg.Asleep == nil || wakes == maxWakes {
			return target, l, err
		}
		if cay.KindOf(err) == cay.Conflict { // another instance has just taken its place
			continue
		}
		sleeper, ok := p.cfg.Asleep(at.id)
		if !ok {
			return target, l, err
		}
		if woken, err := p.wake(w, r, at, sleeper); !woken {
			return Target{}, nil, err
		}
	}
}

// unmark replaces the token of one party by the plain one, which the guest knows.
func (p *Proxy) unmark(r *http.Request, id cay.SandboxID) (*http.Request, []cay.Origins) {
	token := r.Header.Get("X-Access-Token")
	if p.cfg.AccessOf == nil || token == "" {
		return r, nil
	}
	access, by, marked := p.cfg.AccessOf(id, token)
	if !marked {
		return r, nil
	}
	in := *r
	in.Header = r.Header.Clone()
	in.Header.Set("X-Access-Token", access)
	return &in, []cay.Origins{by}
}

// faceOf is what a request is for.
func faceOf(port int) trail.Face {
	switch port {
	case guest.AgentPort:
		return trail.Agent
	case guest.InterpPort:
		return trail.Interpreter
	}
	return trail.Port
}

// answered reports whether a request may not pass, and then was told so.
func answered(w http.ResponseWriter, r *http.Request, at place, target Target) bool {
	if at.shared() && anotherTeams(r, target.Team) {
		otherTeam(at.id).write(w, r)
		return true
	}
	if bind(w, r, at, target.Team) || keepToken(w, r, at, target) {
		return true
	}
	a, no := refuse(r, at, target)
	if no {
		if followed := trail.Of(r.Context()); followed != nil {
			followed.Code = string(cay.Denied)
		}
		a.write(w, r)
	}
	return no
}

// refuse says why a request may not pass.
func refuse(r *http.Request, at place, target Target) (answer, bool) {
	if at.port == guest.AgentPort {
		// The path is cleaned because the agent's router cleans it too.
		internal := slices.Contains(guest.InternalPaths, path.Clean("/"+r.URL.Path))
		return internalRoute(at.id), internal
	}
	if target.Public || keptToken(r, at.id, target.TrafficToken) {
		return answer{}, false
	}
	got := cmp.Or(r.Header.Get(trafficToken), r.URL.Query().Get(trafficToken))
	if got == "" {
		return tokenMissing(at.id), true
	}
	same := target.TrafficToken != "" && subtle.ConstantTimeCompare([]byte(got), []byte(target.TrafficToken)) == 1
	return tokenInvalid(at.id), !same
}

// upstream finds or makes the upstream of a sandbox's present instance.
//
// A sandbox may end between Lookup and here, and its address may serve
// another; therefore a new upstream is entered first and looked up again after: if
// the sandbox is still there then its Cut is yet to come and finds the upstream.
func (p *Proxy) upstream(id cay.SandboxID) (Target, *upstream, error) {
	target, err := p.cfg.Lookup(id)
	if err != nil {
		return Target{}, nil, err
	}
	l, old := p.enter(id, target)
	if old == l {
		return target, l, nil
	}
	if old != nil {
		old.cut()
	}
	again, err := p.cfg.Lookup(id)
	if err == nil && again.Instance != target.Instance {
		err = cay.Errorf(cay.Conflict, "sandbox %s is changing its instance", id)
	}
	if err != nil {
		p.drop(id, l)
		return Target{}, nil, err
	}
	return again, l, nil
}

// enter returns the upstream for a target and what was there before: the same
// upstream, that of an older instance, or nil.
func (p *Proxy) enter(id cay.SandboxID, target Target) (l, old *upstream) {
	p.mu.Lock()
	defer p.mu.Unlock()
	old = p.upstreams[id]
	if old != nil && old.instance == target.Instance && old.addr == target.Addr {
		return old, old
	}
	l = newUpstream(target, p.cfg.Dial)
	p.upstreams[id] = l
	return l, old
}

// drop cuts one upstream, and forgets it unless it was replaced already.
func (p *Proxy) drop(id cay.SandboxID, l *upstream) {
	p.mu.Lock()
	if p.upstreams[id] == l {
		delete(p.upstreams, id)
	}
	p.mu.Unlock()
	l.cut()
}

func fromLoopback(r *http.Request) bool {
	ap, err := netip.ParseAddrPort(r.RemoteAddr)
	return err == nil && ap.Addr().Unmap().IsLoopback()
}

// failed answers a request that got no response. One whose response had begun
// never comes here: its connection is broken off.
func (p *Proxy) failed(w http.ResponseWriter, t *trip, err error) {
	r := t.in
	var dial *dialError
	switch {
	case t.upload.failure(r) != "":
		badBody(t.id, t.upload.failure(r)).write(w, r)
	case r.Context().Err() != nil: // the caller left
		panic(http.ErrAbortHandler)
	case p.closed.Load():
		panic(http.ErrAbortHandler)
	case t.upstream.isPaused(), errors.Is(err, errOver):
		if !p.again(w, t, err) {
			p.interrupted(w, t)
		}
	case p.replaced(t): // the fate of the request is unknown
		panic(http.ErrAbortHandler)
	case t.upstream.isCut(), !p.alive(t):
		p.gone(t.id, noSandbox(t.id)).write(w, r)
	case errors.As(err, &dial):
		if dial.silent {
			p.cfg.Log.Log(r.Context(), t.upstream.levelOf(t.port), "a guest was silent when it was dialled", "sandbox", t.id, "port", t.port, "err", err)
		}
		portClosed(t.route).write(w, r)
	default:
		p.cfg.Log.Log(r.Context(), t.upstream.levelOf(t.port), "a guest gave no answer", "sandbox", t.id, "port", t.port, "method", r.Method, "err", err)
		noAnswer(t.route).write(w, r)
	}
}

func (p *Proxy) alive(t *trip) bool {
	now, err := p.cfg.Lookup(t.id)
	return err == nil && now.Instance == t.upstream.instance
}

// replaced reports whether a sandbox runs on as another instance.
func (p *Proxy) replaced(t *trip) bool {
	now, err := p.cfg.Lookup(t.id)
	return err == nil && now.Instance != t.upstream.instance
}
