package egress

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/conns"
	guestside "github.com/cay-run/cay/internal/guest"
)

const (
	firstWord    = 5 * time.Second // for a client to say what it wants, where that decides
	lastWord     = time.Second     // the same, where it only decides how to say no
	dialWithin   = 10 * time.Second
	maxFlows     = 512 // connections of a guest at once; more are reset
	peekSize     = maxHello + 8<<10
	portWeb      = 80
	portTLS      = 443
	portDNSOverT = 853
)

// Config is what a Proxy works with. Dial and Original are required.
type Config struct {
	// Dial connects to addresses of the internet. It must refuse what is
	// closed to guests, whatever this package thinks.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Original is where a diverted connection was going.
	Original func(net.Conn) (netip.AddrPort, error)
	// Closed reports addresses that no policy opens.
	Closed func(netip.Addr) bool
	// Resolvers answer questions about names.
	Resolvers []netip.AddrPort
	// Secret returns the present value of a team's secret.
	Secret func(ctx context.Context, team cay.TeamID, name string) (string, error)
	// Identity returns a token by which a sandbox proves to an audience which
	// one it is; nil makes none.
	Identity func(team cay.TeamID, id cay.SandboxID, audience string) (string, error)
	// Authority signs what guests see instead of a server's certificate when
	// headers are set; nil sets none over TLS.
	Authority *Authority
	// Packages answers for some hosts at the Gateway's address; nil for none.
	Packages Packages
	Gateway  netip.Addr
	// Server is this host's own; nil keeps guests from it.
	Server *Server
	// Models answers a guest's request to cay.ModelHost, at the Gateway's address.
	// denied says why the guest may not ask; empty where it may. nil has no models.
	Models func(rw http.ResponseWriter, r *http.Request, from Visitor, denied string)
	// TLS verifies servers; nil trusts whom the host trusts.
	TLS *tlsRoots
	// Ask has a question of a guest answered by a person, as far as that comes
	// before the end of ctx; nil answers no.
	Ask func(context.Context, Question) Answer
	// OnDenied is told of refusals, of the same one once a minute. It is called
	// by one goroutine, which no guest waits for; its context ends with Close.
	OnDenied func(context.Context, cay.SandboxID, cay.Connection)
	// OnAllowed is told of each connection that is allowed, OnSecret of each
	// request that got a secret, by name. Guests wait for both; nil tells
	// nothing.
	OnAllowed func(cay.TeamID, cay.SandboxID, cay.Connection)
	OnSecret  func(team cay.TeamID, id cay.SandboxID, secret, host string)
	Log       *slog.Logger
}

// Proxy takes diverted connections on. Its methods are safe for concurrent
// use.
type Proxy struct {
	cfg     Config
	denials *denials // nil where OnDenied is
	names   *resolver
	web     *web
	ctx     context.Context
	cancel  context.CancelFunc
	work    sync.WaitGroup

	decided decisions

	mu     sync.RWMutex
	guests map[netip.Addr]*guest
	closed bool
}

// decisions counts what guests tried to reach.
type decisions struct{ allowed, refused atomic.Int64 }

// Decided is how many connections and questions of guests were allowed and
// refused so far.
func (p *Proxy) Decided() (allowed, refused int64) {
	return p.decided.allowed.Load(), p.decided.refused.Load()
}

// guest is an instance that may send.
type guest struct {
	sandbox   cay.SandboxID
	team      cay.TeamID
	rules     atomic.Pointer[rules]
	log       ring
	asking    atomic.Int32                                    // questions by datagram under way
	told      *denials                                        // nil tells none
	onAllowed func(cay.TeamID, cay.SandboxID, cay.Connection) // nil tells none
	decided   *decisions
	asks      asks

	mu    sync.Mutex
	flows map[*flow]struct{}
	over  bool
}

// flow is a guest's connection.
type flow struct {
	guest *guest
	conn  net.Conn // to the guest
	dst   netip.AddrPort
	name  atomic.Pointer[string] // that it was allowed by
	entry *entry

	sent, received atomic.Int64
	done           sync.Once
	// Guarded by the guest's lock.
	far  net.Conn           // the other side, when bytes are only passed on
	stop context.CancelFunc // of the wait for an answer
	goes map[string]bool    // names that it was allowed by an answer
}

