package models

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/store"
)

// A provider gets the gateway's own path and headers, with the team's key, and one
// request for each that is one, with anything around it that a guest may send.
func TestSmuggling(t *testing.T) {
	s := start(t, nil)
	p := s.provider(cay.ModelProvider{Name: "p", Wire: cay.OpenAIWire, Secret: "key"}, says(200, chatSays))
	length := fmt.Sprintf("Content-Length: %d\r\n", len(chat))
	chunk := fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(chat), chat)
	for _, tt := range []struct{ what, line, headers, body, want string }{
		{"headers named in Connection", "/v1/chat/completions", "Connection: Authorization, Content-Type, X-Api-Key\r\n" + length, chat, "200"},
		{"keys of its own", "/v1/chat/completions", "Authorization: Bearer theirs\r\nAuthorization: Bearer more\r\nX-Api-Key: theirs\r\nApi-Key: theirs\r\nOpenAI-Organization: theirs\r\nProxy-Authorization: x\r\nCookie: a=b\r\n" + length, chat, "200"},
		{"who it is", "/v1/chat/completions", "X-Forwarded-For: 10.0.0.1\r\nX-Forwarded-Host: x\r\nForwarded: for=10.0.0.1\r\nX-Cay-Provider: x\r\nE2b-Sandbox-Id: other\r\n" + length, chat, "200"},
		{"a whole address", "http://a.example/v1/chat/completions", length, chat, "200"},
		{"both lengths", "/v1/chat/completions", "Transfer-Encoding: chunked\r\n" + length, chunk, "200"}, // chunks count, and the connection ends
		{"chunks", "/v1/chat/completions", "Transfer-Encoding: chunked\r\n", chunk, "200"},
		{"two lengths", "/v1/chat/completions", length + "Content-Length: 1\r\n", chat, "400"},
		{"chunks twice", "/v1/chat/completions", "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", chunk, "501"},
		{"another coding", "/v1/chat/completions", "Transfer-Encoding: gzip, chunked\r\n", chunk, "501"},
		{"a header that is folded", "/v1/chat/completions", "X: a\r\n b\r\n" + length, chat, "200"},
		{"a space before the colon", "/v1/chat/completions", "Transfer-Encoding : chunked\r\n" + length, chat, "400"},
		{"up in the path", "/v1/chat/completions/../../files", length, chat, "404"},
		{"an escaped path", "/v1/chat%2fcompletions", length, chat, "200"},
		{"a fragment and a query", "/v1/chat/completions?x=%0d%0aHost:%20evil", length, chat, "200"},
	} {
		t.Run(tt.what, func(t *testing.T) {
			before := p.n()
			conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			text := "POST " + tt.line + " HTTP/1.1\r\nHost: models.cay.internal\r\n" + tt.headers + "\r\n" + tt.body
			if _, err := io.WriteString(conn, text); err != nil {
				t.Fatal(err)
			}
			resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if !strings.HasPrefix(resp.Status, tt.want) {
				t.Errorf("the answer is %s, want %s", resp.Status, tt.want)
			}
			if tt.want != "200" {
				if p.n() != before {
					t.Error("a provider was asked")
				}
				return
			}
			r, body := p.last()
			if p.n() != before+1 || r.URL.Path != "/v1/chat/completions" || body != chat {
				t.Errorf("%d requests, the last to %s with %q", p.n()-before, r.URL, body)
			}
			if got := r.Header.Values("Authorization"); !slices.Equal(got, []string{"Bearer " + teamsKey}) {
				t.Errorf("the provider got the keys %q", got)
			}
			for name := range r.Header {
				if !slices.Contains([]string{"Authorization", "Accept-Encoding", "Content-Length", "Content-Type", "User-Agent"}, name) {
					t.Errorf("the provider got %s: %q", name, r.Header[name])
				}
			}
		})
	}
}

