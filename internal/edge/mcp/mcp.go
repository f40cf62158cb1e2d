// Package mcp is the face for language models: sandboxes as tools of the Model
// Context Protocol, over HTTP. The tools are a program of the public client, whose
// requests this process serves itself with the credential of the caller: a tool
// can do what its caller's key can do over REST, and is bounded, refused and
// recorded as that is (ADR 70). State is in sandboxes and in ids, never in a
// session, so that clients of every revision of the protocol use one handler.
package mcp

import (
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/client"
	"github.com/cay-run/cay/internal/auth"
	"github.com/cay-run/cay/internal/control/audit"
	"github.com/cay-run/cay/internal/control/fleet"
	"github.com/cay-run/cay/internal/edge/rates"
	"github.com/cay-run/cay/internal/trail"
)

// Path is where the face answers.
const Path = "/mcp"

// NameHeader names a client that the protocol does not name, or one of several
// that have the same key: each name has a default sandbox of its own.
const NameHeader = "MCP-Client-Name"

// maxBody bounds a message. The largest honest ones carry the content of a file.
const maxBody = 16 << 20

// Config is what the face needs.
type Config struct {
	Auth  *auth.Auth
	Fleet *fleet.Catalogue
	Rates *rates.Limiter // nil for none
	Audit *audit.Log     // nil records nothing
	// Serve serves requests of the tools, as if they had come over the network.
	Serve http.Handler
	// URL is where clients find this server, and Domain what names of sandboxes
	// end with.
	URL, Domain string
	// Template is that of default sandboxes, with a code interpreter.
	Template string
	Version  string
	Log      *slog.Logger // nil for none
}

// Face serves the protocol.
type Face struct {
	cfg    Config
	tools  http.Handler
	code   http.Handler // the two tools of CodePath
	names  []string     // of the tools
	making making
}

// New returns the face.
func New(cfg Config) *Face {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	cfg.Log = slog.New(grave{cfg.Log.Handler()})
	f := &Face{cfg: cfg}
	f.tools = f.serve(f.server())
	code := &Face{cfg: cfg}
	f.code = f.serve(code.codeServer())
	return f
}

// grave leaves out what the library tells of every message.
type grave struct{ slog.Handler }

func (g grave) Enabled(ctx context.Context, l slog.Level) bool {
	return l >= slog.LevelWarn && g.Handler.Enabled(ctx, l)
}

// serve returns the handler of a server's messages. A client that leaves has its
// call end, whatever revision it speaks: nothing else could bring the result to it.
func (f *Face) serve(server *sdk.Server) http.Handler {
	return sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return server }, &sdk.StreamableHTTPOptions{
		Stateless: true, MaxRequestBodyBytes: maxBody, PropagateRequestCancellation: true,
		DisableLocalhostProtection: true, // ownOrigin knows which names are this server's
		Logger:                     f.cfg.Log,
	})
}

// Wrap has the face answer what is for it, and next all else.
func (f *Face) Wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case Path:
			f.answer(w, r, f.tools)
		case CodePath:
			f.answer(w, r, f.code)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// answer serves a request of a caller that is known and within its rate.
func (f *Face) answer(w http.ResponseWriter, r *http.Request, tools http.Handler) {
	followed := trail.Of(r.Context())
	if followed != nil {
		followed.Route = r.URL.Path
	}
	if !f.ownOrigin(r) {
		refuse(w, followed, cay.Errorf(cay.Denied, "a page of %.200q may not use this server", r.Header.Get("Origin")).
			WithHint("browsers' pages are refused unless they are the server's own, under its own name"))
		return
	}
	who, err := f.cfg.Auth.Caller(r.Context(), auth.PresentedIn(r.Header))
	if err == nil && who.Team == "" {
		err = cay.Errorf(cay.Invalid, "X-Team-ID: is required: this credential is of no team")
	}
	if err != nil {
		if cay.KindOf(err) == cay.Unauthenticated {
			w.Header().Set("WWW-Authenticate", `Bearer realm="cay"`)
		}
		refuse(w, followed, err)
		return
	}
	if followed != nil {
		who.From, followed.Team = &followed.Origin, who.Team
	}
	if err := f.take(w.Header(), who); err != nil {
		refuse(w, followed, err)
		return
	}
	ctx, done := f.cfg.Auth.While(r.Context(), who) // a tool may take an hour
	defer done()
	v := &visit{face: f, who: who, credentials: credentials(r.Header), name: r.Header.Get(NameHeader), remote: r.RemoteAddr, left: ctx}
	if followed != nil {
		v.request, v.agent = followed.Request, followed.Agent
	}
	tools.ServeHTTP(w, r.WithContext(context.WithValue(ctx, visitKey{}, v)))
}