// New returns a proxy that does not serve yet.
func New(cfg Config) *Proxy {
	if cfg.Closed == nil {
		cfg.Closed = func(netip.Addr) bool { return false }
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	p := &Proxy{cfg: cfg, names: newResolver(cfg.Resolvers, cfg.Closed), guests: map[netip.Addr]*guest{}}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.web = newWeb(p)
	if cfg.OnDenied != nil {
		p.denials = newDenials()
		p.work.Go(func() { p.denials.run(p.ctx, cfg.OnDenied) })
	}
	return p
}

// Close cuts every connection and waits for the work to end. Later arrivals on
// the listeners, which their owner closes, are refused.
func (p *Proxy) Close() {
	p.cancel()
	p.mu.Lock()
	p.closed = true
	for addr, g := range p.guests {
		delete(p.guests, addr)
		g.end()
	}
	p.mu.Unlock()
	p.web.close()
	p.work.Wait()
}

// start has work done that Close waits for, and reports false when Close was
// called before.
func (p *Proxy) start(work func()) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.work.Go(work)
	return true
}

// Set gives an address to an instance, with its policy. Connections that the
// new policy does not allow are cut.
func (p *Proxy) Set(addr netip.Addr, spec cay.InstanceSpec) {
	r := compile(spec.Network)
	p.mu.Lock()
	g := p.guests[addr]
	// A pooled sandbox has its id before it has a team.
	if g == nil || g.sandbox != spec.Sandbox || g.team != spec.Team {
		if g != nil {
			g.end()
		}
		g = &guest{sandbox: spec.Sandbox, team: spec.Team, told: p.denials, onAllowed: p.cfg.OnAllowed, decided: &p.decided, flows: map[*flow]struct{}{}}
		p.guests[addr] = g
	}
	p.mu.Unlock()
	g.rules.Store(r)
	g.review(r)
}

// Drop forgets the instance of an address and cuts its connections.
func (p *Proxy) Drop(addr netip.Addr) {
	p.mu.Lock()
	g := p.guests[addr]
	delete(p.guests, addr)
	p.mu.Unlock()
	if g != nil {
		g.end()
	}
}

// Connections lists what an address tried to reach lately, the oldest first.
func (p *Proxy) Connections(addr netip.Addr) []cay.Connection {
	p.mu.RLock()
	g := p.guests[addr]
	p.mu.RUnlock()
	if g == nil {
		return nil
	}
	return g.log.list()
}

func (p *Proxy) guest(from net.Addr) *guest {
	a, err := netip.ParseAddrPort(from.String())
	if err != nil {
		return nil
	}
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.guests[a.Addr().Unmap()]
}

// end cuts all that a guest has.
func (g *guest) end() {
	g.mu.Lock()
	g.over = true
	flows := g.flows
	g.flows = map[*flow]struct{}{}
	g.mu.Unlock()
	for f := range flows {
		f.cut()
	}
}

// review cuts what the rules no longer allow.
func (g *guest) review(r *rules) {
	g.mu.Lock()
	flows := slices.Collect(maps.Keys(g.flows))
	g.mu.Unlock()
	for _, f := range flows {
		if name := f.name.Load(); name != nil && !f.allows(r, *name) {
			f.cut()
		}
	}
}

// begin counts a flow among the guest's, or says that there are too many.
func (g *guest) begin(f *flow) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.over || len(g.flows) >= maxFlows {
		return false
	}
	g.flows[f] = struct{}{}
	return true
}

// refuse records what was not allowed.
func (g *guest) refuse(c cay.Connection) {
	c.At, c.Allowed = time.Now(), false
	g.decided.refused.Add(1)
	g.log.add(c)
	if g.told != nil {
		g.told.add(g.sandbox, c)
	}
}

// cut ends a flow abruptly.
func (f *flow) cut() {
	reset(f.conn)
	f.guest.mu.Lock()
	far, stop := f.far, f.stop
	f.guest.mu.Unlock()
	if far != nil {
		far.Close()
	}
	if stop != nil {
		stop()
	}
}

// finish records how much went through.
func (f *flow) finish() {
	f.done.Do(func() {
		f.guest.mu.Lock()
		delete(f.guest.flows, f)
		e := f.entry
		f.guest.mu.Unlock()
		if e != nil {
			e.finish(f.sent.Load(), f.received.Load())
		}
	})
}

// allowed records that a flow may go on, and under which name.
func (f *flow) allowed(protocol, name string, v verdict) {
	f.name.Store(&name)
	c := cay.Connection{At: time.Now(), Allowed: true, Open: true, Rule: v.rule, Protocol: protocol, Name: name, Address: f.dst.String()}
	f.guest.mu.Lock()
	fresh := f.entry == nil
	if fresh {
		f.guest.decided.allowed.Add(1)
		f.entry = f.guest.log.add(c)
	}
	f.guest.mu.Unlock()
	if fresh && f.guest.onAllowed != nil {
		f.guest.onAllowed(f.guest.team, f.guest.sandbox, c)
	}
}

