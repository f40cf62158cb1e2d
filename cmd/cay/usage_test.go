package main

import (
	"strings"
	"testing"
	"time"
)

func TestUsageCommand(t *testing.T) {
	env := stand(t, map[string]string{
		"GET /cay/v1/usage": `{"from":"2026-11-01T00:00:00Z","to":"2026-11-03T00:00:00Z","currency":"EUR",
			"rows":[{"at":"2026-11-02T00:00:00Z","labels":{"user":"a\u001b"},"amounts":{"vcpu_seconds":5400,"egress_bytes":1500,"creates":3},"money":"1.5"}],
			"total":{"amounts":{"vcpu_seconds":5400,"egress_bytes":1500,"creates":3},"money":"1.5"}}`,
		"GET /cay/v1/usage-labels": `{"labels":["user"]}`,
		"GET /cay/v1/prices":       `{"currency":"EUR","prices":{"creates":"0.5"}}`,
		"GET /cay/v1/budgets": `[{"id":"b1","name":"mine","metadata":{"user":"a"},"meter":"creates","limit":"5","period":"once","action":"pause",
			"used":"4","percent":80,"exhausted":false,"createdAt":"2026-11-01T00:00:00Z"}]`,
	})
	code, out, _ := invoke(t, env, "usage", "--by", "day,label:user", "--from", "2026-11-01")
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if code != 0 || len(lines) != 3 || strings.Join(strings.Fields(lines[1]), " ") != "2026-11-02 a? 1.50 0.00 0.00s 0.00 1.5 kB 3 0.00s 1.5" {
		t.Errorf("usage: %d\n%s", code, out)
	}
	for want, args := range map[string][]string{
		"user\n":                {"usage", "labels"},
		"creates  0.5":          {"usage", "prices"},
		"b1  mine  team user=a": {"budget", "ls"},
		`"percent": 80`:         {"--json", "budget", "ls"},
		`"vcpu_seconds": 5400`:  {"--json", "usage"},
	} {
		if code, out, _ := invoke(t, env, args...); code != 0 || !strings.Contains(out, want) {
			t.Errorf("%v: %d %s", args, code, out)
		}
	}
	if code, _, text := invoke(t, env, "usage", "--from", "yesterday"); code != 1 || !strings.Contains(text, "--from") {
		t.Errorf("a wrong time: %d %s", code, text)
	}
}

func TestMoments(t *testing.T) {
	now := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	for text, want := range map[string]time.Time{
		"2026-11-01": time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC), "2026-11-01T02:00:00+02:00": time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC),
		"36h": now.Add(-36 * time.Hour), "7d": now.AddDate(0, 0, -7), "": {},
	} {
		if got, err := moment("--from", text, now); err != nil || !got.Equal(want) {
			t.Errorf("%q is %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"-7d", "-1h", "x", "99999999999999d"} {
		if _, err := moment("--from", text, now); err == nil {
			t.Errorf("%q is a time", text)
		}
	}
}
