// Package gateway is one server of the Model Context Protocol in front of
// several: it runs them inside the sandbox as programs that speak on their
// standard streams, starts those anew that end, and serves their tools, prompts
// and resources together over HTTP, to clients that hold its token (ADR 74).
//
// Messages of servers are bounded and passed on as they came. A server that is
// dead, hangs, floods or talks nonsense costs its own answers, in words that
// name it, and those of no other.
package gateway

import (
	"context"
	"crypto/subtle"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cay-run/cay/internal/guest"
)

// Port and Path are where E2B's SDKs look for the gateway: mcpPort and getMcpUrl
// of their Sandbox (js 2.51.0, python 2.63.0).
const (
	Port = 50005
	Path = "/mcp"
)

// maxBody bounds a message of a client.
const maxBody = 16 << 20

// Config is what a gateway needs.
type Config struct {
	Servers []Server
	// Token is what clients must present; it is never empty.
	Token string
	// CallTime bounds a server's answer, and StartTime the time until it has said
	// what it has.
	CallTime, StartTime time.Duration
	// Ask has a person asked about a call. nil refuses those that ask.
	Ask     func(context.Context, guest.Ask) (guest.Answer, error)
	Version string
	Log     *slog.Logger
}

// Gateway runs servers and serves what they offer.
type Gateway struct {
	cfg     Config
	face    *face
	running []*supervised
	cancel  context.CancelFunc
}

// Start starts all servers and returns when each has said what it offers. If
// one does not start, none is left and the error names each that did not.
func Start(ctx context.Context, cfg Config) (*Gateway, error) {
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	g := &Gateway{cfg: cfg, cancel: cancel}
	for _, s := range cfg.Servers {
		g.running = append(g.running, supervise(life, s, cfg))
	}
	var failed error
	for _, s := range g.running {
		select {
		case err := <-s.first:
			failed = errors.Join(failed, err)
		case <-ctx.Done():
			failed = errors.Join(failed, ctx.Err())
		}
	}
	if failed != nil {
		g.Close()
		return nil, failed
	}
	g.face = newFace(g.running, cfg)
	return g, nil
}

// Close ends all servers and returns when they are gone.
func (g *Gateway) Close() {
	g.cancel()
	for _, s := range g.running {
		<-s.gone
	}
}

// Handler serves clients. A client that leaves has its call end.
func (g *Gateway) Handler() http.Handler {
	tools := sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return g.face.server }, &sdk.StreamableHTTPOptions{
		Stateless: true, MaxRequestBodyBytes: maxBody, PropagateRequestCancellation: true,
		// The token keeps out pages whose name leads here: they do not know it.
		DisableLocalhostProtection: true,
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		given, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		switch {
		case r.URL.Path != Path:
			http.Error(w, "the gateway is at "+Path, http.StatusNotFound)
		case !ok || subtle.ConstantTimeCompare([]byte(given), []byte(g.cfg.Token)) != 1:
			w.Header().Set("WWW-Authenticate", `Bearer realm="mcp-gateway"`)
			http.Error(w, "the header Authorization must be Bearer and the sandbox's MCP token, which getMcpToken gives", http.StatusUnauthorized)
		default:
			tools.ServeHTTP(w, r)
		}
	})
}
