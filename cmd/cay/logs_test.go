package main

import (
	"strings"
	"testing"
)

func TestLogsCommand(t *testing.T) {
	t.Setenv("TZ", "UTC")
	line := func(second, level, message, fields string) string {
		return `{"timestamp":"2026-01-02T03:04:` + second + `Z","level":"` + level + `","message":"` + message + `","fields":{` + fields + `}}`
	}
	killed := line("07.5", "info", "sandbox killed", `"logger":"cay","reason":"asked"`)
	said := line("06", "warn", `a\u001b[31m`, `"logger":"agent","pid":"7"`)
	environ := stand(t, map[string]string{
		// Newest first, as it is asked for.
		"GET /v2/sandboxes/i1/logs": `{"logs":[` + killed + `,` + said + `]}`,
	})
	for _, tt := range []struct {
		args      string
		ok        bool
		out, errs string
	}{
		{"sandbox logs i1", true, "warn   a?[31m  pid=7\n", ""},
		{"sandbox logs -f i1", true, "info   sandbox killed  reason=asked\n", ""}, // it is over: this ends
		{"--json sandbox logs i1 -n 5 --level warn --search a", true, `"message":"sandbox killed"`, ""},
		{"sandbox logs i9", false, "", "not found"},
	} {
		code, out, errs := invoke(t, environ, strings.Fields(tt.args)...)
		if (code == 0) != tt.ok || !strings.Contains(out, tt.out) || !strings.Contains(errs, tt.errs) {
			t.Errorf("cay %s: %d, %q, %q", tt.args, code, out, errs)
		}
		if tt.ok && strings.Count(out, "\n") != 2 {
			t.Errorf("cay %s: %q", tt.args, out)
		}
	}
}
