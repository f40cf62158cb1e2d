package proxy

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"testing"

	"github.com/cay-run/cay/internal/trail"
)

// watcher keeps what it is told.
type watcher struct {
	mu      sync.Mutex
	answers []trail.Answer
	faces   []trail.Face
	begun   []trail.Operation
}

func (w *watcher) Arrived(ctx context.Context, _ *http.Request, _ *trail.Request) context.Context {
	return ctx
}

func (w *watcher) Answered(_ context.Context, _ *http.Request, of *trail.Request, a trail.Answer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.answers, w.faces = append(w.answers, a), append(w.faces, of.Face)
}

func (w *watcher) Begin(ctx context.Context, what trail.Operation) (context.Context, func(error)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.begun = append(w.begun, what)
	return ctx, func(error) {}
}

// TestIDsStayOutside holds requests and answers of users' own servers to what
// both sides sent. The agent's answers, and the proxy's own, have the ids.
func TestIDsStayOutside(t *testing.T) {
	w := newWorld(t)
	var asked http.Header
	theirs := http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		asked = r.Header.Clone()
		if r.URL.Path == "/own" {
			rw.Header().Set("X-Request-ID", "theirs")
		}
		rw.WriteHeader(http.StatusTeapot)
	})
	w.sandbox(t, "i1", nil, map[int]http.Handler{3000: theirs, 49983: theirs})
	for _, tt := range []struct {
		path, host, sent string
		want             string // the answer's id; "any" for one of ours
	}{
		{"/", "3000-i1.x", "", ""},
		{"/", "3000-i1.x", "mine", ""},
		{"/own", "3000-i1.x", "", "theirs"},
		{"/", "49983-i1.x", "mine", "mine"},
		{"/", "49983-i1.x", "", "any"},
		{"/", "3001-i1.x", "", "any"}, // a port that is not open
	} {
		asked = nil
		r := w.request(t, "GET", tt.path, tt.host, nil)
		if tt.sent != "" {
			r.Header.Set("X-Request-ID", tt.sent)
		}
		resp, _ := w.do(t, r)
		got := resp.Header.Get("X-Request-ID")
		if tt.want == "any" && len(got) != 32 || tt.want != "any" && got != tt.want {
			t.Errorf("%s%s asked with %q is answered with %q", tt.host, tt.path, tt.sent, got)
		}
		if asked != nil && (asked.Get("X-Request-ID") != tt.sent || asked.Get("Traceparent") != "" || asked.Get("X-E2B-Trace-ID") != "") {
			t.Errorf("%s%s asked with %q is asked inside with %v", tt.host, tt.path, tt.sent, asked)
		}
	}
	w.watched.mu.Lock()
	defer w.watched.mu.Unlock()
	if want := []trail.Face{trail.Port, trail.Port, trail.Port, trail.Agent, trail.Agent, trail.Port}; !slices.Equal(w.watched.faces, want) {
		t.Errorf("the faces are %v", w.watched.faces)
	}
	for i, a := range w.watched.answers {
		want := http.StatusTeapot
		if i == 5 {
			want = http.StatusBadGateway
		}
		if a.Status != want || !a.Whole || a.Head <= 0 || a.Took < a.Head {
			t.Errorf("answer %d is told as %+v", i, a)
		}
	}
}