func (f *flow) refused(protocol, name, rule string) {
	f.guest.refuse(cay.Connection{Rule: rule, Protocol: protocol, Name: name, Address: f.dst.String()})
}

// reset ends a connection with a reset instead of an orderly end.
func reset(c net.Conn) {
	if t, ok := c.(*net.TCPConn); ok {
		_ = t.SetLinger(0)
	}
	_ = c.Close()
}

// Serve takes diverted connections until the listener is closed.
func (p *Proxy) Serve(l net.Listener) {
	for c := range conns.Each(l) {
		g := p.guest(c.RemoteAddr())
		dst, err := p.cfg.Original(c)
		if g == nil || err != nil || dst.String() == c.LocalAddr().String() {
			reset(c)
			continue
		}
		f := &flow{guest: g, conn: c, dst: dst}
		if !g.begin(f) {
			f.refused("tcp", "", "too many connections at once")
			reset(c)
			continue
		}
		if !p.start(func() { p.handle(f) }) {
			f.finish()
			reset(c)
		}
	}
}

// handle finds out what a connection is for, and passes it on or refuses it.
func (p *Proxy) handle(f *flow) {
	r := f.guest.rules.Load()
	if f.dst == netip.AddrPortFrom(p.cfg.Gateway, guestside.HostPort) {
		p.web.serveInside(f)
		return
	}
	if p.isPackages(f.dst) || p.isModels(f.dst) || p.toServer(f.dst) || p.toGateway(f.dst, r) {
		p.handleHost(f, r)
		return
	}
	byAddress := r.decide(f.dst.Addr(), "")
	if p.cfg.Closed(f.dst.Addr()) {
		byAddress = verdict{rule: closedRange}
		r = &rules{} // no name opens it
	}
	names := !byAddress.allow && (!r.names.empty() || !r.asks.empty())
	dressed := !r.headers.empty() && (f.dst.Port() == portWeb || f.dst.Port() == portTLS)
	if byAddress.allow && !dressed {
		p.tunnel(f, nil, "tcp", "", byAddress)
		return
	}
	patience := lastWord
	if names || dressed {
		patience = firstWord
	}
	br := bufio.NewReaderSize(f.conn, peekSize)
	head, err := f.first(br, patience)
	switch {
	case err != nil && (!byAddress.allow || !isTimeout(err)):
		p.drop(f, "tcp", "", byAddress.rule)
	case err != nil: // a server that speaks first
		p.tunnel(f, br, "tcp", "", byAddress)
	case head == recordHandshake:
		p.handleTLS(f, br, r, byAddress)
	case isHTTP(br):
		_ = f.conn.SetReadDeadline(time.Time{})
		p.web.serve(f, br, "")
	case byAddress.allow:
		p.tunnel(f, br, "tcp", "", byAddress)
	default:
		p.drop(f, "tcp", "", byAddress.rule)
	}
}

// first waits for a client's first byte, which stays to be read. When this host
// stands still, its clock does not, and a byte that came meanwhile seems too
// late: so there is a second look. The bytes after it have a time of their own.
func (f *flow) first(br *bufio.Reader, patience time.Duration) (byte, error) {
	_ = f.conn.SetReadDeadline(time.Now().Add(patience))
	head, err := br.Peek(1)
	if isTimeout(err) {
		_ = f.conn.SetReadDeadline(time.Now().Add(lastWord))
		head, err = br.Peek(1)
	}
	if err != nil {
		return 0, err
	}
	_ = f.conn.SetReadDeadline(time.Now().Add(patience))
	return head[0], nil
}

func isTimeout(err error) bool {
	var e net.Error
	return errors.As(err, &e) && e.Timeout()
}

// drop refuses a connection without a word.
func (p *Proxy) drop(f *flow, protocol, name, rule string) {
	f.refused(protocol, name, rule)
	reset(f.conn)
	f.finish()
}

// alertDenied is the TLS alert access_denied, which clients show to people.
var alertDenied = []byte{21, 3, 3, 0, 2, 2, 49}

// dropTLS refuses a connection with an alert. It is recorded first: the refused
// client may read the record at once.
func (p *Proxy) dropTLS(f *flow, name, rule string) {
	f.refused("tls", name, rule)
	_ = f.conn.SetWriteDeadline(time.Now().Add(lastWord))
	_, _ = f.conn.Write(alertDenied)
	_ = f.conn.Close()
	f.finish()
}

