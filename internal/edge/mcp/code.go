package mcp

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cay-run/cay/client"
)

const (
	usualRun = 2 * time.Minute
	maxRun   = time.Hour
	// maxImages and maxImage bound the images of a result, in number and bytes.
	maxImages = 8
	maxImage  = 1 << 20
	// maxEvent bounds what is held of a guest's output at once. A chart of plotly
	// brings its library, of 5 MiB.
	maxEvent = 8 << 20
)

type codeIn struct {
	Code     string `json:"code" jsonschema:"what to run; the value of the last expression is shown, and so are charts"`
	Language string `json:"language,omitempty" jsonschema:"python (when left out), javascript, typescript, r, java or bash"`
	Context  string `json:"context_id,omitempty" jsonschema:"a context of an earlier call, or new for one whose variables no other call sees; the language's usual one when left out"`
	Timeout  int    `json:"timeout,omitempty" jsonschema:"seconds until it is interrupted; 120 when left out, at most 3600"`
	target
}

type codeOut struct {
	Sandbox string   `json:"sandbox_id"`
	Context string   `json:"context_id,omitempty"`
	Stdout  string   `json:"stdout,omitempty"`
	Stderr  string   `json:"stderr,omitempty"`
	Results []string `json:"results,omitempty"`
	Error   string   `json:"error,omitempty"`
	Cut     bool     `json:"cut,omitempty"`
}

func (f *Face) addCode(s *sdk.Server) {
	add(f, s, tool{"run_code", "Run code", "Runs code in a sandbox and returns what it prints, the value of its last expression and its charts as images. Variables, imports and files stay for the next call.", destroys}, runCode)
}

func runCode(ctx context.Context, c *call, in codeIn) (out codeOut, err error) {
	limit, err := seconds(in.Timeout, usualRun, maxRun)
	if err != nil {
		return out, err
	}
	box, err := c.open(ctx, in.target, limit)
	if err != nil {
		return out, err
	}
	out.Sandbox, out.Context = box.ID, in.Context
	if in.Context == "new" {
		if out.Context, err = box.NewContext(ctx, in.Language); err != nil {
			return out, err
		}
	}
	if out.Context != "" {
		in.Language = "" // it is the context's
	}
	stdout, stderr := &excerpt{most: maxText * 6 / 10}, &excerpt{most: maxText * 2 / 10}
	shown := &results{}
	bounded, stop := context.WithTimeout(ctx, limit)
	defer stop()
	told := c.progress(ctx)
	failed, err := box.RunCode(bounded, client.Code{
		Text: in.Code, Language: in.Language, Context: out.Context,
		Stdout: told.of(stdout), Stderr: told.of(stderr), Result: shown.add,
		Most: maxEvent, Omitted: shown.omitted,
	})
	timely := bounded.Err() == nil || ctx.Err() != nil
	if err != nil && timely {
		return out, err
	}
	out.Stdout, out.Stderr, out.Results = stdout.text(), stderr.text(), shown.texts
	out.Cut = stdout.cut() || stderr.cut() || shown.cut
	switch {
	case !timely:
		out.Error = fmt.Sprintf("interrupted: it ran for %s; give a longer timeout, or run it as a command in the background", limit)
	case failed != nil:
		out.Error = cut(failed.Name+": "+failed.Value+"\n"+plain(failed.Traceback), maxText/5)
	}
	c.showCode(out, shown)
	return out, nil
}

// showCode is a run of code for the model.
func (c *call) showCode(out codeOut, shown *results) {
	var text strings.Builder
	for _, part := range []struct{ name, text string }{
		{"", out.Stdout}, {"stderr:\n", out.Stderr}, {"", strings.Join(out.Results, "\n")}, {"error: ", out.Error},
	} {
		if part.text != "" {
			text.WriteString(part.name + strings.TrimSuffix(part.text, "\n") + "\n")
		}
	}
	if out.Cut {
		text.WriteString("[it was cut: have the code write to a file and read that with download_file]\n")
	}
	if text.Len() == 0 && len(shown.images) == 0 {
		text.WriteString("it ran, and printed nothing\n")
	}
	if c.bare = len(shown.images) > 0; c.bare && out.Context != "" {
		fmt.Fprintf(&text, "context_id: %s\n", out.Context)
	}
	if text.Len() > 0 {
		c.say("%s", text.String())
	}
	c.content = append(c.content, shown.images...)
}

// results are the things that code showed, within their bounds.
type results struct {
	texts  []string
	images []sdk.Content
	length int
	cut    bool
}

func (r *results) add(one client.CodeResult) error {
	image, kind := one.PNG, "image/png"
	if len(image) == 0 {
		image, kind = one.JPEG, "image/jpeg"
	}
	text := one.Text
	switch {
	case len(image) > maxImage || len(image) > 0 && len(r.images) == maxImages:
		text, r.cut = fmt.Sprintf("[an image of %d bytes is left out: at most %d of at most %d bytes are shown; save it to a file]", len(image), maxImages, maxImage), true
	case len(image) > 0:
		r.images, text = append(r.images, &sdk.ImageContent{Data: image, MIMEType: kind}), ""
	case text == "" && one.HTML != "":
		text = one.HTML
	case text == "" && len(one.JSON) > 0:
		text = string(one.JSON)
	}
	if text != "" {
		r.keep(text)
	}
	return nil
}

// omitted is told of what is too large to be looked at.
func (r *results) omitted(bytes int64) {
	r.cut = true
	r.keep(fmt.Sprintf("[%d bytes that it printed, showed or raised at once are left out: at most %d are read]", bytes, maxEvent))
}

func (r *results) keep(text string) {
	room := max(0, maxText*2/10-r.length)
	if len(text) > room {
		r.cut = true
	}
	if room > 0 {
		text = cut(text, room)
		r.texts, r.length = append(r.texts, text), r.length+len(text)
	}
}

// plain drops the escape sequences of terminals.
func plain(s string) string {
	var out strings.Builder
	for {
		before, after, found := strings.Cut(s, "\x1b[")
		out.WriteString(before)
		if !found {
			return out.String()
		}
		end := strings.IndexFunc(after, func(r rune) bool { return r >= '@' && r <= '~' })
		if end < 0 {
			return out.String()
		}
		s = after[end+1:]
	}
}

// every is how often a client is told of progress at most.
const every = time.Second

// progress tells a client that wants it what a call has printed last.
type progress struct {
	ctx   context.Context
	call  *call
	token any

	mu   sync.Mutex
	told time.Time
	n    float64
}

func (c *call) progress(ctx context.Context) *progress {
	return &progress{ctx: ctx, call: c, token: c.request.Params.GetProgressToken()}
}

// of returns a writer to w that tells of what is written.
func (p *progress) of(w *excerpt) writer {
	return func(b []byte) (int, error) {
		p.tell(b)
		return w.Write(b)
	}
}

type writer func([]byte) (int, error)

func (w writer) Write(p []byte) (int, error) { return w(p) }

func (p *progress) tell(b []byte) {
	if p.token == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.n += float64(len(b)); time.Since(p.told) < every {
		return
	}
	p.told = time.Now()
	line := strings.TrimRight(readable(b), "\r\n")
	line = line[strings.LastIndexByte(line, '\n')+1:]
	// A client that cannot be told learns of the end all the same.
	_ = p.call.request.Session.NotifyProgress(p.ctx, &sdk.ProgressNotificationParams{
		ProgressToken: p.token, Progress: p.n, Message: cut(line, 200),
	})
}
