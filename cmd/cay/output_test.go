package main

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode"
)

// A name that another has chosen cannot move the cursor of a terminal, begin a
// line of its own, or have what stands beside it read in another order.
func TestHostileNames(t *testing.T) {
	const hostile = "a\x1b[2J\x1b]0;owned\x07\r\nb\u202eterces\u2066\u200f\u2028c\u009b31md\xff"
	quoted, err := json.Marshal(hostile)
	if err != nil {
		t.Fatal(err)
	}
	answer := func(text string) string { return strings.ReplaceAll(text, "EVIL", string(quoted)) }
	environ := stand(t, map[string]string{
		"GET /v2/sandboxes":                  answer(`[{"sandboxID":"i1","alias":EVIL,"state":EVIL,"startedAt":"2026-01-02T03:04:05Z","metadata":{EVIL:EVIL}}]`),
		"GET /templates":                     answer(`[{"templateID":"tid","names":[EVIL],"buildStatus":EVIL}]`),
		"GET /cay/v1/disk-use":               `[]`,
		"GET /cay/v1/volumes":                answer(`[{"volumeID":"v1","name":EVIL,"sizeMB":10240,"createdAt":"2026-01-01T00:00:00Z"}]`),
		"GET /cay/v1/audit":                  answer(`{"rows":[{"seq":1,"at":"2026-01-02T03:04:05Z","actor":{"kind":"key","id":"k","name":EVIL},"action":"sandbox.created","target":EVIL,"outcome":"ok","address":"192.0.2.1","userAgent":EVIL,"details":{"name":EVIL}}]}`),
		"GET /v2/sandboxes/i1/logs":          answer(`{"logs":[{"timestamp":"2026-01-02T03:04:05Z","level":EVIL,"message":EVIL,"fields":{"k":EVIL}}]}`),
		"GET /cay/v1/sandboxes/i1/events":    answer(`{"events":[{"seq":3,"sandboxID":"i1","type":EVIL,"reason":EVIL,"at":"2026-01-02T03:04:05Z","data":{"k":EVIL}}],"next":3}`),
		"GET /cay/v1/api-keys":               answer(`[{"id":"k","name":EVIL,"mask":{"prefix":EVIL},"createdAt":"2026-01-02T03:04:05Z"}]`),
		"GET /cay/v1/sandboxes/i1/end":       answer(`{"sandboxID":"i1","templateID":"t","alias":EVIL,"reason":EVIL,"byName":EVIL,"startedAt":"2026-01-02T03:04:05Z","endedAt":"2026-01-02T03:06:05Z","metadata":{EVIL:EVIL}}`),
		"GET /cay/v1/volumes/evil/snapshots": answer(`[{"snapshotID":"s1","name":EVIL,"volumeID":"v1","sizeMB":1,"createdAt":"2026-01-01T00:00:00Z"}]`),
		"GET /cay/v1/sandboxes/i2/events":    answer(`{"code":404,"message":EVIL}`),
		"GET /cay/v1/sandboxes/i1/egress":    answer(`[{"at":"2026-01-02T03:04:05Z","allowed":false,"rule":EVIL,"protocol":EVIL,"name":EVIL,"address":EVIL}]`),
	})
	for _, tc := range []struct {
		args  []string
		lines int
	}{
		{[]string{"sandbox", "list"}, 2}, {[]string{"template", "list"}, 2}, {[]string{"volume", "list"}, 2},
		{[]string{"volume", "snapshots", "evil"}, 2}, {[]string{"audit", "list"}, 1}, {[]string{"sandbox", "logs", "i1"}, 1},
		{[]string{"sandbox", "events", "i1"}, 1}, {[]string{"sandbox", "why", "i1"}, 0}, {[]string{"sandbox", "egress", "i1"}, 2},
	} {
		code, out, errs := invoke(t, environ, tc.args...)
		if code != 0 || !strings.Contains(out, "terces") || tc.lines > 0 && strings.Count(out, "\n") != tc.lines {
			t.Errorf("cay %v: %d, %q, %q", tc.args, code, out, errs)
		}
		safe(t, out)
	}
}

// So are errors: their texts come from servers, and from inside of sandboxes.
func TestHostileErrors(t *testing.T) {
	var b strings.Builder
	(&app{ctx: t.Context(), err: &b}).report(hostileError("a\x1b[2J\nb\u202ec\u0085"))
	if b.String() != "error: a?[2J b?c\n" {
		t.Errorf("%q", b.String())
	}
	safe(t, b.String())
}

type hostileError string

func (e hostileError) Error() string { return string(e) }

// safe refuses what a terminal would act upon.
func safe(t *testing.T, out string) {
	t.Helper()
	for _, r := range strings.ReplaceAll(out, "\n", "") {
		if unicode.IsControl(r) || unicode.In(r, unicode.Bidi_Control, unicode.Zl, unicode.Zp) {
			t.Errorf("%q has %U", out, r)
			return
		}
	}
}
