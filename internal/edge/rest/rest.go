package rest

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/api/rest/e2b"
	"github.com/cay-run/cay/internal/auth"
	"github.com/cay-run/cay/internal/control/accounts"
	"github.com/cay-run/cay/internal/control/approvals"
	"github.com/cay-run/cay/internal/control/audit"
	"github.com/cay-run/cay/internal/control/builds"
	"github.com/cay-run/cay/internal/control/fleet"
	"github.com/cay-run/cay/internal/control/lifecycle"
	"github.com/cay-run/cay/internal/control/logins"
	"github.com/cay-run/cay/internal/control/providers"
	"github.com/cay-run/cay/internal/control/triggers"
	"github.com/cay-run/cay/internal/control/usage"
	"github.com/cay-run/cay/internal/control/volumes"
	"github.com/cay-run/cay/internal/control/webhooks"
	"github.com/cay-run/cay/internal/edge/rates"
	"github.com/cay-run/cay/internal/shares"
	"github.com/cay-run/cay/internal/trail"
)

// maxBody bounds a request. The largest honest ones carry environment
// variables and metadata.
const maxBody = 1 << 20

// Config is what the REST face needs. Domain is told to clients, who build the
// host names of sandboxes with it; empty means that they make them themselves.
// Links signs links that carry their own permission. Log may be nil.
type Config struct {
	Fleet     *fleet.Catalogue
	Sandboxes *lifecycle.Controller
	Builds    *builds.Queue
	Usage     *usage.Meter
	Accounts  *accounts.Accounts
	// Logins are those of people, whose browsers find this server at URL.
	Logins *logins.Logins
	URL    string
	// Console tells the origin of the console, for its links; nil has none.
	Console func() string
	// Members are the nodes of the cluster; nil for a machine alone.
	Members Members
	// Machine tells what the server's machine has; nil knows nothing.
	Machine func() (Machine, error)
	// Checks looks the machine over; nil looks at nothing.
	Checks    func(context.Context) []Check
	Upkeep    Upkeep // nil for a server without a machine of its own
	Webhooks  *webhooks.Hooks
	Triggers  *triggers.Triggers
	Approvals *approvals.Approvals
	Providers *providers.Providers
	Auth      *auth.Auth
	Domain    string
	Links     Links
	Content   Content // nil has no volumes
	Volumes   *volumes.Volumes
	// VolumeTokens opens the files of volumes.
	VolumeTokens VolumeTokens
	// Dial connects to a port of a sandbox that runs; nil offers none.
	Dial func(ctx context.Context, id cay.SandboxID, port int) (net.Conn, error)
	// MayStart returns why a program may not start in a sandbox that parties ask for; it
	// may wait until ctx ends. It is required beside Dial.
	MayStart func(ctx context.Context, id cay.SandboxID, s cay.Start, by ...cay.Origins) error
	SSH      Shells // nil offers none
	// Desktops shows the screens of sandboxes; nil shows none.
	Desktops Desktops
	// SSHListen is where the SSH server listens itself, if it does.
	SSHListen string
	Audit     *audit.Log // nil records nothing
	// Defaults describes the templates that Cay brings, by name.
	Defaults map[string]string
	// Identity publishes what the identity tokens of sandboxes are checked with;
	// nil makes none.
	Identity Identity
	// Explain is given every error before it is told, and may know a better
	// one; nil knows none.
	Explain func(error) error
	Rates   *rates.Limiter // nil bounds no requests
	Log     *slog.Logger
}

// Shells is the SSH server.
type Shells interface {
	// HostKey is its public key.
	HostKey() string
	// ServeTrusted serves a connection of a team's member to its end.
	ServeTrusted(c net.Conn, who cay.Caller)
	// Review ends the connections that were opened with keys which the team has no
	// more.
	Review(team cay.TeamID)
}

// Links signs texts.
type Links interface {
	Sign(text string) string
	CheckSign(text, signature string) bool
}

// server is the REST face: it translates and holds no state.
type server struct {
	fleet      *fleet.Catalogue
	sandboxes  *lifecycle.Controller
	builds     *builds.Queue
	usage      *usage.Meter
	accounts   *accounts.Accounts
	logins     *logins.Logins
	url        string
	console    func() string
	pace       pace
	machine    func() (Machine, error)
	checks     func(context.Context) []Check
	upkeep     Upkeep
	members    Members
	webhooks   *webhooks.Hooks
	triggers   *triggers.Triggers
	approvals  *approvals.Approvals
	providers  *providers.Providers
	volumes    *volumes.Volumes
	auth       *auth.Auth
	domain     string
	links      Links
	dial       func(ctx context.Context, id cay.SandboxID, port int) (net.Conn, error)
	mayStart   func(ctx context.Context, id cay.SandboxID, s cay.Start, by ...cay.Origins) error
	ssh        Shells
	sshAt      string
	desktops   Desktops
	explain    func(error) error
	rates      *rates.Limiter // nil for none
	log        *slog.Logger
	streams    turns                 // of events, that are open
	trees      turns                 // of archives of volumes
	hookBodies *shares.Bound[string] // bytes, by the network that they come from

	volumeTokens VolumeTokens

	defaults map[string]string
	audit    *audit.Log
}

