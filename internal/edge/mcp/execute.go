package mcp

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	_ "embed" // of the runners
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/client"
)

// CodePath is where the two tools answer that stand for the whole API.
const CodePath = Path + "/code"

const codeInstructions = `Two tools stand for the whole API of Cay: search finds operations, execute runs a program that calls them.
The program runs in a fresh sandbox of its own without a network and ends with it; it has an object cay:
  Python:     cay.get(path, **query), cay.post(path, body), cay.put(path, body), cay.patch(path, body), cay.delete(path)
  JavaScript: the same, with the query as an object: cay.get(path, {limit: 10}); no await is needed
They return the JSON of the answer and raise CayError (status, code, message) for a refusal.
Print what you want to see. Do several calls in one program and print the result alone.`

const (
	maxExecute  = 10 * time.Minute
	maxCalls    = 200 // of a program
	maxLine     = 1 << 20
	maxAnswer   = 1 << 20
	callWithin  = time.Minute
	usualFound  = 5
	mostFound   = 20
	killWithin  = 10 * time.Second
	executeMark = "cay.mcp.code" // metadata of the sandboxes of programs
)

type searchIn struct {
	Query string `json:"query" jsonschema:"words, such as: create sandbox, or a path"`
	Limit int    `json:"limit,omitempty" jsonschema:"how many operations, at most 20; 5 when left out"`
}

type searchOut struct {
	Operations []string `json:"operations"`
	More       int      `json:"more,omitempty"`
}

type executeIn struct {
	Code     string `json:"code" jsonschema:"the program"`
	Language string `json:"language,omitempty" jsonschema:"python (when left out) or javascript"`
	Timeout  int    `json:"timeout,omitempty" jsonschema:"seconds until it is ended; 120 when left out, at most 600"`
}

type executeOut struct {
	Output   string `json:"output"`
	ExitCode int    `json:"exit_code"`
	Calls    int    `json:"calls"`
	Cut      bool   `json:"cut,omitempty"`
}

// codeServer returns a server with the two tools.
func (f *Face) codeServer() *sdk.Server {
	s := sdk.NewServer(&sdk.Implementation{Name: "cay-code", Title: "Cay's API as code", Version: f.cfg.Version}, &sdk.ServerOptions{
		Instructions: codeInstructions, Capabilities: &sdk.ServerCapabilities{Tools: &sdk.ToolCapabilities{}}, Logger: f.cfg.Log,
	})
	add(f, s, tool{"search", "Find operations", "Finds operations of Cay's API: method, path, parameters, body and answer.", reads}, search)
	add(f, s, tool{"execute", "Run a program over the API", codeInstructions, destroys}, execute)
	s.AddReceivingMiddleware(f.nearNames)
	return s
}

func search(_ context.Context, c *call, in searchIn) (out searchOut, err error) {
	limit := cmp.Or(in.Limit, usualFound)
	if limit < 1 || limit > mostFound {
		return out, cay.Errorf(cay.Invalid, "limit: must be 1 to %d", mostFound)
	}
	all, err := operations()
	if err != nil {
		return out, cay.Wrap(cay.Internal, err, "the API's description cannot be read")
	}
	list := found(all, in.Query)
	out.Operations = []string{}
	var text strings.Builder
	for i, o := range list {
		one := cut(o.String(), maxText/4)
		if i == limit || text.Len()+len(one) > maxText {
			out.More = len(list) - i
			break
		}
		out.Operations = append(out.Operations, o.method+" "+o.path)
		text.WriteString(one)
	}
	switch {
	case len(list) == 0:
		text.WriteString("no operation has these words")
	case out.More > 0:
		fmt.Fprintf(&text, "and %d more\n", out.More)
	}
	c.say("%s", text.String())
	return out, nil
}

// runners are the programs inside that a model's program runs in: they give it the
// object cay, whose calls are lines of their standard output that begin with a
// token, and whose answers are lines of their standard input. The program's own
// output goes to standard error.
var (
	//go:embed runner.py
	pythonRunner string
	//go:embed runner.js
	nodeRunner string
)

