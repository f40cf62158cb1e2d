package gateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cay-run/cay/internal/guest"
)

// Misbehaviour of a server costs the call in which it happens, in words for the
// model, and neither the next call nor another server.
func TestServersThatMisbehave(t *testing.T) {
	w := start(t, Config{Servers: []Server{programOf(t, "odd", "odd"), programOf(t, "github/a/even", "even")}}, nil)
	for _, c := range []struct {
		tool      string
		arguments map[string]any
		want      string // in an error
	}{
		{"odd__nonsense", nil, "what is no result"},
		{"odd__refuse", nil, "not today"},
		{"odd__big", map[string]any{"n": maxLine}, "longer than 8 MiB"},
		{"odd__crash", nil, "ended before it answered"},
	} {
		text, failed := w.ask(c.tool, c.arguments)
		if !failed || !strings.Contains(text, c.want) || !strings.Contains(text, "odd") {
			t.Errorf("%s: %v, %q", c.tool, failed, text)
		}
		if text, failed := w.ask("github_a_even__echo", map[string]any{"text": "x"}); failed || text != "even: x" {
			t.Errorf("beside %s the other server says %q", c.tool, text)
		}
		if got := w.eventually("odd__echo", map[string]any{"text": "y"}); got != "odd: y" {
			t.Errorf("after %s the server says %q", c.tool, got)
		}
	}
	if text, failed := w.ask("odd__flood", nil); failed || text != "after the flood" {
		t.Errorf("after a flood: %q", text)
	}
}

// A call that hangs ends in its time, or with its client, and the server goes
// on. One that answers nothing any more is started anew.
func TestServersThatHang(t *testing.T) {
	w := start(t, Config{Servers: []Server{programOf(t, "odd", "odd")}, CallTime: 300 * time.Millisecond}, nil)
	if text, failed := w.ask("hang", nil); !failed || !strings.Contains(text, "server odd does not answer within 300ms") {
		t.Errorf("a hanging call says %q", text)
	}
	ctx, leave := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() {
		_, err := w.CallTool(ctx, &sdk.CallToolParams{Name: "hang"})
		left <- err
	}()
	leave()
	if err := <-left; err == nil {
		t.Error("a call whose client left has an answer")
	}
	w.eventually("echo", nil)
	if text, failed := w.ask("deaf", nil); !failed {
		t.Errorf("a deaf server says %q", text)
	}
	w.eventually("echo", nil)
}

// A server that is down says why, with its last words, until it is there again.
func TestADeadServerIsNamed(t *testing.T) {
	w := start(t, Config{Servers: []Server{programOf(t, "odd", "odd")}}, nil)
	w.ask("crash", nil)
	for t.Context().Err() == nil {
		text, failed := w.ask("echo", nil)
		if !failed { // it is there again already
			w.ask("crash", nil)
		}
		if strings.Contains(text, "is down") {
			for _, want := range []string{"server odd is down", "exit status 5", "out of luck"} {
				if !strings.Contains(text, want) {
					t.Errorf("it says %q, without %q", text, want)
				}
			}
			return
		}
	}
}

