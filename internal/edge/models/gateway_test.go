package models

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/conns/outside"
	"github.com/cay-run/cay/internal/control/ledger"
	"github.com/cay-run/cay/internal/control/providers"
	"github.com/cay-run/cay/internal/control/usage"
	"github.com/cay-run/cay/internal/store"
	"github.com/cay-run/cay/internal/store/storetest"
)

type clear struct{}

func (clear) Seal(plain []byte, _ string) string  { return string(plain) }
func (clear) Open(text, _ string) ([]byte, error) { return []byte(text), nil }

const teamsKey = "sk-the-teams-own-key"

// stage is a gateway over real records, budgets and providers on this machine.
type stage struct {
	*testing.T
	records *store.DB
	ledger  *ledger.Ledger
	meter   *usage.Meter
	who     cay.Caller
	box     cay.Sandbox
	gateway *Gateway
	url     string         // for the sandbox
	denied  string         // by the network policy
	under   sync.WaitGroup // requests under way
	seen    seen
}

// seen are the outcomes that a gateway tells of, and the statuses.
type seen struct {
	mu       sync.Mutex
	outcomes []string
}

func (s *seen) ModelAttempt(_ cay.ModelWire, outcome string, _ time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.outcomes = append(s.outcomes, outcome)
}

func (s *seen) ModelRequest(_ cay.ModelWire, status int, input, output int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.outcomes = append(s.outcomes, fmt.Sprint(status, input, output))
}

func (s *seen) take() (out []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out, s.outcomes = s.outcomes, nil
	return out
}

func start(t *testing.T, limits cay.TeamLimits) *stage {
	t.Helper()
	records := storetest.OpenSealed(t, filepath.Join(t.TempDir(), "cay.db"), clear{})
	s := &stage{T: t, records: records}
	s.who, s.box = s.team("a")
	s.ledger = ledger.New(ledger.Config{Store: records, TeamLimits: limits})
	s.meter = usage.New(usage.Config{Ledger: s.ledger, Store: records})
	x := providers.New(providers.Config{
		Ledger: s.ledger, Store: records, Budgets: s.meter,
		Secret: func(_ context.Context, team cay.TeamID, name string) (string, error) {
			if team != s.who.Team || name != "key" {
				return "", cay.Errorf(cay.NotFound, "no secret %q", name)
			}
			return teamsKey, nil
		},
	})
	s.gateway = New(Config{Providers: x, Networks: outside.Networks{Trusted: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}, Watch: &s.seen})
	t.Cleanup(s.gateway.Close)
	s.url = s.serve(func(rw http.ResponseWriter, r *http.Request) {
		s.under.Add(1)
		defer s.under.Done()
		s.gateway.Serve(rw, r, Guest{s.who.Team, s.box.ID}, s.denied)
	})
	return s
}

// team adds a team with a sandbox.
func (s *stage) team(name string) (cay.Caller, cay.Sandbox) {
	s.Helper()
	team := cay.Team{ID: cay.NewTeamID(), Name: name, CreatedAt: ledger.Now()}
	box := cay.Sandbox{ID: cay.NewSandboxID(), Team: team.ID, Template: "t", State: cay.Paused, Key: "k", StartedAt: ledger.Now()}
	for _, err := range []error{s.records.AddTeam(s.Context(), team), s.records.AddSandbox(s.Context(), box)} {
		if err != nil {
			s.Fatal(err)
		}
	}
	return cay.ForTeam(team.ID), box
}

func (s *stage) serve(f http.HandlerFunc) string {
	server := httptest.NewServer(f)
	s.Cleanup(func() {
		server.CloseClientConnections() // of requests that hang
		server.Close()
	})
	return server.URL
}

// provider adds a provider that answers by f, and counts what it is asked.
func (s *stage) provider(p cay.ModelProvider, f http.HandlerFunc) *asked {
	s.Helper()
	a := &asked{}
	if f != nil {
		p.URL = s.serve(func(rw http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			if err != nil {
				return
			}
			a.add(r, string(body))
			f(rw, r)
		})
		if p.Wire == cay.OpenAIWire {
			p.URL += "/v1"
		}
	}
	p.Team, p.Enabled, p.CreatedAt, p.UpdatedAt, p.Version = s.who.Team, true, ledger.Now(), ledger.Now(), 1
	if err := s.records.AddModelProvider(s.Context(), p, 9); err != nil {
		s.Fatal(err)
	}
	return a
}