func (p *Proxy) handleTLS(f *flow, br *bufio.Reader, r *rules, byAddress verdict) {
	h, err := readHello(br)
	_ = f.conn.SetReadDeadline(time.Time{})
	if err != nil && byAddress.allow {
		p.tunnel(f, br, "tcp", "", byAddress)
		return
	}
	if err != nil {
		p.dropTLS(f, "", byAddress.rule)
		return
	}
	v := r.decide(f.dst.Addr(), h.name)
	_, dressed := r.headers.find(h.name)
	switch {
	case p.cfg.Closed(f.dst.Addr()):
		p.dropTLS(f, h.name, byAddress.rule)
	case v.ask:
		p.handleAsked(f, br, r, h, v)
	case !v.allow && h.name == "" && !(r.names.empty() && r.asks.empty()):
		p.dropTLS(f, "", "no server name to go by")
	case !v.allow:
		p.dropTLS(f, h.name, v.rule)
	case v.named && f.dst.Port() == portDNSOverT:
		p.dropTLS(f, h.name, "DNS over TLS")
	case (v.named || dressed) && !p.names.has(p.ctx, h.name, f.dst.Addr()):
		p.dropTLS(f, h.name, "the address is not the name's")
	case dressed && p.cfg.Authority != nil:
		p.web.serve(f, br, h.name)
	case v.named && h.ech:
		p.dropTLS(f, h.name, "the client hides the server's name (ECH)")
	default:
		p.tunnel(f, br, "tls", h.name, v)
	}
}

// dial connects to where a flow was going, itself or through the policy's
// proxy, which may find the address of an allowed name for itself.
func (p *Proxy) dial(ctx context.Context, r *rules, dst netip.AddrPort, name string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialWithin)
	defer cancel()
	if r.proxy == nil {
		return p.cfg.Dial(ctx, "tcp4", dst.String())
	}
	return p.dialSOCKS(ctx, r.proxy, dst, name)
}

// tunnel connects and passes bytes on, both ways, unread.
func (p *Proxy) tunnel(f *flow, br *bufio.Reader, protocol, name string, v verdict) {
	defer f.finish()
	_ = f.conn.SetReadDeadline(time.Time{})
	remote := ""
	if v.named {
		remote = name
	}
	var far net.Conn
	var err error
	if v.ask {
		far, err = p.dialName(p.ctx, f.guest.rules.Load(), name, f.dst.Port())
	} else {
		far, err = p.dial(p.ctx, f.guest.rules.Load(), f.dst, remote)
	}
	if err != nil {
		f.allowed(protocol, name, verdict{rule: v.rule + "; it cannot be reached"})
		reset(f.conn)
		return
	}
	f.guest.mu.Lock()
	f.far = far
	over := f.guest.over
	f.guest.mu.Unlock()
	f.allowed(protocol, name, v)
	if over || !f.allows(f.guest.rules.Load(), name) { // it changed meanwhile
		f.cut()
		return
	}
	defer context.AfterFunc(p.ctx, f.cut)()
	var both sync.WaitGroup
	both.Go(func() {
		if br != nil && br.Buffered() > 0 {
			head, _ := br.Peek(br.Buffered())
			n, err := far.Write(head)
			f.sent.Add(int64(n))
			if err != nil {
				f.cut()
				return
			}
		}
		stream(far, f.conn, &f.sent, f.cut)
	})
	stream(f.conn, far, &f.received, f.cut)
	both.Wait()
	_ = f.conn.Close()
	_ = far.Close()
}

// stream copies until the end of one direction, and passes the end on. An error
// of one direction ends both.
func stream(to, from net.Conn, count *atomic.Int64, cut func()) {
	const piece = 1 << 20
	for {
		n, err := io.CopyN(to, from, piece)
		count.Add(n)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			cut()
			return
		}
	}
	if half, ok := to.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
	}
}

// isHTTP reports whether what comes begins with a method and a space.
func isHTTP(br *bufio.Reader) bool {
	const longest = 24 // no method is longer
	for n := 1; n <= longest; n++ {
		head, err := br.Peek(n)
		if err != nil {
			return false
		}
		c := head[n-1]
		if c == ' ' {
			return n > 1
		}
		if (c < 'A' || c > 'Z') && c != '-' {
			return false
		}
	}
	return false
}

var _ http.Handler = (*web)(nil)
