package runsc

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cay-run/cay"
)

// TestEvidenceOfAFailure reads what a sentry says of its own failure: the line
// that names it and where it was stand first, below them are more goroutines
// than are kept.
func TestEvidenceOfAFailure(t *testing.T) {
	e := &Engine{cfg: Config{Run: t.TempDir()}, cg: findHierarchy("cay-none")}
	for name, c := range map[string]struct{ text, detail, trace string }{
		"silent": {"", "the sandbox ended by itself", ""},
		"short":  {"panic: a reason\n\ngoroutine 1:\nplace\n", "the sentry failed: panic: a reason", "panic: a reason\n\ngoroutine 1:\nplace\n"},
		"long": {
			"panic: a reason\n" + strings.Repeat("another goroutine\n", 10_000), "the sentry failed: panic: a reason",
			("panic: a reason\n" + strings.Repeat("another goroutine\n", 10_000))[:8<<10],
		},
	} {
		in := &instance{record: &record{ID: cay.NewInstanceID()}}
		path := e.recordFile(in.ID, "panic.log")
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if d := e.evidence(in); d.Cause != cay.CauseEngine || d.Detail != c.detail || d.Trace != c.trace {
			t.Errorf("%s: %s, %q, a trace of %d bytes", name, d.Cause, d.Detail, len(d.Trace))
		}
	}
}