// asked are the requests that a provider got.
type asked struct {
	mu       sync.Mutex
	requests []*http.Request
	bodies   []string
}

func (a *asked) add(r *http.Request, body string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.requests, a.bodies = append(a.requests, r), append(a.bodies, body)
}

func (a *asked) n() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.bodies)
}

func (a *asked) last() (*http.Request, string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.requests[len(a.requests)-1], a.bodies[len(a.bodies)-1]
}

// post sends a request as the sandbox.
func (s *stage) post(path, body string, header ...string) *http.Response {
	s.Helper()
	req, err := http.NewRequestWithContext(s.Context(), http.MethodPost, s.url+path, strings.NewReader(body))
	if err != nil {
		s.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { resp.Body.Close() })
	return resp
}

// text is the rest of an answer.
func (s *stage) text(resp *http.Response) string {
	s.Helper()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		s.Fatal(err)
	}
	return string(b)
}

// want checks an answer, and what it says of providers.
func (s *stage) want(what string, resp *http.Response, status int, text, from, over string) {
	s.Helper()
	got := s.text(resp)
	if resp.StatusCode != status || !strings.Contains(got, text) || resp.Header.Get("X-Cay-Provider") != from || resp.Header.Get("X-Cay-Provider-Passed-Over") != over {
		s.Errorf("%s: %d %q by %q over %q, want %d %q by %q over %q", what, resp.StatusCode, got,
			resp.Header.Get("X-Cay-Provider"), resp.Header.Get("X-Cay-Provider-Passed-Over"), status, text, from, over)
	}
}

// counted waits until nothing is under way, and returns the tokens of the sandbox.
func (s *stage) counted() (in, out int64) {
	s.Helper()
	s.under.Wait() // the answer is whole before its tokens are counted
	rows, err := s.records.Usage(s.Context(), store.UsageQuery{Team: s.who.Team, To: time.Now().Add(time.Hour)})
	if err != nil {
		s.Fatal(err)
	}
	for _, r := range rows {
		in, out = in+r.Amounts.Input, out+r.Amounts.Output
	}
	tokens, err := s.records.ModelTokens(s.Context(), s.box.ID)
	if err != nil || tokens != in+out {
		s.Errorf("the sandbox has %d tokens, its team %d, %v", tokens, in+out, err)
	}
	return in, out
}

func (s *stage) wantCounted(what string, in, out int64) {
	s.Helper()
	if gotIn, gotOut := s.counted(); gotIn != in || gotOut != out {
		s.Fatalf("%s: %d and %d tokens are counted, want %d and %d", what, gotIn, gotOut, in, out)
	}
}

func says(status int, body string, header ...string) http.HandlerFunc {
	return func(rw http.ResponseWriter, _ *http.Request) {
		for i := 0; i < len(header); i += 2 {
			rw.Header().Set(header[i], header[i+1])
		}
		rw.WriteHeader(status)
		_, _ = io.WriteString(rw, body)
	}
}

const (
	chat      = `{"model":"m", "messages":[ {"role":"user","content":"hi"} ]}`
	chatSays  = `{"choices":[{"message":{"content":"ü"}}],"usage":{"prompt_tokens":11,"completion_tokens":7}}`
	chatRoute = "/v1/chat/completions"
)

