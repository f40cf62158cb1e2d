package mcp

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cay-run/cay"
)

// Bridge is the protocol over the standard streams of a program, whose tools are
// those of a server: it passes each message on.
type Bridge struct {
	URL string // of the face
	// HTTP makes requests that carry a credential.
	HTTP    *http.Client
	Name    string // of the client, instead of what it says itself; may be empty
	Version string

	name     atomic.Pointer[string] // of the client, once it is known
	mu       sync.Mutex
	session  *sdk.ClientSession // nil while there is none
	progress sync.Map           // of calls under way: token → told
	calls    atomic.Int64
}

// told is where a call's progress goes.
type told struct {
	session *sdk.ServerSession
	token   any
}

// Run serves a client until it goes. The server is asked first, so that one that
// does not answer is known at once.
func (b *Bridge) Run(ctx context.Context, over sdk.Transport) error {
	remote, err := b.remote(ctx)
	if err != nil {
		return err
	}
	defer func() { b.drop(nil) }()
	options := &sdk.ServerOptions{Capabilities: &sdk.ServerCapabilities{Tools: &sdk.ToolCapabilities{}}}
	if r := remote.InitializeResult(); r != nil {
		options.Instructions = r.Instructions
	}
	s := sdk.NewServer(&sdk.Implementation{Name: "cay", Title: "Cay", Version: b.Version}, options)
	s.AddReceivingMiddleware(b.pass)
	err = s.Run(ctx, over)
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// pass answers what is about tools by the server's answer.
func (b *Bridge) pass(next sdk.MethodHandler) sdk.MethodHandler {
	return func(ctx context.Context, method string, r sdk.Request) (sdk.Result, error) {
		switch params := r.GetParams().(type) {
		case *sdk.ListToolsParams:
			return ask(ctx, b, func(s *sdk.ClientSession) (sdk.Result, error) {
				page := &sdk.ListToolsParams{}
				if params != nil {
					page.Cursor = params.Cursor
				}
				return s.ListTools(ctx, page)
			})
		case *sdk.CallToolParamsRaw:
			if params == nil {
				break
			}
			request, _ := r.(*sdk.CallToolRequest)
			if info := request.ClientInfo(); info != nil {
				b.name.Store(&info.Name)
			}
			out := &sdk.CallToolParams{Name: params.Name, Arguments: params.Arguments}
			if params.Arguments == nil {
				out.Arguments = struct{}{}
			}
			if token := params.GetProgressToken(); token != nil {
				id := b.calls.Add(1)
				b.progress.Store(id, told{request.Session, token})
				defer b.progress.Delete(id)
				out.SetProgressToken(id)
			}
			return ask(ctx, b, func(s *sdk.ClientSession) (sdk.Result, error) { return s.CallTool(ctx, out) })
		}
		return next(ctx, method, r)
	}
}

// ask asks the server. A connection that broke is made anew at the next request:
// what became of a call is not known, so none is repeated.
func ask(ctx context.Context, b *Bridge, do func(*sdk.ClientSession) (sdk.Result, error)) (sdk.Result, error) {
	s, err := b.remote(ctx)
	if err != nil {
		return nil, err
	}
	out, err := do(s)
	var answered *jsonrpc.Error
	if err != nil && !errors.As(err, &answered) && ctx.Err() == nil {
		b.drop(s)
	}
	return out, err
}

// remote is the connection to the server.
func (b *Bridge) remote(ctx context.Context) (*sdk.ClientSession, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.session != nil {
		return b.session, nil
	}
	c := sdk.NewClient(&sdk.Implementation{Name: "cay-mcp", Version: b.Version}, &sdk.ClientOptions{
		Capabilities:                &sdk.ClientCapabilities{},
		ProgressNotificationHandler: b.tell,
	})
	transport := &sdk.StreamableClientTransport{
		Endpoint: b.URL, HTTPClient: &http.Client{Transport: named{b}}, MaxRetries: -1, DisableStandaloneSSE: true,
	}
	s, err := c.Connect(context.WithoutCancel(ctx), transport, nil)
	if err != nil {
		return nil, cay.Wrap(cay.Unavailable, err, "the server at %s does not answer as one of the Model Context Protocol", b.URL).
			WithHint("is it there, is it Cay 0.2 or newer, and is the key right? cay sandbox list tells")
	}
	b.session = s
	return s, nil
}

// drop gives up a connection, or whichever there is.
func (b *Bridge) drop(s *sdk.ClientSession) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.session != nil && (s == nil || s == b.session) {
		_ = b.session.Close()
		b.session = nil
	}
}

// tell passes on how far a call is.
func (b *Bridge) tell(ctx context.Context, r *sdk.ProgressNotificationClientRequest) {
	var id int64
	switch token := r.Params.ProgressToken.(type) {
	case float64:
		id = int64(token)
	case int64:
		id = token
	}
	if at, ok := b.progress.Load(id); ok {
		at := at.(told)
		_ = at.session.NotifyProgress(ctx, &sdk.ProgressNotificationParams{ // it learns of the end all the same
			ProgressToken: at.token, Progress: r.Params.Progress, Total: r.Params.Total, Message: r.Params.Message,
		})
	}
}

// named puts the client's name on requests.
type named struct{ *Bridge }

func (n named) RoundTrip(r *http.Request) (*http.Response, error) {
	name := n.Name
	if said := n.name.Load(); name == "" && said != nil {
		name = *said
	}
	if name != "" {
		r = r.Clone(r.Context())
		r.Header.Set(NameHeader, headerText(name))
	}
	transport := n.HTTP.Transport
	if transport == nil {
		transport = http.DefaultTransport
	}
	return transport.RoundTrip(r)
}

// headerText is text without what a header cannot hold.
func headerText(s string) string {
	out := make([]byte, 0, len(s))
	for i := range len(s) {
		if c := s[i]; c >= ' ' && c != 0x7f {
			out = append(out, c)
		}
	}
	return string(out[:min(len(out), maxName)])
}

// Stdio is the transport of the standard streams of a program.
func Stdio(in io.ReadCloser, out io.Writer) sdk.Transport {
	return &sdk.IOTransport{Reader: in, Writer: keepOpen{out}}
}

// keepOpen has the end of a connection leave the stream open.
type keepOpen struct{ io.Writer }

func (keepOpen) Close() error { return nil }
