package main

import (
	"os"
	"strings"
	"testing"

	"github.com/cay-run/cay"
)

// Each cause of an end is a sentence here, and a word in the documents.
func TestEveryEndHasWords(t *testing.T) {
	page, err := os.ReadFile("../../docs/use/life.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, cause := range cay.AllCauses() {
		if reasons[string(cause)] == "" {
			t.Errorf("cay sandbox why has no sentence for %q", cause)
		}
		if !strings.Contains(string(page), "`"+string(cause)+"`") {
			t.Errorf("docs/use/life.md has no %q", cause)
		}
	}
}

func TestEventsAndWhy(t *testing.T) {
	environ := stand(t, map[string]string{
		"GET /cay/v1/sandboxes/i1/events": `{"events":[{"seq":3,"sandboxID":"i1","type":"sandbox.killed","reason":"timeout","at":"2026-01-02T03:04:05Z","data":{"k":"v\u001b[2J"}}],"next":3}`,
		"GET /cay/v1/sandboxes/i1/egress": `[{"at":"2026-01-02T03:04:05Z","allowed":false,"rule":"denyOut 0.0.0.0/0","protocol":"http","name":"b\u001b[2J.example","address":"192.88.99.1:80","sent":1,"received":2,"tookMs":3,"open":false}]`,
		"GET /cay/v1/sandboxes/i1/end":    `{"sandboxID":"i1","templateID":"t","reason":"out_of_memory","evidence":"oom_kill 3","byName":"me","startedAt":"2026-01-02T03:04:05Z","endedAt":"2026-01-02T03:06:05Z","metadata":{"a":"b"}}`,
	})
	for _, tt := range []struct {
		args []string
		ok   bool
		has  []string
	}{
		{[]string{"events", "i1"}, true, []string{"sandbox.killed (timeout)", "k=v?[2J"}},
		{[]string{"events", "i9"}, false, []string{"not found"}},
		{[]string{"egress", "i1"}, true, []string{"denied", "b?[2J.example", "192.88.99.1:80", "denyOut 0.0.0.0/0"}},
		{[]string{"why", "i1"}, true, []string{"i1: it ran out of memory", "oom_kill 3", "by key     me", "2m after", "a=b"}},
		{[]string{"why", "i9", "i1"}, false, []string{"nothing is known of sandbox i9", "oom_kill 3"}},
	} {
		code, out, errs := invoke(t, environ, append([]string{"sandbox"}, tt.args...)...)
		for _, text := range tt.has {
			if (code == 0) != tt.ok || !strings.Contains(out+errs, text) {
				t.Errorf("cay sandbox %v: %d, %q, %q", tt.args, code, out, errs)
			}
		}
	}
	if _, out, _ := invoke(t, environ, "--json", "sandbox", "events", "i1"); !strings.HasPrefix(out, `{"seq":3,`) || strings.Count(out, "\n") != 1 {
		t.Errorf("as JSON: %q", out)
	}
}