func TestKeyAndBytes(t *testing.T) {
	s := start(t, nil)
	openai := s.provider(cay.ModelProvider{Name: "open", Wire: cay.OpenAIWire, Secret: "key", Models: map[string]string{"m": "real/m", "plain": ""}},
		says(200, chatSays, "Content-Type", "application/json", "X-Request-Id", "r1", "Set-Cookie", "a=b", "Openai-Organization", "org"))
	anthropic := s.provider(cay.ModelProvider{Name: "anth", Wire: cay.AnthropicWire, Secret: "key"}, says(200, `{"usage":{"input_tokens":1,"output_tokens":2}}`))
	resp := s.post(chatRoute+"?a=b", chat, "Authorization", "Bearer none", "X-Api-Key", "none", "Cookie", "c=d", "Openai-Organization", "theirs", "X-Stainless-Lang", "python", "Accept-Encoding", "gzip")
	if resp.Header.Get("Set-Cookie") != "" || resp.Header.Get("Openai-Organization") != "" || resp.Header.Get("X-Request-Id") != "r1" {
		t.Errorf("the sandbox got %v", resp.Header)
	}
	s.want("OpenAI's wire", resp, 200, chatSays, "open", "")
	r, body := openai.last()
	if r.URL.String() != "/v1/chat/completions?a=b" || r.Header.Get("Authorization") != "Bearer "+teamsKey || r.Header.Get("X-Stainless-Lang") != "python" || r.Header.Get("Accept-Encoding") != "identity" {
		t.Errorf("the provider got %s %v", r.URL, r.Header)
	}
	for _, name := range []string{"X-Api-Key", "Cookie", "Openai-Organization", "X-Forwarded-For"} {
		if r.Header.Get(name) != "" {
			t.Errorf("the provider got %s: %s", name, r.Header.Get(name))
		}
	}
	if want := strings.Replace(chat, `"m"`, `"real/m"`, 1); body != want {
		t.Errorf("the provider got %q, want %q", body, want)
	}
	s.wantCounted("OpenAI's wire", 11, 7)
	s.want("Anthropic's wire", s.post("/v1/messages?beta=true", `{"model":"x"}`, "Anthropic-Beta", "tools"), 200, "output_tokens", "anth", "")
	r, body = anthropic.last()
	if r.URL.String() != "/v1/messages?beta=true" || r.Header.Get("X-Api-Key") != teamsKey || r.Header.Get("Authorization") != "" || r.Header.Get("Anthropic-Beta") != "tools" || r.Header.Get("Anthropic-Version") != anthropicVersion || body != `{"model":"x"}` {
		t.Errorf("the provider got %s %v %q", r.URL, r.Header, body)
	}
	s.wantCounted("both", 12, 9)
	s.want("a count", s.post("/v1/messages/count_tokens", `{"model":"x"}`), 200, "", "anth", "")
	s.wantCounted("a count counts nothing", 12, 9)
}

func TestPassedOver(t *testing.T) {
	hang := func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	closed, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	for _, test := range []struct {
		name  string
		first cay.ModelProvider
		f     http.HandlerFunc
		over  string
		again string // what is said the next time
	}{
		{"429", cay.ModelProvider{}, says(429, "{}"), "first: 429 Too Many Requests", "first: 429 Too Many Requests"},
		{"429 for a while", cay.ModelProvider{}, says(429, "{}", "Retry-After", "30"), "first: 429 Too Many Requests", "first: not asked again so soon after: 429 Too Many Requests"},
		{"503", cay.ModelProvider{}, says(503, "{}"), "first: 503 Service Unavailable", "first: 503 Service Unavailable"},
		{"529", cay.ModelProvider{}, says(529, "{}"), "first: 529", "first: 529"},
		{"a hang", cay.ModelProvider{Timeout: 30 * time.Millisecond}, hang, "first: no answer in time", "first: not asked again so soon after: no answer in time"},
		{"no server", cay.ModelProvider{URL: "http://" + closed.Addr().String()}, nil, "first: it cannot be reached", "first: not asked again so soon after: it cannot be reached"},
		{"a broken server", cay.ModelProvider{}, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, "first: it cannot be reached", "first: not asked again so soon after: it cannot be reached"},
		{"no secret", cay.ModelProvider{Secret: "gone"}, says(200, "{}"), `first: the secret "gone" cannot be read`, `first: not asked again so soon after: the secret "gone" cannot be read`},
		{"no server with TLS", cay.ModelProvider{URL: "https://" + closed.Addr().String()}, nil, "first: it cannot be reached", "first: not asked again so soon after: it cannot be reached"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := start(t, nil)
			test.first.Name, test.first.Wire = "first", cay.OpenAIWire
			s.provider(test.first, test.f)
			s.provider(cay.ModelProvider{Name: "second", Wire: cay.OpenAIWire, Order: 1, Models: map[string]string{"m": "n"}}, says(200, chatSays))
			s.provider(cay.ModelProvider{Name: "unasked", Wire: cay.OpenAIWire, Order: 2, Models: map[string]string{"other": ""}}, says(500, ""))
			s.want("the first time", s.post(chatRoute, chat), 200, chatSays, "second", test.over)
			s.want("the next time", s.post(chatRoute, chat), 200, chatSays, "second", test.again)
			s.wantCounted("what answered", 22, 14)
		})
	}
}

