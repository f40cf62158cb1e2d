package gateway

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// serverVariable has the test's program be a server on its standard streams.
const serverVariable = "CAY_GATEWAY_TEST_SERVER"

func TestMain(m *testing.M) {
	if kind := os.Getenv(serverVariable); kind != "" {
		(&odd{kind: kind, out: bufio.NewWriter(os.Stdout)}).serve()
		return
	}
	os.Exit(m.Run())
}

// odd is a server that does what servers must not.
type odd struct {
	kind string
	mu   sync.Mutex
	out  *bufio.Writer
}

func (o *odd) say(line string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	_, _ = o.out.WriteString(line + "\n")
	_ = o.out.Flush()
}

const oddTools = `{"tools":[
 {"name":"echo","inputSchema":{"type":"object","properties":{"text":{"type":"string","maxLength":9007199254740993}}}},
 {"name":"number","inputSchema":{"type":"object"}},{"name":"big","inputSchema":{"type":"object"}},
 {"name":"crash","inputSchema":{"type":"object"}},{"name":"hang","inputSchema":{"type":"object"}},
 {"name":"nonsense","inputSchema":{"type":"object"}},{"name":"refuse","inputSchema":{"type":"object"}},
 {"name":"progress","inputSchema":{"type":"object"}},{"name":"more","inputSchema":{"type":"object"}},
 {"name":"flood","inputSchema":{"type":"object"}},{"name":"deaf","inputSchema":{"type":"object"}},
 {"name":"lies","inputSchema":{"type":"string"}},{"name":"bare"},"none",{"name":7,"inputSchema":{"type":"object"}},
 {"name":"header","inputSchema":{"type":"object","properties":{"a":{"type":"array","x-mcp-header":"A"}}}}%s]}`

func (o *odd) serve() {
	switch o.kind {
	case "dead":
		fmt.Fprintln(os.Stderr, "the key sesame-sesame is wrong")
		os.Exit(3)
	case "silent":
		select {}
	}
	o.say("a banner, as some print it")
	in := bufio.NewReader(os.Stdin)
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return
		}
		var m struct {
			ID     json.RawMessage
			Method string
			Params struct {
				Name      string
				Arguments struct {
					Text string
					N    int
				}
				Meta map[string]json.RawMessage `json:"_meta"`
			}
		}
		if json.Unmarshal([]byte(line), &m) != nil {
			os.Exit(4)
		}
		answer := func(result string) {
			o.say(`{"jsonrpc":"2.0","id":` + string(m.ID) + `,"result":` + strings.ReplaceAll(result, "\n", "") + `}`)
		}
		text := func(s string) {
			b, _ := json.Marshal(s)
			answer(`{"content":[{"type":"text","text":` + string(b) + `}]}`)
		}
		switch m.Method {
		case "initialize":
			answer(`{"protocolVersion":"2025-03-26","capabilities":{"tools":{"listChanged":true},"prompts":{},"resources":{}},"serverInfo":{"name":"odd","version":"1"}}`)
		case "tools/list":
			answer(fmt.Sprintf(oddTools, os.Getenv("MORE")))
		case "ping":
			answer("{}")
		case "prompts/list":
			answer(`{"prompts":[{"name":"greet","arguments":[{"name":"who"}]}]}`)
		case "prompts/get":
			answer(`{"messages":[{"role":"user","content":{"type":"text","text":"hello"}}]}`)
		case "resources/list":
			answer(`{"resources":[{"uri":"odd://a","name":"a"},{"uri":"no address","name":"b"}]}`)
		case "resources/read":
			answer(`{"contents":[{"uri":"odd://a","text":"of ` + o.kind + `"}]}`)
		case "tools/call":
			switch m.Params.Name {
			case "echo":
				text(o.kind + ": " + m.Params.Arguments.Text)
			case "number":
				answer(`{"content":[],"structuredContent":{"n":9007199254740993}}`)
			case "big":
				o.say(`{"jsonrpc":"2.0","result":{"id":5,"content":[{"type":"text","text":"\"id\":1,` + strings.Repeat("x", m.Params.Arguments.N) + `"}]},"id":` + string(m.ID) + `}`)
			case "crash":
				fmt.Fprintln(os.Stderr, "out of luck")
				os.Exit(5)
			case "nonsense":
				answer(`{"content":"not a list"}`)
			case "refuse":
				o.say(`{"jsonrpc":"2.0","id":` + string(m.ID) + `,"error":{"code":-32000,"message":"not today"}}`)
			case "progress":
				if t := m.Params.Meta["progressToken"]; t != nil {
					o.say(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":` + string(t) + `,"progress":1,"total":2,"message":"half"}}`)
				}
				text("done")
			case "flood":
				for range 20_000 {
					o.say("noise")
				}
				o.say(`{"jsonrpc":"2.0","method":"notifications/unknown"}`)
				o.say(`{"jsonrpc":"2.0","id":99999,"result":{}}`)
				text("after the flood")
			case "more":
				_ = os.Setenv("MORE", `,{"name":"new","inputSchema":{"type":"object"}}`)
				o.say(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
				text("there is more")
			case "deaf":
				select {}
			}
		default:
			if m.ID != nil {
				o.say(`{"jsonrpc":"2.0","id":` + string(m.ID) + `,"error":{"code":-32601,"message":"there is none"}}`)
			}
		}
	}
}