// Of five requests at once at the last token one is sent, and the others are told to
// try again; so are those for which a request under way may take all that is left.
func TestTheLastTokens(t *testing.T) {
	s := start(t, cay.TeamLimits{cay.LimitModelTokens: 19, cay.LimitModelRequests: 16})
	release, entered := make(chan struct{}), make(chan struct{}, 5)
	var n atomic.Int32
	p := s.provider(cay.ModelProvider{Name: "p", Wire: cay.OpenAIWire}, func(rw http.ResponseWriter, r *http.Request) {
		if n.Add(1) > 1 {
			entered <- struct{}{}
			<-release
		}
		says(200, chatSays)(rw, r)
	})
	s.want("the first", s.post(chatRoute, chat), 200, chatSays, "p", "")
	s.wantCounted("the first", 11, 7) // one is left
	answers := make(chan *http.Response, 5)
	for range cap(answers) {
		go func() {
			resp, err := http.Post(s.url+chatRoute, "application/json", strings.NewReader(chat))
			if err != nil {
				t.Error(err)
			}
			answers <- resp
		}()
	}
	<-entered
	for range cap(answers) - 1 {
		resp := <-answers
		if resp.Header.Get("X-Should-Retry") != "true" {
			t.Error("one too many is not told to try again")
		}
		s.want("one too many", resp, 429, "under way may take the rest", "", "")
		resp.Body.Close()
	}
	close(release)
	last := <-answers
	s.want("the last", last, 200, chatSays, "p", "")
	last.Body.Close()
	s.wantCounted("all", 22, 14)
	if p.n() != 2 {
		t.Errorf("the provider was asked %d times", p.n())
	}
}

// The bound that a request has for its own answer is what it may take.
func TestTokensThatMayBeTaken(t *testing.T) {
	s := start(t, cay.TeamLimits{cay.LimitModelTokens: 100, cay.LimitModelRequests: 16})
	release, entered := make(chan struct{}), make(chan struct{}, 2)
	s.provider(cay.ModelProvider{Name: "p", Wire: cay.OpenAIWire}, func(rw http.ResponseWriter, r *http.Request) {
		entered <- struct{}{}
		<-release
		says(200, chatSays)(rw, r)
	})
	first := make(chan error, 1)
	go func() {
		resp, err := http.Post(s.url+chatRoute, "application/json", strings.NewReader(`{"max_tokens":1000,`+chat[1:]))
		if err == nil {
			err = resp.Body.Close()
		}
		first <- err
	}()
	<-entered
	s.want("beside one that may take all", s.post(chatRoute, chat), 429, "under way may take the rest", "", "")
	close(release)
	if err := <-first; err != nil {
		t.Error(err)
	}
	s.counted()
	s.want("after it", s.post(chatRoute, chat), 200, chatSays, "p", "")
}

// The fate of requests is counted, and a provider that fails is told of once in a while.
func TestWatched(t *testing.T) {
	s := start(t, nil)
	status := 503
	s.provider(cay.ModelProvider{Name: "first", Wire: cay.OpenAIWire}, func(rw http.ResponseWriter, r *http.Request) { says(status, "no")(rw, r) })
	s.provider(cay.ModelProvider{Name: "second", Wire: cay.OpenAIWire, Order: 1}, says(200, chatSays))
	for i, tt := range []struct {
		status int
		want   []string
	}{
		{503, []string{"full", "answered", "200 11 7"}}, {503, []string{"full", "answered", "200 11 7"}}, {400, []string{"refused", "400 0 0"}},
	} {
		status = tt.status
		s.text(s.post(chatRoute, chat))
		s.under.Wait()
		if got := s.seen.take(); !slices.Equal(got, tt.want) {
			t.Errorf("%d: %q, want %q", i, got, tt.want)
		}
	}
	s.text(s.post(chatRoute, `{}`))
	s.under.Wait()
	if got := s.seen.take(); !slices.Equal(got, []string{"400 0 0"}) {
		t.Errorf("what is no question: %q", got)
	}
	events, err := s.records.Events(t.Context(), store.EventQuery{Team: s.who.Team})
	if err != nil || len(events) != 1 || events[0].Type != cay.ModelProviderFailing || events[0].Data["provider"] != "first" || events[0].Data["why"] != "503 Service Unavailable" {
		t.Errorf("told %+v, %v", events, err)
	}
}
