package mcp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/client"
	"github.com/cay-run/cay/internal/control/audit"
	"github.com/cay-run/cay/internal/near"
)

const instructions = `Cay gives you Linux computers, called sandboxes, to run code and commands in.
Without sandbox_id a tool uses your default sandbox: it is made at the first use, keeps files, variables and
processes between calls, sleeps when it is idle and wakes at the next call. Make others with create_sandbox.
run_code keeps variables from one call to the next. checkpoint before something risky, rollback to undo it.
Long output is cut; process_output and download_file read on from where it was cut.`

// toolCalled is the action that the audit log has of a call, which is counted; its
// target is the tool. A change that the call makes has a row of its own.
const toolCalled = "tool.called"

// server returns a server with all tools.
func (f *Face) server() *sdk.Server {
	s := sdk.NewServer(&sdk.Implementation{Name: "cay", Title: "Cay", Version: f.cfg.Version}, &sdk.ServerOptions{
		Instructions: instructions, Capabilities: &sdk.ServerCapabilities{Tools: &sdk.ToolCapabilities{}}, Logger: f.cfg.Log,
	})
	f.addSandboxes(s)
	f.addCode(s)
	f.addProcesses(s)
	f.addFiles(s)
	f.addTree(s)
	f.addViews(s)
	f.addApprovals(s)
	s.AddReceivingMiddleware(f.nearNames)
	return s
}

// call is one call of a tool.
type call struct {
	*visit
	request *sdk.CallToolRequest
	api     *client.Client
	box     string        // the sandbox that the call came to
	content []sdk.Content // of the result; none is the output as JSON
	bare    bool          // the content says more than the output: programs get the content alone
}

// say adds a text to the result.
func (c *call) say(format string, args ...any) {
	c.content = append(c.content, &sdk.TextContent{Text: fmt.Sprintf(format, args...)})
}

// tool describes a tool.
type tool struct {
	name, title, text string
	hints             hints
}

// hints say what a tool does to its sandbox.
type hints int

const (
	reads    hints = iota // changes nothing
	adds                  // adds something
	destroys              // may change or remove what is there
)

// add adds a tool. Its input's schema is that of In, and input that does not fit
// never reaches do. An error is told to the model, with its cure.
func add[In, Out any](f *Face, s *sdk.Server, t tool, do func(ctx context.Context, c *call, in In) (Out, error)) {
	f.names = append(f.names, t.name)
	no := false
	note := &sdk.ToolAnnotations{Title: t.title, ReadOnlyHint: t.hints == reads}
	if t.hints == adds {
		note.DestructiveHint = &no
	}
	if t.name != "run_code" && t.name != "execute_command" {
		note.OpenWorldHint = &no
	}
	sdk.AddTool(s, &sdk.Tool{Name: t.name, Title: t.title, Description: t.text, Annotations: note}, func(ctx context.Context, r *sdk.CallToolRequest, in In) (*sdk.CallToolResult, any, error) {
		v, _ := ctx.Value(visitKey{}).(*visit)
		api, err := v.client()
		if err != nil {
			return nil, nil, err
		}
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		defer context.AfterFunc(v.left, func() { cancel(errLeft) })()
		c := &call{visit: v, request: r, api: api}
		out, err := do(ctx, c, in)
		f.count(c, t.name, err)
		if err != nil {
			return nil, nil, errors.New(textOf(err))
		}
		if c.bare {
			return &sdk.CallToolResult{Content: c.content}, nil, nil
		}
		return &sdk.CallToolResult{Content: c.content}, out, nil
	})
}

var errLeft = errors.New("the client left")

// count records that a tool was called.
func (f *Face) count(c *call, name string, err error) {
	x := audit.Seen{Who: c.who, Action: toolCalled, Target: name, Details: []string{"sandbox", c.box}}
	switch {
	case cay.KindOf(err) == cay.Denied:
		x.Outcome = cay.OutcomeDenied
	case err != nil:
		x.Outcome = cay.OutcomeFailed
	}
	if err != nil {
		x.Details = append(x.Details, "error", cmp.Or(cay.CodeOf(err), string(cay.KindOf(err))))
	}
	f.cfg.Audit.Count(x)
}

// textOf is what is told of an error: its message, its cure and its code.
func textOf(err error) string {
	var ours *cay.Error
	if !errors.As(err, &ours) {
		return "the call ended before it was answered"
	}
	text := ours.Msg
	if ours.Hint != "" {
		text += "; " + ours.Hint
	}
	if ours.Code != "" {
		text += " (" + ours.Code + ")"
	}
	return text
}

// nearNames has a call of a tool that is not there be told those that are like it,
// and a panic of one that is there be an error.
func (f *Face) nearNames(next sdk.MethodHandler) sdk.MethodHandler {
	return func(ctx context.Context, method string, r sdk.Request) (out sdk.Result, err error) {
		defer func() { // a goroutine of the library's, in which a panic would end the server
			if v := recover(); v != nil {
				f.cfg.Log.ErrorContext(ctx, "panic", "method", method, "panic", v, "stack", string(debug.Stack()))
				out, err = nil, &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "internal error"}
			}
		}()
		if params, ok := r.GetParams().(*sdk.CallToolParamsRaw); ok && params != nil && method == "tools/call" && !slices.Contains(f.names, params.Name) {
			return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: fmt.Sprintf("unknown tool %.80q: %s", params.Name, didYouMean(params.Name, f.names))}
		}
		return next(ctx, method, r)
	}
}

// didYouMean says which names are like one, or all of them when none is.
func didYouMean(name string, all []string) string {
	if like := near.Words(name, all); len(like) > 0 {
		return "did you mean " + strings.Join(like, " or ") + "?"
	}
	return "there are " + strings.Join(all, ", ")
}

// target is the input of most tools.
type target struct {
	Sandbox string `json:"sandbox_id,omitempty" jsonschema:"the sandbox; your default one when left out"`
}

// clientName is by what name the client has a default sandbox.
func (c *call) clientName() string {
	name := c.name
	if info := c.request.ClientInfo(); name == "" && info != nil {
		name = info.Name
	}
	return strings.ToValidUTF8(name[:min(len(name), maxName)], "")
}

// at is the sandbox that a call names, or the default one, by id.
func (c *call) at(ctx context.Context, t target) (id string, err error) {
	if c.box = t.Sandbox; c.box == "" {
		c.box, err = c.ensure(ctx, c.api, c.clientName())
	}
	return c.box, err
}

// open returns the sandbox that a call is for, running: a paused one wakes. It
// lives as long as the call may take, and a while more.
func (c *call) open(ctx context.Context, t target, takes time.Duration) (*client.Sandbox, error) {
	id, err := c.at(ctx, t)
	if err != nil {
		return nil, err
	}
	box, err := c.api.Connect(ctx, id, idle+takes)
	if err != nil {
		return nil, err
	}
	if box.AccessToken == "" && c.who.Scopes&cay.ExecSandboxes == 0 {
		return nil, c.who.May(cay.ExecSandboxes)
	}
	return box, nil
}

// seconds bounds a time limit that a call names.
func seconds(given int, usual, most time.Duration) (time.Duration, error) {
	d := time.Duration(given) * time.Second
	switch {
	case given == 0:
		return usual, nil
	case given < 0 || given > int(most/time.Second):
		return 0, cay.Errorf(cay.Invalid, "timeout: must be 1 to %d seconds", int(most/time.Second))
	}
	return d, nil
}