// programOf is a Server of the test's own program.
func programOf(t *testing.T, name, kind string) Server {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return Server{Name: name, Argv: []string{self}, Env: append(os.Environ(), serverVariable+"="+kind), Secrets: []string{"sesame-sesame"}}
}

// world is a gateway with a client.
type world struct {
	*sdk.ClientSession
	t   *testing.T
	url string
}

const token = "the token of the sandbox"

func start(t *testing.T, cfg Config, progress func(*sdk.ProgressNotificationParams)) world {
	t.Helper()
	log := &synced{}
	cfg.Token, cfg.Log, cfg.Version = token, slog.New(slog.NewTextHandler(log, nil)), "test"
	if cfg.CallTime == 0 {
		cfg.CallTime = time.Minute
	}
	if cfg.StartTime == 0 {
		cfg.StartTime = time.Minute
	}
	g, err := Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.Close)
	s := httptest.NewServer(g.Handler())
	t.Cleanup(s.Close)
	c := sdk.NewClient(&sdk.Implementation{Name: "test"}, &sdk.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, r *sdk.ProgressNotificationClientRequest) {
			if progress != nil {
				progress(r.Params)
			}
		},
	})
	session, err := c.Connect(t.Context(), &sdk.StreamableClientTransport{
		Endpoint: s.URL + Path, HTTPClient: &http.Client{Transport: bearer{token}}, DisableStandaloneSSE: true,
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = session.Close() })
	t.Cleanup(func() {
		if strings.Contains(log.String(), "sesame-sesame") {
			t.Error("the log has a secret")
		}
	})
	return world{ClientSession: session, t: t, url: s.URL}
}

type synced struct {
	mu sync.Mutex
	b  strings.Builder
}

func (s *synced) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *synced) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

type bearer struct{ token string }

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+b.token)
	return http.DefaultTransport.RoundTrip(r)
}

// ask calls a tool and returns the text that the model sees.
func (w world) ask(tool string, arguments any) (text string, failed bool) {
	w.t.Helper()
	out, err := w.CallTool(w.t.Context(), &sdk.CallToolParams{Name: tool, Arguments: arguments})
	if err != nil {
		w.t.Fatalf("%s: %v", tool, err)
	}
	for _, c := range out.Content {
		if c, ok := c.(*sdk.TextContent); ok {
			text += c.Text
		}
	}
	return text, out.IsError
}

// eventually asks until a tool answers without an error.
func (w world) eventually(tool string, arguments any) string {
	w.t.Helper()
	for {
		text, failed := w.ask(tool, arguments)
		if !failed {
			return text
		}
		if w.t.Context().Err() != nil {
			w.t.Fatalf("%s still fails: %s", tool, text)
		}
		select {
		case <-w.t.Context().Done():
		case <-time.After(20 * time.Millisecond):
		}
	}
}
