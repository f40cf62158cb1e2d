package proxy

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"path"
	"strings"

	"connectrpc.com/connect"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/api/calls"
	"github.com/cay-run/cay/api/proto/process"
	"github.com/cay-run/cay/api/proto/process/processconnect"
	"github.com/cay-run/cay/internal/guest"
)

// A sandbox may have its owner asked before commands and code start. Their requests
// wait here, before anything of them reaches the guest, and are read as the guest
// reads them: by the same handlers. Then they pass as they came.

// askedMost bounds a request that is read here.
const askedMost = 4 << 20

// errLarge refuses a request that is not read to its end.
var errLarge = cay.Errorf(cay.Denied, "what starts in this sandbox is looked at first, and has at most %d bytes", askedMost).
	WithCode(cay.CodeCommandDenied).WithHint("write it to a file, and run that")

// mayStart reports whether a request may go on, which has been answered otherwise.
// It waits for the decision about one that starts something.
func (p *Proxy) mayStart(w http.ResponseWriter, r *http.Request, at place, target Target, l *upstream, by []cay.Origins) bool {
	switch {
	case len(target.AskCommands) == 0 || !starts(r, at.port):
		return true
	case at.port == guest.AgentPort && !opensAgent(r, target.AccessToken):
		return true // the agent refuses a stranger, and the interpreter none
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, askedMost))
	var beyond *http.MaxBytesError
	large := errors.As(err, &beyond)
	if large {
		w.Header().Set("Connection", "close") // the rest of the body is not read
	}
	if err != nil && !large {
		badBody(at.id, "The request's body ended before its announced length").write(w, r)
		return false
	}
	ctx, done := l.while(r.Context()) // after which the question waits on, and no yes is lost
	defer done()
	ask := func(s cay.Start) error {
		if large {
			return errLarge
		}
		return p.cfg.MayStart(ctx, at.id, s, by...)
	}
	seen := (&trip{place: at, in: r, target: target}).headers()
	var refused http.Handler
	switch {
	case at.port != guest.AgentPort:
		refused = askAboutCode(at.id, body, large, ask)
	case large:
		refused = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_ = connect.NewErrorWriter().Write(w, r, asCall(errLarge))
		})
	default:
		refused = askAboutCommand(ctx, r, seen, body, ask)
	}
	switch {
	case refused == nil:
		r.Body, r.ContentLength, r.TransferEncoding = io.NopCloser(bytes.NewReader(body)), int64(len(body)), nil
		return true
	case r.Context().Err() != nil: // the caller left
		panic(http.ErrAbortHandler)
	case l.isCut():
		p.lost(at, l).write(w, r)
	default:
		refused.ServeHTTP(w, r)
	}
	return false
}

// While returns a context that ends with the present instance of a sandbox, too.
func (p *Proxy) While(ctx context.Context, id cay.SandboxID) (context.Context, context.CancelFunc, error) {
	_, l, err := p.upstream(id)
	if err != nil {
		return nil, nil, err
	}
	ctx, done := l.while(ctx)
	return ctx, done, nil
}

func (l *upstream) while(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(l.ctx, cancel)
	return ctx, func() { stop(); cancel() }
}

// lost says what became of a sandbox whose instance is gone.
func (p *Proxy) lost(at place, l *upstream) answer {
	now, err := p.cfg.Lookup(at.id)
	switch {
	case err == nil && now.Instance != l.instance:
		err = cay.Errorf(cay.Conflict, "sandbox %s has another instance", at.id)
	case err == nil:
		err = noSandbox(at.id)
	}
	return p.gone(at.id, err)
}

// starts reports whether a request starts a program or code. The path is cleaned
// because a guest's router may clean it too.
func starts(r *http.Request, port int) bool {
	clean := *r
	u := *r.URL
	u.Path, clean.URL = path.Clean("/"+r.URL.Path), &u
	_, command := changes(&clean, port)
	return command
}

// askAboutCommand asks about a call of the agent's that starts a program, in any of
// the wires that the agent takes. It returns the answer to a call that may not pass.
func askAboutCommand(ctx context.Context, r *http.Request, seen http.Header, body []byte, ask func(cay.Start) error) http.Handler {
	gate := &startGate{user: userOf(seen), ask: ask}
	_, h := processconnect.NewProcessHandler(gate, connect.WithReadMaxBytes(askedMost))
	in := r.Clone(ctx)
	in.URL.Path = processconnect.ProcessStartProcedure
	in.Header.Del("Connect-Timeout-Ms") // of the program, not of the question
	in.Body, in.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	kept := &kept{header: http.Header{}}
	h.ServeHTTP(kept, in)
	if gate.passed {
		return nil
	}
	return kept
}

