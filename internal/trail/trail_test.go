package trail

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

const (
	aTrace  = "4bf92f3577b34da6a3ce929d0e0e4736"
	aParent = "00-" + aTrace + "-00f067aa0ba902b7-01"
)

func TestIDsOfCallers(t *testing.T) {
	for _, tt := range []struct {
		name           string
		id, parent     []string
		request, trace string // empty: a new one
	}{
		{name: "none"},
		{name: "an id", id: []string{"job-7.step_2:a/b+c=@"}, request: "job-7.step_2:a/b+c=@"},
		{name: "a trace", parent: []string{aParent}, request: aTrace, trace: aTrace},
		{name: "both", id: []string{"mine"}, parent: []string{aParent}, request: "mine", trace: aTrace},
		{name: "a later version", parent: []string{"01-" + aTrace + "-00f067aa0ba902b7-01-more"}, request: aTrace, trace: aTrace},
		{name: "the longest", id: []string{strings.Repeat("a", 128)}, request: strings.Repeat("a", 128)},
		{name: "too long", id: []string{strings.Repeat("a", 129)}},
		{name: "empty", id: []string{""}},
		{name: "two", id: []string{"a", "b"}},
		{name: "a line", id: []string{"a\nlevel=ERROR"}},
		{name: "a space", id: []string{"a b"}},
		{name: "a quote", id: []string{`a"`}},
		{name: "not ASCII", id: []string{"é"}},
		{name: "two traces", parent: []string{aParent, aParent}},
		{name: "capitals", parent: []string{strings.ToUpper(aParent)}},
		{name: "no trace", parent: []string{"00-00000000000000000000000000000000-00f067aa0ba902b7-01"}},
		{name: "no span", parent: []string{"00-" + aTrace + "-0000000000000000-01"}},
		{name: "version ff", parent: []string{"ff" + aParent[2:]}},
		{name: "more in version 0", parent: []string{aParent + "-more"}},
		{name: "less", parent: []string{aParent[:54]}},
		{name: "other dashes", parent: []string{strings.ReplaceAll(aParent, "-", "_")}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := httptest.NewRequest("GET", "/", nil)
			r.Header["X-Request-Id"], r.Header["Traceparent"] = tt.id, tt.parent
			got := Arrived(r)
			if tt.trace != "" && got.Trace != tt.trace || len(got.Trace) != 32 || !isID32(got.Trace) {
				t.Errorf("trace %q, want %q", got.Trace, tt.trace)
			}
			want := tt.request
			if want == "" {
				want = got.Trace
			}
			if got.Request != want {
				t.Errorf("request %q, want %q", got.Request, want)
			}
			if again := Arrived(r); tt.trace == "" && again.Trace == got.Trace {
				t.Error("a second request has the same trace")
			}
		})
	}
}

func TestOrigin(t *testing.T) {
	for _, tt := range []struct{ remote, agent, address, shown string }{
		{"192.0.2.1:1234", "e2b-js/2.51.0", "192.0.2.1", "e2b-js/2.51.0"},
		{"[2001:db8::1]:1", "", "2001:db8::1", ""},
		{"@", "a\x1b[31mb\tc", "", "a.[31mb.c"},
		{"192.0.2.1:1", strings.Repeat("é", 200), "192.0.2.1", strings.Repeat("é", 100)},
		{"192.0.2.1:1", "a" + strings.Repeat("é", 200), "192.0.2.1", "a" + strings.Repeat("é", 99)},
	} {
		r := httptest.NewRequest("GET", "/", nil)
		r.RemoteAddr = tt.remote
		r.Header.Set("User-Agent", tt.agent)
		if got := Arrived(r); got.Address != tt.address || got.Agent != tt.shown {
			t.Errorf("%q from %q is %q from %q", tt.agent, tt.remote, got.Agent, got.Address)
		}
	}
}

// FuzzArrived holds what callers send to its bounds: it stands in logs and
// records.
func FuzzArrived(f *testing.F) {
	f.Add("id", aParent, "agent")
	f.Add("a\nb", "00-", "\xff\xfe")
	f.Fuzz(func(t *testing.T, id, parent, agent string) {
		r := httptest.NewRequest("GET", "/", nil)
		r.Header["X-Request-Id"], r.Header["Traceparent"], r.Header["User-Agent"] = []string{id}, []string{parent}, []string{agent}
		got := Arrived(r)
		if !isID(got.Request) || len(got.Trace) != 32 || !isID32(got.Trace) {
			t.Errorf("request %q, trace %q", got.Request, got.Trace)
		}
		if len(got.Agent) > maxAgent || !utf8.ValidString(got.Agent) || strings.ContainsFunc(got.Agent, func(r rune) bool { return !unicode.IsPrint(r) }) {
			t.Errorf("agent %q", got.Agent)
		}
	})
}

func TestFollow(t *testing.T) {
	var text bytes.Buffer
	log := slog.New(Logs(slog.NewTextHandler(&text, nil))).With("part", "node")
	handler := Follow(REST, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		log.InfoContext(context.WithoutCancel(r.Context()), "at work")
		if from := OriginOf(r.Context()); from == nil || from.Address != "192.0.2.1" {
			t.Errorf("from %v", from)
		}
		w.WriteHeader(http.StatusTeapot)
	}))
	r := httptest.NewRequest("GET", "/", nil)
	r.Header.Set("X-Request-ID", "mine")
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, r)
	if got := w.Header().Get("X-Request-ID"); got != "mine" {
		t.Errorf("X-Request-ID %q", got)
	}
	if got := w.Header().Get("X-E2B-Trace-ID"); len(got) != 32 {
		t.Errorf("X-E2B-Trace-ID %q", got)
	}
	log.InfoContext(t.Context(), "by itself")
	lines := strings.Split(strings.TrimSpace(text.String()), "\n")
	if len(lines) != 2 || !strings.HasSuffix(lines[0], "part=node request=mine") || strings.Contains(lines[1], "request=") {
		t.Errorf("the log is %q", lines)
	}
	Leave(w.Header())
	if len(w.Header()) != 0 {
		t.Errorf("left %v", w.Header())
	}
}
