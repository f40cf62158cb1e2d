package main

import (
	"strings"
	"testing"
)

func TestLimitsCommands(t *testing.T) {
	const all = `{"sandboxes":{"limit":5,"own":true,"used":2},"createBurst":{"limit":0,"own":false},"readsPerSecond":{"limit":0,"own":false},"later":{"limit":1,"own":true}}`
	env := stand(t, map[string]string{
		"GET /cay/v1/limits":                    all,
		"GET /cay/v1/admin/teams/acme/limits":   all,
		"PATCH /cay/v1/admin/teams/acme/limits": all,
	})
	env = append(env, "CAY_ADMIN_TOKEN="+strings.Repeat("a", 32))
	for _, args := range [][]string{
		{"limits"}, {"team", "limits", "acme"}, {"team", "limits", "show", "acme"},
		{"team", "limits", "set", "acme", "sandboxes=5", "cpus=none", "memoryMB=default", "snapshotBytes=2GiB"},
	} {
		code, out, text := invoke(t, env, args...)
		var rows []string
		for line := range strings.Lines(out) {
			rows = append(rows, strings.Join(strings.Fields(line)[:4], " "))
		}
		want := "LIMIT USED MOST SET|sandboxes 2 5 team|createBurst – – default|readsPerSecond – no limit"
		if code != 0 || strings.Join(rows, "|") != want {
			t.Errorf("%v: %d %s\n%s", args, code, text, out)
		}
	}
	if code, out, _ := invoke(t, env, "--json", "limits"); code != 0 || !strings.Contains(out, `"later"`) {
		t.Errorf("JSON: %d %s", code, out)
	}
	for _, wrong := range []string{"sandboxes", "sandboxes=", "sandboxes=many", "sandboxes=1.5"} {
		if code, _, text := invoke(t, env, "team", "limits", "set", "acme", wrong); code != 1 || !strings.Contains(text, "LIMIT=NUMBER") {
			t.Errorf("%s: %d %s", wrong, code, text)
		}
	}
}

func TestLimitValue(t *testing.T) {
	for text, want := range map[string]int64{"7": 7, "none": 0, "0": 0, "2GiB": 2 << 30, "-1": -1} { // the server refuses
		if got, err := limitValue(text); err != nil || got == nil || *got != want {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
	if got, err := limitValue("default"); got != nil || err != nil {
		t.Errorf("default: %v, %v", got, err)
	}
}