// The tools of all servers are there, by their own names unless two have one; what
// is no tool is left out, and what came is passed on as it came.
func TestWhatClientsSee(t *testing.T) {
	progress := make(chan sdk.ProgressNotificationParams, 10)
	one, two := programOf(t, "one", "one"), programOf(t, "two", "two")
	one.Tools = []string{"echo", "number", "progress", "more", "header"}
	two.Tools = []string{"echo"}
	w := start(t, Config{Servers: []Server{two, one}}, func(p *sdk.ProgressNotificationParams) {
		progress <- *p
	})
	names := func() (out []string) {
		for tool, err := range w.Tools(t.Context(), nil) {
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, tool.Name)
		}
		return out
	}
	if got, want := names(), []string{"more", "number", "one__echo", "progress", "two__echo"}; !slices.Equal(got, want) {
		t.Fatalf("the tools are %q, not %q", got, want)
	}
	raw := w.post(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)
	if !strings.Contains(raw, `"maxLength":9007199254740993`) {
		t.Errorf("a schema's number is another: %s", raw)
	}
	if raw := w.post(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"number"}}`); !strings.Contains(raw, `"structuredContent":{"n":9007199254740993}`) {
		t.Errorf("a result's number is another: %s", raw)
	}
	if _, err := w.CallTool(t.Context(), &sdk.CallToolParams{Name: "crash"}); err == nil {
		t.Error("a tool that is not allowed is called")
	}
	params := &sdk.CallToolParams{Name: "progress"}
	params.SetProgressToken("mine")
	if _, err := w.CallTool(t.Context(), params); err != nil {
		t.Fatal(err)
	}
	if told := <-progress; told.ProgressToken != "mine" || told.Message != "half" {
		t.Errorf("progress is %+v", told)
	}
	prompt, err := w.GetPrompt(t.Context(), &sdk.GetPromptParams{Name: "two__greet"})
	if err != nil || len(prompt.Messages) != 1 {
		t.Errorf("a prompt: %v, %v", prompt, err)
	}
	read, err := w.ReadResource(t.Context(), &sdk.ReadResourceParams{URI: "odd://a"})
	if err != nil || read.Contents[0].Text != "of one" {
		t.Errorf("a resource: %v, %v", read, err)
	}
}

// A server that has more tools than before says so, and clients see them.
func TestListsThatChange(t *testing.T) {
	w := start(t, Config{Servers: []Server{programOf(t, "odd", "odd")}}, nil)
	has := func() bool {
		list, err := w.ListTools(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(list.Tools, func(tool *sdk.Tool) bool { return tool.Name == "new" })
	}
	if has() {
		t.Fatal("it is there already")
	}
	w.ask("more", nil)
	for !has() {
		if t.Context().Err() != nil {
			t.Fatal("it never comes")
		}
	}
}

func TestManyCallers(t *testing.T) {
	w := start(t, Config{Servers: []Server{programOf(t, "odd", "odd")}}, nil)
	var all sync.WaitGroup
	for i := range 200 {
		all.Go(func() {
			want := fmt.Sprint("odd: ", i)
			if text, failed := w.ask("echo", map[string]any{"text": fmt.Sprint(i)}); failed || text != want {
				t.Errorf("call %d has %q", i, text)
			}
		})
	}
	all.Wait()
}

func TestTheToken(t *testing.T) {
	w := start(t, Config{Servers: []Server{programOf(t, "odd", "odd")}}, nil)
	for _, c := range []struct {
		header, path string
		want         int
	}{
		{"Bearer " + token, Path, http.StatusOK},
		{"", Path, http.StatusUnauthorized},
		{"Bearer ", Path, http.StatusUnauthorized},
		{"Bearer the token of another sandbox", Path, http.StatusUnauthorized},
		{token, Path, http.StatusUnauthorized},
		{"Basic " + token, Path, http.StatusUnauthorized},
		{"Bearer " + token, "/", http.StatusNotFound},
		{"", "/mcp/", http.StatusNotFound},
	} {
		r, err := http.NewRequestWithContext(t.Context(), "POST", w.url+c.path, strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"ping"}`))
		if err != nil {
			t.Fatal(err)
		}
		if c.header != "" {
			r.Header.Set("Authorization", c.header)
		}
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Accept", "application/json, text/event-stream")
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != c.want {
			t.Errorf("%q at %s: %d, not %d", c.header, c.path, resp.StatusCode, c.want)
		}
	}
}

// A gateway of which one server does not start is none, and says which and why.
func TestServersThatDoNotStart(t *testing.T) {
	missing := programOf(t, "missing", "odd")
	missing.Argv = []string{"/there/is/none"}
	for _, c := range []struct {
		server Server
		within time.Duration
		want   string
	}{
		{programOf(t, "dead", "dead"), time.Minute, "its last words: the key *** is wrong"},
		{programOf(t, "silent", "silent"), time.Second, "does not answer within 1s"},
		{missing, time.Minute, "no such file"},
	} {
		_, err := Start(t.Context(), Config{
			Servers: []Server{programOf(t, "odd", "odd"), c.server}, Token: token, CallTime: time.Minute, StartTime: c.within, Log: slog.New(slog.DiscardHandler),
		})
		if err == nil || !strings.Contains(err.Error(), "server "+c.server.Name) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.server.Name, err)
		}
	}
}

