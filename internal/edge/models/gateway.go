// Package models is the gateway of models at the edge of sandboxes. A program inside
// calls cay.ModelHost in the wire of OpenAI or of Anthropic, without a key; the
// gateway adds the key of its team's provider, counts the tokens, and asks the next
// provider where one does not answer.
//
//	guest ── egress ── Gateway ─┬─ Begin, Reserve: limits and budgets of the sandbox
//	                            ├─ providers in their order, until one answers
//	                            └─ the answer, byte by byte; a copy of it is counted
//
// Of a request's body, the name of the model and the option that asks for the usage
// are changed, and no other byte; of an answer, the event alone that this option
// adds is left out. Bodies are held in memory, within bounds, because a request may
// be sent to several providers. An answer that has begun is never asked for again.
package models

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/conns/outside"
	"github.com/cay-run/cay/internal/control/providers"
	"github.com/cay-run/cay/internal/shares"
)

// The bounds of requests.
const (
	maxBody    = 32 << 20
	maxOfGuest = 2 * maxBody // of all bodies of a sandbox
	maxHeld    = 512 << 20   // of all sandboxes
	bodyWithin = 2 * time.Minute
)

// Guest is the sandbox that a request comes from.
type Guest struct {
	Team    cay.TeamID
	Sandbox cay.SandboxID
}

// Config is what a Gateway works with. Log may be nil.
type Config struct {
	Providers *providers.Providers
	// Networks connect to providers, and to no closed address.
	Networks outside.Networks
	Watch    Watcher // may be nil
	Log      *slog.Logger
}

// How providers take requests.
const (
	answered = "answered"
	refused  = "refused" // an error that no other provider is asked for
	full     = "full"    // 408, 429, 5xx
	silent   = "silent"  // no answer
)

// Watcher is told of what the gateway does.
type Watcher interface {
	// ModelAttempt is told of each request to a provider: how it was taken (answered,
	// refused, full, silent), and when that was clear.
	ModelAttempt(wire cay.ModelWire, outcome string, took time.Duration)
	// ModelRequest is told of each request of a sandbox, at its end: the status of the
	// answer, and its tokens.
	ModelRequest(wire cay.ModelWire, status int, input, output int64)
}

// unwatched is the Watcher of a gateway without one.
type unwatched struct{}

func (unwatched) ModelAttempt(cay.ModelWire, string, time.Duration) {}
func (unwatched) ModelRequest(cay.ModelWire, int, int64, int64)     {}

// Gateway carries requests of sandboxes to models. Its methods are safe for
// concurrent use.
type Gateway struct {
	cfg     Config
	secure  *http.Transport
	plain   *http.Transport
	resting resting
	bodies  *shares.Bound[cay.TeamID] // bytes that requests hold
	guests  *shares.Bound[cay.SandboxID]
}

// New returns a gateway.
func New(cfg Config) *Gateway {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Watch == nil {
		cfg.Watch = unwatched{}
	}
	g := &Gateway{cfg: cfg, bodies: shares.New[cay.TeamID](maxHeld, 0), guests: shares.New[cay.SandboxID](maxHeld, maxOfGuest), resting: resting{until: map[string]rest{}, told: map[string]time.Time{}}}
	g.secure, g.plain = transport(cfg.Networks.DialContext), transport(g.dialPlain)
	return g
}

func transport(dial func(ctx context.Context, network, address string) (net.Conn, error)) *http.Transport {
	return &http.Transport{
		DialContext: dial, DisableCompression: true, ForceAttemptHTTP2: true, TLSHandshakeTimeout: 10 * time.Second,
		MaxIdleConnsPerHost: 64, IdleConnTimeout: 90 * time.Second, MaxResponseHeaderBytes: 256 << 10,
	}
}

// Close lets go of idle connections.
func (g *Gateway) Close() {
	g.secure.CloseIdleConnections()
	g.plain.CloseIdleConnections()
}

// errPlain refuses a provider without TLS that is not near.
var errPlain = errors.New("http is for servers on networks that the operator opened; https for all others")

// dialPlain connects to what is not the internet: a key is sent there as it is.
func (g *Gateway) dialPlain(ctx context.Context, network, address string) (net.Conn, error) {
	c, err := g.cfg.Networks.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	if to, ok := c.RemoteAddr().(*net.TCPAddr); !ok || outside.Internet(to.AddrPort().Addr().Unmap()) {
		_ = c.Close()
		return nil, errPlain
	}
	return c, nil
}