// take takes a message's token from the rate of its caller's team, and says in
// headers what is left.
func (f *Face) take(h http.Header, who cay.Caller) error {
	if f.cfg.Rates == nil || who.Scopes&cay.Admin != 0 {
		return nil
	}
	state := f.cfg.Rates.Take(who.Team, rates.Read)
	state.Tell(h)
	if state.Allowed {
		return nil
	}
	f.cfg.Audit.Count(audit.Seen{Who: who, Action: audit.RateRefused, Target: rates.Read.String(), Outcome: cay.OutcomeFailed})
	return state.Refusal()
}

// refuse answers with an error, in REST's form.
func refuse(w http.ResponseWriter, followed *trail.Request, err error) {
	if followed != nil {
		followed.Code = cmp.Or(cay.CodeOf(err), string(cay.KindOf(err)))
	}
	h := w.Header()
	h.Set("Content-Type", "application/json; charset=utf-8")
	rates.TellRetry(h, rates.RetryOf(err))
	status := cay.StatusOf(err)
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{"code": status, "message": textOf(err), "error_code": cay.CodeOf(err)})
}

// ownOrigin reports whether a request comes from no page of a browser, or from
// one of this server's own. A page elsewhere that has its name lead here (DNS
// rebinding) has that name as its origin and as the request's host: it is none of
// the server's.
func (f *Face) ownOrigin(r *http.Request) bool {
	origins := r.Header["Origin"]
	if len(origins) == 0 {
		site := r.Header.Get("Sec-Fetch-Site")
		return site == "" || site == "none"
	}
	u, err := url.Parse(origins[0])
	return err == nil && len(origins) == 1 && strings.EqualFold(u.Host, r.Host) && f.ownName(hostOf(r.Host))
}

// ownName reports whether a name is this server's and no other party's: an address
// of this machine, localhost, the domain or its API, or the URL of the settings.
func (f *Face) ownName(name string) bool {
	if ip, err := netip.ParseAddr(name); err == nil {
		return ip.IsLoopback()
	}
	domain, own := hostOf(f.cfg.Domain), ""
	if u, err := url.Parse(f.cfg.URL); err == nil {
		own = hostOf(u.Host)
	}
	return name == "localhost" || name == own || domain != "" && (name == domain || name == "api."+domain)
}

// hostOf is a host without its port, in small letters.
func hostOf(host string) string {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	return strings.ToLower(strings.Trim(host, "[]"))
}

// visit is one request to the face: the party that calls, and what its tools need
// to do their work as it.
type visit struct {
	face           *Face
	who            cay.Caller
	credentials    http.Header
	name           string // of the client, where a header gives it
	remote         string
	request, agent string
	left           context.Context // ends when the client leaves
}

type visitKey struct{}

// credentialHeaders are those that say on whose behalf a request is.
var credentialHeaders = []string{"X-Api-Key", "Authorization", "X-Admin-Token", "X-Team-Id"}

func credentials(h http.Header) http.Header {
	out := http.Header{}
	for _, name := range credentialHeaders {
		if v := h[name]; len(v) > 0 {
			out[name] = v
		}
	}
	return out
}

// client returns the public client, whose requests are made as the caller.
func (v *visit) client() (*client.Client, error) {
	header := http.Header{}
	header.Set(trail.IDHeader, v.request)
	header.Set("User-Agent", v.agent)
	return client.New(client.Config{
		APIKey: "the caller's", // the transport has the real one
		APIURL: "http://localhost", Domain: v.face.cfg.Domain, SandboxURL: "http://localhost",
		HTTP: &http.Client{Transport: &within{serve: v.face.cfg.Serve, credentials: v.credentials, header: header, remote: v.remote}},
	})
}