func execute(ctx context.Context, c *call, in executeIn) (out executeOut, err error) {
	limit, err := seconds(in.Timeout, usualRun, maxExecute)
	if err != nil {
		return out, err
	}
	runner, start := pythonRunner, `exec python3 -u -c "$CAY_RUNNER"`
	switch in.Language {
	case "", "python":
	case "javascript":
		runner, start = nodeRunner, `exec node -e "$CAY_RUNNER"`
	default:
		return out, cay.Errorf(cay.Invalid, "language: must be python or javascript")
	}
	if strings.TrimSpace(in.Code) == "" || len(in.Code) > maxLine {
		return out, cay.Errorf(cay.Invalid, "code: must have 1 to %d bytes", maxLine)
	}
	box, err := c.api.Create(ctx, client.CreateOptions{
		Template: c.face.template(c.who), Timeout: limit + time.Minute, NoInternet: true, Metadata: map[string]string{executeMark: c.clientName()},
	})
	if err != nil {
		return out, err
	}
	c.box = box.ID
	if box.AccessToken == "" && c.who.Scopes&cay.ExecSandboxes == 0 {
		err = c.who.May(cay.ExecSandboxes)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), killWithin)
		defer cancel()
		if err := c.api.Kill(ctx, box.ID); err != nil && cay.KindOf(err) != cay.NotFound {
			c.face.cfg.Log.WarnContext(ctx, "the sandbox of a program stays until its time is over", "sandbox", box.ID, "err", err)
		}
	}()
	if err != nil {
		return out, err
	}
	printed := &excerpt{most: maxText * 8 / 10}
	bounded, stop := context.WithTimeout(ctx, limit)
	defer stop()
	r := &relay{ctx: bounded, api: c.api, token: rand.Text() + " ", other: printed}
	p, err := box.Start(bounded, client.Command{
		Path: "/bin/bash", Args: []string{"-l", "-c", start}, Env: map[string]string{"CAY_RUNNER": runner, "CAY_TOKEN": r.token},
		Stdout: r, Stderr: printed, Stdin: true,
	})
	if err != nil {
		return out, err
	}
	r.input = func(line []byte) error { return p.Input(bounded, line) }
	first, err := json.Marshal(map[string]string{"code": in.Code})
	if err == nil {
		err = p.Input(bounded, append(first, '\n'))
	}
	if err != nil {
		return out, err
	}
	exit, err := p.Wait()
	over := bounded.Err() != nil || errors.Is(err, context.DeadlineExceeded) // the agent may see it first
	timely := !over || ctx.Err() != nil
	if err != nil && timely {
		return out, err
	}
	out = executeOut{Output: printed.text(), ExitCode: exit.Code, Calls: r.calls, Cut: printed.cut()}
	text := out.Output
	switch {
	case !timely:
		out.ExitCode = -1
		text += fmt.Sprintf("\n[it was ended after %s]", limit)
	case exit.Code != 0:
		text += fmt.Sprintf("\n[exit status %d]", exit.Code)
	case text == "":
		text = "it ran, and printed nothing"
	}
	if out.Cut {
		text += "\n[it was cut: print less]"
	}
	c.say("%s", text)
	return out, nil
}

// relay makes the requests that a program inside asks for, as the caller, and
// gives it the answers. It is the program's standard output.
type relay struct {
	ctx   context.Context
	api   *client.Client
	token string
	input func(line []byte) error
	other io.Writer // of what is no request
	line  []byte
	calls int
	long  bool // the line is longer than may be
}

// Write implements io.Writer.
func (r *relay) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		i := bytes.IndexByte(rest, '\n')
		if i < 0 {
			r.keep(rest)
			break
		}
		r.keep(rest[:i])
		if err := r.take(); err != nil {
			return 0, err
		}
		r.line, r.long, rest = r.line[:0], false, rest[i+1:]
	}
	return len(p), nil
}

func (r *relay) keep(b []byte) {
	if len(r.line)+len(b) > maxLine {
		r.long = true
		b = b[:max(0, min(len(b), len(r.token)-len(r.line)))] // as much as says whether it is a request
	}
	r.line = append(r.line, b...)
}

// programCall is what a program asks for.
type programCall struct {
	Method string
	Path   string
	Query  map[string]any
	Body   json.RawMessage
}

// programAnswer is what it gets.
type programAnswer struct {
	Status int             `json:"status"`
	Body   json.RawMessage `json:"body,omitempty"`
	Text   string          `json:"text,omitempty"` // in place of a body that is no JSON
}

func (r *relay) take() error {
	request, ok := bytes.CutPrefix(r.line, []byte(r.token))
	if !ok {
		_, err := r.other.Write(append(r.line, '\n'))
		return err
	}
	var q programCall
	answer := programAnswer{Status: http.StatusBadRequest}
	switch r.calls++; {
	case r.long:
		answer.Text = fmt.Sprintf("the request has more than %d bytes", maxLine)
	case r.calls > maxCalls:
		answer = programAnswer{Status: http.StatusTooManyRequests, Text: fmt.Sprintf("a program makes at most %d calls", maxCalls)}
	case json.Unmarshal(request, &q) != nil:
		answer.Text = "the request is no JSON"
	default:
		answer = r.call(q)
	}
	line, err := json.Marshal(answer)
	if err != nil {
		return err
	}
	return r.input(append(line, '\n'))
}

// call makes a request as the caller.
func (r *relay) call(q programCall) programAnswer {
	at, err := url.Parse(q.Path)
	if err != nil || at.IsAbs() || at.Host != "" || !strings.HasPrefix(q.Path, "/") || strings.HasPrefix(q.Path, Path) {
		return programAnswer{Status: http.StatusBadRequest, Text: "path: must be that of an operation of the API, such as /cay/v1/approvals"}
	}
	query := at.Query()
	for name, value := range q.Query {
		query.Set(name, fmt.Sprint(value))
	}
	at.RawQuery = query.Encode()
	ctx, cancel := context.WithTimeout(r.ctx, callWithin)
	defer cancel()
	var body io.Reader
	if len(q.Body) > 0 && string(q.Body) != "null" {
		body = bytes.NewReader(q.Body)
	}
	req, err := http.NewRequestWithContext(ctx, strings.ToUpper(q.Method), "http://localhost"+at.String(), body)
	if err != nil {
		return programAnswer{Status: http.StatusBadRequest, Text: "method: is none of HTTP"}
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := r.api.HTTP().Do(req)
	if err != nil {
		return programAnswer{Status: http.StatusGatewayTimeout, Text: "no answer came within a minute"}
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	switch {
	case err != nil:
		return programAnswer{Status: http.StatusGatewayTimeout, Text: "the answer did not end within a minute"}
	case len(text) > maxAnswer:
		return programAnswer{Status: http.StatusInsufficientStorage, Text: fmt.Sprintf("the answer has more than %d bytes: ask for less", maxAnswer)}
	case json.Valid(text):
		return programAnswer{Status: resp.StatusCode, Body: text}
	}
	return programAnswer{Status: resp.StatusCode, Text: strings.ToValidUTF8(string(text), "\ufffd")}
}