var _ e2b.StrictServerInterface = (*server)(nil)

// New returns the handler of the whole REST surface.
func New(cfg Config) http.Handler {
	s, root := route(cfg)
	return s.guard(root)
}

// route makes the server and all of its routes.
func route(cfg Config) (*server, chi.Router) {
	s := &server{fleet: cfg.Fleet, sandboxes: cfg.Sandboxes, usage: cfg.Usage, builds: cfg.Builds, accounts: cfg.Accounts, auth: cfg.Auth, domain: cfg.Domain, links: cfg.Links, log: cfg.Log}
	s.mayStart = cfg.MayStart
	s.dial, s.ssh, s.sshAt, s.explain = cfg.Dial, cfg.SSH, cfg.SSHListen, cfg.Explain
	s.desktops, s.upkeep = cfg.Desktops, cfg.Upkeep
	s.logins, s.url, s.console = cfg.Logins, cfg.URL, cfg.Console
	s.machine, s.members, s.triggers, s.approvals, s.providers = cfg.Machine, cfg.Members, cfg.Triggers, cfg.Approvals, cfg.Providers
	if s.checks = cfg.Checks; s.checks == nil {
		s.checks = func(context.Context) []Check { return nil }
	}
	s.volumes, s.volumeTokens = cfg.Volumes, cfg.VolumeTokens
	s.hookBodies = shares.New[string](maxHookBodies, 0)
	s.trees, s.streams = turns{shares.New[cay.TeamID](maxTrees, maxTreesTeam)}, turns{shares.New[cay.TeamID](maxStreams, maxStreamsTeam)}
	s.defaults, s.webhooks, s.audit, s.rates = cfg.Defaults, cfg.Webhooks, cfg.Audit, cfg.Rates
	if s.explain == nil {
		s.explain = func(err error) error { return err }
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	root := chi.NewRouter()
	root.Use(nameRoute)
	root.NotFound(func(w http.ResponseWriter, r *http.Request) {
		s.fail(w, r, cay.Errorf(cay.NotFound, "%s not found: there is no such route", r.URL.Path))
	})
	root.MethodNotAllowed(func(w http.ResponseWriter, r *http.Request) {
		writeError(w, e2b.Error{Code: http.StatusMethodNotAllowed, Message: r.Method + " is not allowed on " + r.URL.Path})
	})
	// The key is asked for before anything of a request is looked at, but
	// only on routes that there are.
	guarded := root.With(s.authenticate, s.limitRate, s.endWithKey)
	e2b.HandlerWithOptions(e2b.NewStrictHandlerWithOptions(s, []e2b.StrictMiddlewareFunc{s.record}, e2b.StrictHTTPServerOptions{
		RequestErrorHandlerFunc:  s.badBody,
		ResponseErrorHandlerFunc: s.fail,
	}), e2b.ChiServerOptions{
		BaseRouter: guarded, ErrorHandlerFunc: s.badParam, Middlewares: []e2b.MiddlewareFunc{s.checkIDs},
	})
	s.mountOwn(guarded)
	if s.logins != nil {
		s.mountLogin(root)
	}
	if cfg.Identity != nil {
		s.mountIdentity(root, cfg.Identity)
	}
	if cfg.Content != nil {
		s.mountContent(root, cfg.Content)
	}
	if s.triggers != nil {
		root.Post(hookRoute, s.receive)
	}
	if s.approvals != nil {
		s.mountDecide(root)
	}
	if s.links != nil {
		root.Put(uploadRoute, s.upload)
	}
	if s.console != nil {
		root.Get(inspectRoute, s.inspect)
	}
	return s, root
}

// guard goes around everything: it bounds bodies, has the router see escaped
// paths, so that an id may hold %2F, and answers for a panic.
func (s *server) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			v := recover()
			if v == nil {
				return
			}
			if v == http.ErrAbortHandler {
				panic(v)
			}
			s.log.ErrorContext(r.Context(), "panic", "method", r.Method, "path", r.URL.Path, "panic", v, "stack", string(debug.Stack()))
			s.fail(w, r, cay.Errorf(cay.Internal, "internal error"))
		}()
		if r.URL.Path != importRoute && !isUpload(r) && !isContent(r) && !isTree(r) {
			r.Body = http.MaxBytesReader(w, r.Body, maxBody)
		}
		u := *r.URL
		u.RawPath = u.EscapedPath()
		r2 := *r
		r2.URL = &u
		next.ServeHTTP(w, &r2)
	})
}