// The last provider's answer is the sandbox's, whatever it is.
func TestRefusals(t *testing.T) {
	s := start(t, nil)
	first := s.provider(cay.ModelProvider{Name: "first", Wire: cay.OpenAIWire, Secret: "key"}, says(429, `{"error":{"message":"slow down"}}`, "Retry-After", "1"))
	resp := s.post(chatRoute, chat)
	if resp.Header.Get("Retry-After") != "1" {
		t.Error("the time of the retry is not told")
	}
	s.want("one that is busy", resp, 429, `{"error":{"message":"slow down"}}`, "first", "")
	s.want("though it rests", s.post(chatRoute, chat), 429, "slow down", "first", "")
	if first.n() != 2 {
		t.Errorf("it was asked %d times", first.n())
	}
	wrong := s.provider(cay.ModelProvider{Name: "wrong", Wire: cay.AnthropicWire, Secret: "key"}, says(401, `{"error":"wrong key `+teamsKey+`"}`, "X-Key", "of "+teamsKey))
	s.provider(cay.ModelProvider{Name: "unasked", Wire: cay.AnthropicWire, Order: 1}, says(200, "{}"))
	resp = s.post("/v1/messages", `{"model":"m"}`)
	if resp.Header.Get("X-Key") != "" {
		t.Error("the sandbox got the key in a header")
	}
	s.want("a key that is refused", resp, 401, `"wrong key `+strings.Repeat("*", len(teamsKey))+`"`, "wrong", "")
	if wrong.n() != 1 {
		t.Errorf("it was asked %d times", wrong.n())
	}
	s.wantCounted("refusals", 0, 0)
}

func TestErrorsInTheWire(t *testing.T) {
	s := start(t, nil)
	s.provider(cay.ModelProvider{Name: "open", Wire: cay.OpenAIWire, Models: map[string]string{"m": ""}}, says(200, chatSays))
	for _, test := range []struct {
		name, path, body, denied string
		status                   int
		want                     string
	}{
		{"no provider of the wire", "/v1/messages", `{"model":"m"}`, "", 404, `{"error":{"message":"your team has no provider of models that speaks the wire anthropic; `},
		{"no such model", chatRoute, `{"model":"gpt"}`, "", 404, `no provider of your team has the model \"gpt\"`},
		{"no JSON", chatRoute, `nonsense`, "", 400, `"type":"invalid_request_error"`},
		{"a closed policy", chatRoute, chat, "denyOut models.cay.internal", 403, "denyOut models.cay.internal"},
		{"a closed policy in Anthropic's words", "/v1/messages", chat, "no rule", 403, `"type":"permission_error"`},
		{"another route", "/v1/files", "", "", 404, "there is no such route here"},
		{"another method", "/v1/models", "", "", 405, "another method"},
	} {
		s.denied = test.denied
		resp := s.post(test.path, test.body)
		text := s.text(resp)
		var wire struct {
			Type  string
			Error struct{ Message, Type string }
		}
		if err := json.Unmarshal([]byte(text), &wire); err != nil || wire.Error.Message == "" || wire.Error.Type == "" || (wire.Type == "error") != strings.HasPrefix(test.path, "/v1/messages") {
			t.Errorf("%s: %s is no error of the wire: %v", test.name, text, err)
		}
		if resp.StatusCode != test.status || !strings.Contains(text, test.want) {
			t.Errorf("%s: %d %s, want %d with %s", test.name, resp.StatusCode, text, test.status, test.want)
		}
	}
}

