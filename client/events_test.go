package client

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/cay-run/cay"
)

// wire is what a server sends of events with these numbers.
func wire(from, to int) string {
	var out strings.Builder
	for seq := from; seq <= to; seq++ {
		fmt.Fprintf(&out, ":\n\nid: %d\nevent: t\ndata: {\"seq\":%d,\"sandboxID\":\"i1\",\"type\":\"t%d\",\"at\":\"2026-01-02T03:04:05Z\"}\n\n", seq, seq, seq)
	}
	return out.String()
}

func eventServer(t *testing.T, answers ...http.HandlerFunc) (*Client, *[]string) {
	t.Helper()
	var asked []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.URL.String()+" "+r.Header.Get("Last-Event-ID"))
		if len(asked) > len(answers) {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		answers[len(asked)-1](w, r)
	}))
	t.Cleanup(server.Close)
	c, err := New(Config{APIKey: "key", APIURL: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	return c, &asked
}

func says(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Accept") == "text/event-stream" {
			w.Header().Set("Content-Type", "text/event-stream")
		}
		w.Write([]byte(text))
	}
}

func breaks(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Write([]byte(text))
		http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
}

func TestFollowSurvivesBrokenStreams(t *testing.T) {
	c, asked := eventServer(t,
		says(`{"events":[],"next":4}`), // where "now" is
		breaks(wire(5, 6)+"id: 7\ndata: {\"seq\":7"),
		func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(503) },
		says(wire(7, 8)),
	)
	var got []int64
	for e, err := range c.Events(t.Context(), EventOptions{Sandbox: "i1", After: -1, Follow: true}) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, e.Seq)
	}
	if fmt.Sprint(got) != "[5 6 7 8]" {
		t.Errorf("got %v", got)
	}
	path := "/cay/v1/sandboxes/i1/events"
	want := []string{path + "?after=-1 ", path + "? 4", path + "? 6", path + "? 6", path + "? 8"}
	if strings.Join(*asked, "\n") != strings.Join(want, "\n") {
		t.Errorf("asked %q", *asked)
	}
}

func TestFollowEndsWithAnError(t *testing.T) {
	c, _ := eventServer(t, func(w http.ResponseWriter, _ *http.Request) { refuse(w, 404, "not found") })
	for _, err := range c.Events(t.Context(), EventOptions{Sandbox: "i1", Follow: true}) {
		if cay.KindOf(err) != cay.NotFound {
			t.Errorf("got %v", err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	c, _ = eventServer(t, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(200)
		http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	for _, err := range c.Events(ctx, EventOptions{Follow: true}) {
		if err != context.DeadlineExceeded {
			t.Errorf("got %v", err)
		}
	}
}

func TestWaitFor(t *testing.T) {
	c, _ := eventServer(t, says(wire(1, 3)))
	if e, err := c.WaitFor(t.Context(), "i1", 0, "x", "t2"); err != nil || e.Seq != 2 {
		t.Errorf("got %v, %v", e, err)
	}
	c, _ = eventServer(t, says(wire(1, 3)))
	if _, err := c.WaitFor(t.Context(), "i1", 0, "x"); cay.KindOf(err) != cay.NotFound {
		t.Errorf("got %v", err)
	}
}