// nameRoute tells which route a request took, as its description has it.
func nameRoute(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			if followed := trail.Of(r.Context()); followed != nil {
				followed.Route = chi.RouteContext(r.Context()).RoutePattern()
			}
		}()
		next.ServeHTTP(w, r)
	})
}

type (
	callerKey    struct{}
	presentedKey struct{} // the API key itself
)

// callerOf returns the caller whose key the request carries: generated code
// gives a handler only the request's context. From here on the caller is a
// parameter.
func callerOf(ctx context.Context) cay.Caller {
	who, _ := ctx.Value(callerKey{}).(cay.Caller)
	return who
}

// teamOf returns the team whose key the request carries.
func teamOf(ctx context.Context) cay.TeamID { return callerOf(ctx).Team }

func (s *server) authenticate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/health" || isOpen(r) {
			next.ServeHTTP(w, r)
			return
		}
		p := presented(r)
		who, purpose, err := s.callerAt(r, p)
		if err == nil && who.Team == "" && !ofNoTeam(r.URL.Path) {
			err = errWhichTeam
		}
		if err != nil {
			s.fail(w, r, err)
			return
		}
		if followed := trail.Of(r.Context()); followed != nil {
			who.From, followed.Team = &followed.Origin, who.Team
		}
		ctx := context.WithValue(r.Context(), callerKey{}, who)
		ctx = context.WithValue(ctx, presentedKey{}, cmp.Or(p.Key, p.Bearer))
		if isWebsocket(r) {
			ctx = context.WithValue(ctx, socketKey{}, asked{r, purpose})
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(ctx, originKey{}, originOf(r))))
	})
}

// lasting are the operations that go on for as long as an archive is large.
var lasting = map[string]bool{
	"GET /cay/v1/volumes/{volumeID}/tree": true,
	"PUT /cay/v1/volumes/{volumeID}/tree": true,
	"GET /cay/v1/templates/{name}/export": true,

	"GET /cay/v1/sandboxes/{sandboxID}/desktop/recording": true,
	"POST /cay/v1/images/pull":                            true,
	"POST /cay/v1/images/import":                          true,
}