func TestStream(t *testing.T) {
	s := start(t, nil)
	more, gone := make(chan struct{}), make(chan struct{})
	s.provider(cay.ModelProvider{Name: "p", Wire: cay.OpenAIWire}, func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		for event := range strings.SplitAfterSeq(chatStream, "\n\n") {
			_, _ = io.WriteString(rw, event)
			_ = http.NewResponseController(rw).Flush()
			select {
			case <-more:
			case <-r.Context().Done():
				close(gone)
				return
			}
		}
	})
	resp := s.post(chatRoute, `{"model":"m","stream":true}`)
	lines := bufio.NewReader(resp.Body)
	var got strings.Builder
	line, err := lines.ReadString('\n') // before anything else is sent
	if err != nil || !strings.Contains(line, "usage") {
		t.Fatalf("%q, %v", line, err)
	}
	got.WriteString(line)
	for range strings.Count(chatStream, "\n\n") + 1 {
		more <- struct{}{}
	}
	rest, err := io.ReadAll(lines)
	got.Write(rest)
	want := strings.Replace(chatStream, "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":11,\"completion_tokens\":7,\"total_tokens\":18}}\n\n", "", 1)
	if err != nil || got.String() != want {
		t.Errorf("%q, %v", got.String(), err)
	}
	s.wantCounted("a stream", 11, 7)

	// A sandbox that leaves ends the request, and what came is counted.
	ctx, leave := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+chatRoute, strings.NewReader(`{"model":"m","stream":true,"pad":"`+strings.Repeat("x", 364)+`"}`))
	if err != nil {
		t.Fatal(err)
	}
	resp, err = http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := bufio.NewReader(resp.Body).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	leave()
	resp.Body.Close()
	<-gone
	s.wantCounted("a sandbox that leaves", 111, 8)
}

// A stream that is cut is not asked for again, and its end is no end to the client.
func TestCutStream(t *testing.T) {
	s := start(t, nil)
	first := s.provider(cay.ModelProvider{Name: "first", Wire: cay.AnthropicWire}, func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(rw, messagesStream)
		_ = http.NewResponseController(rw).Flush()
		panic(http.ErrAbortHandler)
	})
	second := s.provider(cay.ModelProvider{Name: "second", Wire: cay.AnthropicWire, Order: 1}, says(200, "{}"))
	resp := s.post("/v1/messages", `{"model":"m","stream":true}`)
	got, err := io.ReadAll(resp.Body)
	if err == nil || string(got) != messagesStream {
		t.Errorf("%q, %v", got, err)
	}
	if first.n() != 1 || second.n() != 0 {
		t.Errorf("the providers were asked %d and %d times", first.n(), second.n())
	}
	s.wantCounted("a stream that is cut", 33, 2)
}

// A server that refuses the option is asked without it.
func TestOptionRefused(t *testing.T) {
	s := start(t, nil)
	var p *asked
	p = s.provider(cay.ModelProvider{Name: "p", Wire: cay.OpenAIWire}, func(rw http.ResponseWriter, r *http.Request) {
		if _, body := p.last(); strings.Contains(body, "stream_options") {
			says(400, `{"error":{"message":"stream_options: extra inputs are not permitted"}}`)(rw, r)
			return
		}
		says(200, "data: {\"choices\":[{}]}\n\ndata: [DONE]\n\n", "Content-Type", "text/event-stream")(rw, r)
	})
	s.want("a stream", s.post(chatRoute, `{"model":"m","stream":true}`), 200, "[DONE]", "p", "")
	if want := []string{`{"model":"m","stream":true,"stream_options":{"include_usage":true}}`, `{"model":"m","stream":true}`}; !slices.Equal(p.bodies, want) {
		t.Errorf("it was asked %q", p.bodies)
	}
	s.wantCounted("an estimate", 7, 1)
}