// startGate is the agent's service as far as it is asked about.
type startGate struct {
	processconnect.UnimplementedProcessHandler
	user   string
	ask    func(cay.Start) error
	passed bool
}

// Start implements processconnect.ProcessHandler.
func (g *startGate) Start(_ context.Context, r *connect.Request[process.StartRequest], _ *connect.ServerStream[process.StartResponse]) error {
	what := r.Msg.GetProcess()
	err := g.ask(cay.Start{
		Command: append([]string{what.GetCmd()}, what.GetArgs()...), Unseen: r.Msg.GetPty() != nil,
		User: g.user, Dir: what.GetCwd(), Env: what.GetEnvs(),
	})
	g.passed = err == nil
	return asCall(err)
}

// asCall is an error as calls have it, with its code.
func asCall(err error) error {
	if err == nil {
		return nil
	}
	code := connect.CodeUnavailable
	switch cay.KindOf(err) {
	case cay.Denied:
		code = connect.CodePermissionDenied
	case cay.Exhausted:
		code = connect.CodeResourceExhausted
	}
	out := connect.NewError(code, errors.New(textOf(err)))
	if name := cay.CodeOf(err); name != "" {
		out.Meta().Set(calls.ErrorCode, name)
	}
	return out
}

// textOf is what a caller is told of an error: never its cause.
func textOf(err error) string {
	var ours *cay.Error
	if !errors.As(err, &ours) {
		return "a person cannot be asked about this command now"
	}
	if ours.Hint == "" {
		return ours.Msg
	}
	return ours.Msg + " (" + ours.Hint + ")"
}

// userOf is the user that a call of the agent's names.
func userOf(h http.Header) string {
	scheme, text, _ := strings.Cut(h.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Basic") {
		return ""
	}
	pair, err := base64.StdEncoding.DecodeString(strings.TrimSpace(text))
	if err != nil {
		return ""
	}
	name, _, _ := strings.Cut(string(pair), ":")
	return name
}

// askAboutCode asks about a request of the interpreter's that runs code. It returns
// the answer to one that may not pass.
func askAboutCode(id cay.SandboxID, body []byte, large bool, ask func(cay.Start) error) http.Handler {
	var in struct {
		Code      string            `json:"code"`
		ContextID string            `json:"context_id"`
		Language  string            `json:"language"`
		EnvVars   map[string]string `json:"env_vars"`
	}
	if json.NewDecoder(bytes.NewReader(body)).Decode(&in) != nil && !large {
		return badBody(id, "The request's body is malformed")
	}
	err := ask(cay.Start{Code: in.Code, Language: in.Language, Context: in.ContextID, Env: in.EnvVars})
	if err == nil {
		return nil
	}
	a := answer{SandboxID: id, Message: textOf(err), Code: http.StatusServiceUnavailable, ErrorCode: cay.CodeOf(err), retry: cay.RetryOf(err)}
	switch cay.KindOf(err) {
	case cay.Denied:
		a.Code = http.StatusForbidden
	case cay.Exhausted:
		a.Code = http.StatusTooManyRequests
	}
	a.title, a.text = http.StatusText(a.Code), a.Message
	return a
}

// kept is an answer that is given later, or never.
type kept struct {
	header http.Header
	code   int
	body   bytes.Buffer
}

func (k *kept) Header() http.Header { return k.header }

// Flush implements http.Flusher, which streams want.
func (k *kept) Flush() {}

func (k *kept) WriteHeader(code int) {
	if k.code == 0 {
		k.code = code
	}
}

func (k *kept) Write(b []byte) (int, error) {
	k.WriteHeader(http.StatusOK)
	return k.body.Write(b)
}

// ServeHTTP gives the answer.
func (k *kept) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	maps.Copy(w.Header(), k.header)
	w.Header().Set("Access-Control-Allow-Origin", "*")
	k.WriteHeader(http.StatusOK)
	w.WriteHeader(k.code)
	_, _ = w.Write(k.body.Bytes()) // the caller may be gone
}