// post sends a message and returns the bytes of the answer.
func (w world) post(body string) string {
	w.t.Helper()
	r, err := http.NewRequestWithContext(w.t.Context(), "POST", w.url+Path, strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	resp, err := (&http.Client{Transport: bearer{token}}).Do(r)
	if err != nil {
		w.t.Fatal(err)
	}
	defer resp.Body.Close()
	var text bytes.Buffer
	if _, err := text.ReadFrom(resp.Body); err != nil {
		w.t.Fatal(err)
	}
	return text.String()
}

// BenchmarkCall compares a call through the gateway, over HTTP, with the same
// server's answer on its standard streams.
func BenchmarkCall(b *testing.B) {
	self, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	odd := Server{Name: "odd", Argv: []string{self}, Env: append(os.Environ(), serverVariable+"=odd")}
	cfg := Config{Servers: []Server{odd}, Token: token, CallTime: time.Minute, StartTime: time.Minute, Log: slog.New(slog.DiscardHandler)}
	g, err := Start(b.Context(), cfg)
	if err != nil {
		b.Fatal(err)
	}
	defer g.Close()
	s := httptest.NewServer(g.Handler())
	defer s.Close()
	body := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"text":"x"}}}`
	client := &http.Client{Transport: bearer{token}}
	through := func() {
		r, err := http.NewRequestWithContext(b.Context(), "POST", s.URL+Path, strings.NewReader(body))
		if err != nil {
			b.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Accept", "application/json, text/event-stream")
		resp, err := client.Do(r)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			b.Fatal(err)
		}
		resp.Body.Close()
	}
	own := func() {
		if _, err := g.running[0].call(b.Context(), "tools/call", map[string]any{"name": "echo", "arguments": map[string]string{"text": "x"}}, nil); err != nil {
			b.Fatal(err)
		}
	}
	var times [2]time.Duration
	for b.Loop() {
		for i, do := range []func(){through, own} {
			begun := time.Now()
			do()
			times[i] += time.Since(begun)
		}
	}
	b.ReportMetric(float64(times[0].Microseconds())/float64(b.N), "gateway-µs/call")
	b.ReportMetric(float64(times[1].Microseconds())/float64(b.N), "server-µs/call")
}

// A call that a person is asked about waits for a yes, and is not made without one.
func TestCallsThatAsk(t *testing.T) {
	asking, free := programOf(t, "asking", "one"), programOf(t, "free", "two")
	asking.Ask, free.Ask = []string{"echo"}, nil
	all := programOf(t, "all", "three")
	all.Ask = []string{anyTool}
	type asked struct {
		guest.Ask
		answer chan guest.Answer
	}
	questions := make(chan asked)
	w := start(t, Config{Servers: []Server{asking, free, all}, Ask: func(ctx context.Context, q guest.Ask) (guest.Answer, error) {
		x := asked{q, make(chan guest.Answer)}
		select {
		case questions <- x:
		case <-ctx.Done():
			return guest.Answer{}, ctx.Err()
		}
		answer := <-x.answer
		if answer.Why == "broken" {
			return answer, errors.New("no way to the host")
		}
		return answer, nil
	}}, nil)
	for _, tt := range []struct {
		name, tool, text string
		answer           guest.Answer
		asks             bool
		want             string
		failed           bool
	}{
		{"yes", "asking__echo", "a\u202eb", guest.Answer{Yes: true}, true, "one: a\u202eb", false},
		{"no", "asking__echo", "a", guest.Answer{Why: "approval 7 is denied"}, true, "not made: approval 7 is denied", true},
		{"no host", "asking__echo", "a", guest.Answer{Why: "broken"}, true, "cannot be asked for", true},
		{"another tool", "asking__number", "", guest.Answer{}, false, "", false},
		{"another server", "free__echo", "b", guest.Answer{}, false, "two: b", false},
		{"any tool", "all__number", "", guest.Answer{Why: "no"}, true, "not made: no", true},
		{"too long to be shown", "asking__echo", strings.Repeat("x", guest.MaxAskBody+1), guest.Answer{}, false, "too long to be shown", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var q asked
			done := make(chan struct{})
			go func() {
				defer close(done)
				if tt.asks {
					q = <-questions
					q.answer <- tt.answer
				}
			}()
			text, failed := w.ask(tt.tool, map[string]any{"text": tt.text})
			<-done
			if failed != tt.failed || !strings.Contains(text, tt.want) {
				t.Errorf("%v %.300s", failed, text)
			}
			if tt.name == "yes" && (q.Subject != "tool echo of asking" || !strings.Contains(q.Body, `a\u202eb`) || strings.Contains(q.Body, "\u202e")) {
				t.Errorf("asked %+q", q.Ask)
			}
		})
	}
}