func TestBounds(t *testing.T) {
	s := start(t, cay.TeamLimits{cay.LimitModelTokens: 30, cay.LimitModelRequests: 2})
	release, entered := make(chan struct{}), make(chan struct{}, 2)
	p := s.provider(cay.ModelProvider{Name: "p", Wire: cay.OpenAIWire}, func(rw http.ResponseWriter, r *http.Request) {
		entered <- struct{}{}
		<-release
		says(200, chatSays)(rw, r)
	})
	var both sync.WaitGroup
	for range 2 {
		both.Go(func() {
			resp, err := http.Post(s.url+chatRoute, "application/json", strings.NewReader(chat))
			if err != nil || resp.StatusCode != 200 {
				t.Errorf("%v, %v", resp, err)
				return
			}
			_, _ = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
		})
	}
	<-entered
	<-entered
	resp := s.post(chatRoute, chat)
	if resp.Header.Get("X-Should-Retry") != "true" {
		t.Error("one too many is not told to try again")
	}
	s.want("one too many", resp, 429, "this sandbox has 2 requests to models under way", "", "")
	close(release)
	both.Wait()
	s.wantCounted("two", 22, 14)
	resp = s.post("/v1/messages", `{"model":"m"}`)
	if resp.Header.Get("X-Should-Retry") != "false" {
		t.Error("a bound that is reached is told to be tried again")
	}
	s.want("over the bound", resp, 429, "this sandbox has exchanged 36 tokens with models, and may exchange 30", "", "")
	// A sandbox of the same team has a bound of its own.
	first := s.box
	_, s.box = s.who, cay.Sandbox{ID: cay.NewSandboxID(), Team: s.who.Team, State: cay.Paused, Template: "t", StartedAt: ledger.Now()}
	if err := s.records.AddSandbox(t.Context(), s.box); err != nil {
		t.Fatal(err)
	}
	s.want("another sandbox", s.post(chatRoute, chat), 200, chatSays, "p", "")
	s.box = first
	if p.n() != 3 {
		t.Errorf("the provider was asked %d times", p.n())
	}
}

func TestBudget(t *testing.T) {
	s := start(t, nil)
	s.provider(cay.ModelProvider{Name: "p", Wire: cay.OpenAIWire}, says(200, chatSays))
	if err := s.meter.SetPrices(t.Context(), s.who, cay.Prices{Currency: "EUR", Units: map[cay.Meter]int64{cay.ModelInput: 3_000_000, cay.ModelOutput: 15_000_000}}); err != nil {
		t.Fatal(err)
	}
	for _, spec := range []usage.Spec{
		{Meter: cay.ModelInput, Limit: "20", Period: cay.Daily, Action: cay.RefuseAtLimit},
		{Meter: cay.Money, Limit: "0.001", Period: cay.Daily, Action: cay.RefuseAtLimit},
	} {
		if _, err := s.meter.AddBudget(t.Context(), s.who, spec); err != nil {
			t.Fatal(err)
		}
	}
	s.want("the first", s.post(chatRoute, chat), 200, chatSays, "p", "")
	s.wantCounted("the first", 11, 7)
	s.want("the second", s.post(chatRoute, chat), 200, chatSays, "p", "")
	s.wantCounted("the second", 22, 14)
	resp := s.post(chatRoute, chat)
	if resp.Header.Get("X-Should-Retry") != "false" {
		t.Error("a budget that is used up is told to be tried again")
	}
	s.want("the third", resp, 429, "budget", "", "")
	report, err := s.meter.Usage(t.Context(), s.who, usage.Query{})
	if err != nil || report.Total.Money != (22*3+14*15)*1000 {
		t.Errorf("it costs %d, %v", report.Total.Money, err)
	}
}

// A team's sandboxes reach no other team's providers.
func TestAnotherTeam(t *testing.T) {
	s := start(t, nil)
	p := s.provider(cay.ModelProvider{Name: "p", Wire: cay.OpenAIWire, Secret: "key"}, says(200, chatSays))
	ours, box := s.who, s.box
	s.who, s.box = s.team("b")
	s.want("another team", s.post(chatRoute, chat), 404, "your team has no provider", "", "")
	s.box = box // of the first team
	s.want("another team's sandbox", s.post(chatRoute, chat), 404, "not found", "", "")
	if p.n() != 0 {
		t.Errorf("the provider was asked %d times", p.n())
	}
	s.who = ours
	s.want("the team", s.post(chatRoute, chat), 200, chatSays, "p", "")
}

