package runsc

import (
	"encoding/binary"
	"errors"
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

// TestLastWords has a start that failed say what the sentry has left behind.
func TestLastWords(t *testing.T) {
	e := &Engine{cfg: Config{Run: t.TempDir()}}
	r := &record{ID: cay.NewInstanceID(), Pages: 1}
	if got := e.lastWords(r); got != "" {
		t.Errorf("a sentry that left nothing: %q", got)
	}
	for _, c := range []struct {
		name string
		text []byte
		want string
	}{
		{statusName, binary.NativeEndian.AppendUint64(binary.NativeEndian.AppendUint64(
			binary.NativeEndian.AppendUint64(binary.NativeEndian.AppendUint64(nil, 0x6361796c6f616431), 1), 1), 1),
			"; the pages of its snapshot could not be read"},
		{"panic.log", []byte("panic: a reason\n"), "; the pages of its snapshot could not be read; the sentry failed: panic: a reason\n"},
	} {
		path := e.recordFile(r.ID, c.name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, c.text, 0o600)); err != nil {
			t.Fatal(err)
		}
		if got := e.lastWords(r); got != c.want {
			t.Errorf("with %s: %q, want %q", c.name, got, c.want)
		}
	}
}