// Serve answers a request of a sandbox to cay.ModelHost. denied says why its network
// policy forbids it; empty where it does not.
func (g *Gateway) Serve(rw http.ResponseWriter, r *http.Request, from Guest, denied string) {
	wire := wireOf(r)
	known, ok := routes[r.URL.Path]
	list := r.URL.Path == listPath
	switch {
	case denied != "":
		refuse(rw, wire, http.StatusForbidden, "", "the sandbox's network policy does not allow this: "+denied)
	case !ok && !list:
		refuse(rw, wire, http.StatusNotFound, "", "there is no such route here; there are /v1/chat/completions, /v1/completions, /v1/responses, /v1/embeddings, /v1/messages, /v1/messages/count_tokens and /v1/models")
	case list && r.Method == http.MethodGet:
		g.list(rw, r, from, wire)
	case list || r.Method != http.MethodPost:
		refuse(rw, wire, http.StatusMethodNotAllowed, "", "this route takes another method")
	default:
		g.carry(rw, r, from, known)
	}
}

// carry has a request answered by a provider.
func (g *Gateway) carry(rw http.ResponseWriter, r *http.Request, from Guest, to route) {
	status := 0 // of the answer
	failed := func(err error) {
		status = cay.StatusOf(err)
		if cay.KindOf(err) == cay.Internal {
			g.cfg.Log.ErrorContext(r.Context(), "a request to a model failed", "sandbox", from.Sandbox, "err", err)
		}
		fail(rw, to.wire, err)
	}
	turn, err := g.cfg.Providers.Begin(r.Context(), from.Team, from.Sandbox)
	if err != nil {
		failed(err)
		g.cfg.Watch.ModelRequest(to.wire, status, 0, 0)
		return
	}
	var input, output int64
	defer func() {
		g.cfg.Watch.ModelRequest(to.wire, status, input, output)
		if err := turn.End(r.Context(), input, output); err != nil {
			g.cfg.Log.ErrorContext(r.Context(), "the tokens of a sandbox are not counted", "sandbox", from.Sandbox, "input", input, "output", output, "err", err)
		}
	}()
	body, release, err := g.read(rw, r, from)
	if err != nil {
		failed(err)
		return
	}
	defer release()
	q, err := readQuestion(body)
	if err != nil {
		failed(err)
		return
	}
	if err := turn.Reserve(r.Context(), q.estimate()); err != nil {
		failed(err)
		return
	}
	choices, err := g.cfg.Providers.Choices(r.Context(), from.Team, to.wire, q.model)
	if err != nil {
		failed(err)
		return
	}
	got, err := g.ask(r, turn, to, q, choices)
	if got.over != "" {
		rw.Header().Set("X-Cay-Provider-Passed-Over", got.over)
	}
	if err != nil {
		failed(err)
		return
	}
	defer got.close()
	rw.Header().Set("X-Cay-Provider", got.from.Name)
	status = got.resp.StatusCode
	cut := got.copyTo(rw)
	if to.usage && got.resp.StatusCode < http.StatusBadRequest {
		input, output = got.meter.tokens(len(body))
		if to.path == "/embeddings" {
			output = 0
		}
	}
	if cut != nil {
		status = 0
		g.cfg.Log.DebugContext(r.Context(), "an answer of a model ended early", "sandbox", from.Sandbox, "provider", got.from.Name, "err", cut)
		panic(http.ErrAbortHandler) // the client must see that it is not whole
	}
}

// take takes room for the body of a request.
func (g *Gateway) take(from Guest, n int64) bool {
	if !g.guests.Take(from.Sandbox, n) {
		return false
	}
	if !g.bodies.Take(from.Team, n) {
		g.guests.Give(from.Sandbox, n)
		return false
	}
	return true
}

// read reads the body of a request.
func (g *Gateway) read(rw http.ResponseWriter, r *http.Request, from Guest) (body []byte, release func(), err error) {
	large := cay.Errorf(cay.Invalid, "the request has more than %d MiB", maxBody>>20)
	n := r.ContentLength
	if n > maxBody {
		return nil, nil, large
	}
	if n < 0 {
		n = maxBody
	}
	if !g.take(from, n) {
		return nil, nil, cay.Errorf(cay.Exhausted, "the requests to models that are under way are too large together").WithCode(cay.CodeRateLimit).WithHint("try again in a moment")
	}
	release = func() { g.bodies.Give(from.Team, n); g.guests.Give(from.Sandbox, n) }
	control := http.NewResponseController(rw)
	_ = control.SetReadDeadline(time.Now().Add(bodyWithin)) // where a connection has one
	body, err = io.ReadAll(http.MaxBytesReader(rw, r.Body, maxBody))
	_ = control.SetReadDeadline(time.Time{})
	if err != nil {
		release()
		var tooLarge *http.MaxBytesError
		if errors.As(err, &tooLarge) {
			return nil, nil, large
		}
		return nil, nil, cay.Wrap(cay.Invalid, err, "the request's body did not come whole")
	}
	return body, release, nil
}