func TestClosedAddresses(t *testing.T) {
	s := start(t, nil)
	s.gateway.cfg.Networks.Trusted = nil
	s.gateway.secure, s.gateway.plain = transport(s.gateway.cfg.Networks.DialContext), transport(s.gateway.dialPlain)
	p := s.provider(cay.ModelProvider{Name: "p", Wire: cay.OpenAIWire}, says(200, chatSays))
	s.want("this machine", s.post(chatRoute, chat), 503, "is on a private network, or on this host's own", "", "p: 127.0.0.1 is on a private network, or on this host's own")
	if p.n() != 0 {
		t.Error("the provider was asked")
	}
}

func TestLargeBodies(t *testing.T) {
	s := start(t, nil)
	p := s.provider(cay.ModelProvider{Name: "p", Wire: cay.OpenAIWire}, says(200, chatSays))
	for _, length := range []int64{maxBody + 1, -1} { // as it says itself, and as it comes
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, chatRoute, io.LimitReader(spaces{}, maxBody+1))
		r.ContentLength = length
		answer := httptest.NewRecorder()
		s.gateway.Serve(answer, r, Guest{s.who.Team, s.box.ID}, "")
		s.want("a large body", answer.Result(), 400, "more than 32 MiB", "", "")
	}
	g := New(Config{})
	a, b := Guest{Team: "hostile", Sandbox: "a"}, Guest{Team: "hostile", Sandbox: "b"}
	for _, body := range []struct {
		of   Guest
		size int64
		want bool
	}{{a, maxBody, true}, {a, maxBody, true}, {a, 1, false}, {b, maxBody, true}} {
		if got := g.take(body.of, body.size); got != body.want {
			t.Errorf("%d bytes of %s are taken: %v", body.size, body.of, got)
		}
	}
	for i := range maxHeld/maxBody/2 - 3 {
		if !g.take(Guest{"hostile", cay.SandboxID(fmt.Sprint(i))}, maxBody) {
			t.Errorf("body %d of the team is refused", i)
		}
	}
	if g.take(Guest{"hostile", "c"}, 1) {
		t.Error("one team's bodies have no bound")
	}
	if !g.take(Guest{"calm", "d"}, maxBody) || p.n() != 0 {
		t.Error("one team's bodies leave no room for another's")
	}
}

// spaces is a body without an end.
type spaces struct{}

func (spaces) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = ' '
	}
	return len(b), nil
}

func TestList(t *testing.T) {
	s := start(t, nil)
	s.provider(cay.ModelProvider{Name: "named", Wire: cay.OpenAIWire, Models: map[string]string{"b": "x", "a": ""}}, says(500, ""))
	s.provider(cay.ModelProvider{Name: "all", Wire: cay.OpenAIWire, Order: 1, Secret: "key"}, says(200, `{"data":[{"id":"c"},{"id":"a"},{"id":""}]}`))
	s.provider(cay.ModelProvider{Name: "broken", Wire: cay.OpenAIWire, Order: 2}, says(200, `nonsense`))
	s.provider(cay.ModelProvider{Name: "anth", Wire: cay.AnthropicWire, Models: map[string]string{"claude": ""}}, says(500, ""))
	for version, want := range map[string][]string{"": {"a", "b", "c"}, "2023-06-01": {"claude"}} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.url+listPath, nil)
		if err != nil {
			t.Fatal(err)
		}
		if version != "" {
			req.Header.Set("Anthropic-Version", version)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		var got struct{ Data []struct{ ID string } }
		if err := json.NewDecoder(resp.Body).Decode(&got); err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		var names []string
		for _, m := range got.Data {
			names = append(names, m.ID)
		}
		if !slices.Equal(names, want) {
			t.Errorf("%q: %q, want %q", version, names, want)
		}
	}
}
