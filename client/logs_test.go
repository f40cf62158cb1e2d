package client_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"
	"time"

	"github.com/cay-run/cay/client"
)

// TestFollowLogs: a follower gets each line once, late ones too, and an end.
func TestFollowLogs(t *testing.T) {
	begun := time.Now().UTC().Truncate(time.Millisecond)
	line := func(ms int, message, logger string) client.LogLine {
		return client.LogLine{At: begun.Add(time.Duration(ms) * time.Millisecond), Level: "info", Message: message, Fields: map[string]string{"logger": logger}}
	}
	answers := [][]client.LogLine{
		{line(2, "two", "agent"), line(1, "one", "agent")}, // newest first
		{line(1, "one", "agent"), line(1, "late", "agent"), line(2, "two", "agent")},
		{line(1, "late", "agent"), line(3, "sandbox killed", "agent"), line(4, "sandbox killed", "cay")},
	}
	asked := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		want := "forward"
		if asked == 0 {
			want = "backward"
		}
		if q.Get("direction") != want || q.Get("level") != "info" || asked == 0 && q.Get("limit") != "7" {
			t.Errorf("asked for %v", q)
		}
		if at, err := strconv.ParseInt(q.Get("cursor"), 10, 64); want == "forward" && (err != nil || at > begun.UnixMilli()) {
			t.Errorf("asked from %s", q.Get("cursor"))
		}
		json.NewEncoder(w).Encode(map[string]any{"logs": answers[asked]})
		asked++
	}))
	defer server.Close()
	c, err := client.New(client.Config{APIURL: server.URL, APIKey: "e2b_0"})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for l, err := range c.Logs(t.Context(), "i1", client.LogOptions{Follow: true, Level: "info", Lines: 7}) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, l.Fields["logger"]+" "+l.Message)
	}
	want := []string{"agent one", "agent two", "agent late", "agent sandbox killed", "cay sandbox killed"}
	if len(got) != len(want) {
		t.Fatalf("told %q", got)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("told %q, want %q", got[i], want[i])
		}
	}
}