// endWithKey has a request that goes on for long end with what its caller came
// with.
func (s *server) endWithKey(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !lasting[r.Method+" "+chi.RouteContext(r.Context()).RoutePattern()] {
			next.ServeHTTP(w, r)
			return
		}
		ctx, done := s.auth.While(r.Context(), callerOf(r.Context()))
		defer done()
		defer context.AfterFunc(ctx, func() { // it may wait for its client
			out := http.NewResponseController(w)
			_, _ = out.SetReadDeadline(time.Now()), out.SetWriteDeadline(time.Now())
		})()
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

// presented is what a request brings to say on whose behalf it is.
func presented(r *http.Request) auth.Presented {
	p := auth.PresentedIn(r.Header)
	if p.Team == "" && !ofNoTeam(r.URL.Path) { // the path may name it, as /teams/{teamID}/metrics does
		p.Team = chi.URLParam(r, "teamID")
	}
	return p
}

// ofNoTeam reports whether a route is about no team, or about all.
func ofNoTeam(path string) bool {
	if ofPeople[path] {
		return true
	}
	for _, root := range []string{"/teams", "/access-tokens", "/cay/v1/access-tokens", "/nodes", "/cay/v1/sessions", "/admin", "/cay/v1/admin"} {
		if rest, below := strings.CutPrefix(path, root); below && (rest == "" || rest[0] == '/' && root != "/teams") {
			return true
		}
	}
	return false
}

var errWhichTeam = cay.Errorf(cay.Invalid, "X-Team-ID: is required: the request is about one team, and says not which").
	WithHint("send the id of a team in X-Team-ID")

// fail answers with an error. Causes go to the log, not to the caller.
func (s *server) fail(w http.ResponseWriter, r *http.Request, err error) {
	s.failAs(w, r, err, func(e e2b.Error) any { return e })
}

// failAs is fail for routes whose errors have another form.
func (s *server) failAs(w http.ResponseWriter, r *http.Request, err error, form func(e2b.Error) any) {
	err = s.explain(err)
	e := wireError(err)
	if status := e.Code; status >= 500 && status != http.StatusNotImplemented && r.Context().Err() == nil {
		s.log.ErrorContext(r.Context(), "request failed", "method", r.Method, "path", r.URL.Path, "status", status, "err", err)
	}
	if followed := trail.Of(r.Context()); followed != nil {
		followed.Code = value(e.ErrorCode, string(cay.KindOf(err)))
	}
	writeErrorAs(w, int(e.Code), form(e), err)
}

// wireError is what callers are told of an error.
func wireError(err error) e2b.Error {
	status := cay.StatusOf(err)
	code, text := "", "internal error"
	var ours *cay.Error
	switch {
	case errors.As(err, &ours):
		code, text = ours.Code, ours.Msg
		if ours.Hint != "" {
			text += "; " + ours.Hint
		}
	case status == http.StatusServiceUnavailable:
		text = "the request ended before it was answered"
	}
	if code == "" && status == http.StatusInternalServerError {
		code = cay.CodeInternal
	}
	return e2b.Error{Code: int32(status), Message: text, ErrorCode: pointer(code)}
}

// writeError writes an error of the request itself, which is no better when it is
// sent again.
func writeError(w http.ResponseWriter, e e2b.Error) {
	writeErrorAs(w, int(e.Code), e, cay.Errorf(cay.Invalid, "%s", e.Message))
}

func writeErrorAs(w http.ResponseWriter, status int, body any, err error) {
	h := w.Header()
	h.Set("Content-Type", "application/json; charset=utf-8")
	rates.TellRetry(h, rates.RetryOf(err))
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // the client may be gone
}

// badBody answers for a body that could not be read.
func (s *server) badBody(w http.ResponseWriter, r *http.Request, err error) {
	var large *http.MaxBytesError
	var field *json.UnmarshalTypeError
	var syntax *json.SyntaxError
	text := "the request's body could not be read"
	switch {
	case errors.As(err, &large):
		writeError(w, e2b.Error{Code: http.StatusRequestEntityTooLarge, Message: "the request's body has more than 1 MiB"})
		return
	case errors.As(err, &field) && field.Field != "":
		text = field.Field + ": cannot be a JSON " + firstWord(field.Value) + ", must be " + typeName(field.Type.String())
	case errors.As(err, &field):
		text = "the request's body must be a JSON object, not a JSON " + firstWord(field.Value)
	case errors.As(err, &syntax):
		text = "the request's body is no JSON: " + syntax.Error()
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		text = "the request's body is no JSON: it is empty or ends too early"
	}
	s.fail(w, r, cay.Errorf(cay.Invalid, "%s", text))
}

// firstWord drops the value that encoding/json adds to "number".
func firstWord(s string) string {
	word, _, _ := strings.Cut(s, " ")
	return word
}

func typeName(goType string) string {
	goType = strings.TrimLeft(goType, "*")
	switch {
	case strings.HasPrefix(goType, "int"):
		return "a whole number"
	case goType == "bool":
		return "true or false"
	case goType == "string":
		return "a string"
	case strings.HasPrefix(goType, "[]"):
		return "an array"
	}
	return "an object"
}

// badParam answers for a parameter that could not be read.
func (s *server) badParam(w http.ResponseWriter, r *http.Request, err error) {
	name := "a parameter"
	var format *e2b.InvalidParamFormatError
	var required *e2b.RequiredParamError
	var many *e2b.TooManyValuesForParamError
	switch {
	case errors.As(err, &required):
		s.fail(w, r, cay.Errorf(cay.Invalid, "%s: is required", required.ParamName))
		return
	case errors.As(err, &format):
		name = format.ParamName
	case errors.As(err, &many):
		name = many.ParamName
	}
	s.fail(w, r, cay.Errorf(cay.Invalid, "%s: has a value that cannot be read", name))
}

// GetHealth says that the server answers.
func (s *server) GetHealth(context.Context, e2b.GetHealthRequestObject) (e2b.GetHealthResponseObject, error) {
	return e2b.GetHealth204Response{}, nil
}

// seconds turns a number of the wire into a time, kept within what a Duration
// can hold: control says what is too much.
func seconds(n int64) time.Duration {
	const most = int64(lifecycle.MaxTimeout/time.Second) + 1
	return time.Duration(max(-1, min(n, most))) * time.Second
}

// pointer returns a pointer to v, or nil for a zero v: absent things are left
// out of answers.
func pointer[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}

// value returns what p points to, or v for none.
func value[T any](p *T, v T) T {
	if p != nil {
		return *p
	}
	return v
}
