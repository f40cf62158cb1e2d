package main

import (
	"strings"
	"testing"
)

func TestLifeCommands(t *testing.T) {
	environ := stand(t, map[string]string{
		"POST /sandboxes/i1/pause":      ``,
		"POST /v2/sandboxes/i1/connect": `{"sandboxID":"i1"}`,
		"POST /sandboxes/i1/fork":       `[{"sandbox":{"sandboxID":"i2"}},{"error":{"code":500,"message":"no room"}}]`,
		"POST /sandboxes/i1/snapshots":  `{"snapshotID":"team/mine:default","names":["team/mine:default"]}`,
	})
	for _, tt := range []struct {
		args      []string
		ok        bool
		out, errs string
	}{
		{[]string{"pause", "i1"}, true, "i1\n", ""},
		{[]string{"pause", "i9", "i1"}, false, "i1\n", "not found"},
		{[]string{"resume", "i1"}, true, "i1\n", ""},
		{[]string{"resume", "i1", "--timeout", "0s"}, false, "", "--timeout"},
		{[]string{"fork", "i1", "-n", "2"}, false, "i2\n", "no room"},
		{[]string{"fork", "i9"}, false, "", "not found"},
		{[]string{"snapshot", "i1", "--name", "mine"}, true, "team/mine:default\n", ""},
		{[]string{"snapshot", "i9"}, false, "", "not found"},
	} {
		code, out, errs := invoke(t, environ, append([]string{"sandbox"}, tt.args...)...)
		if (code == 0) != tt.ok || out != tt.out || !strings.Contains(errs, tt.errs) {
			t.Errorf("cay sandbox %v: %d, %q, %q", tt.args, code, out, errs)
		}
	}
	if _, out, _ := invoke(t, environ, "--json", "sandbox", "pause", "i1"); strings.TrimSpace(strings.Join(strings.Fields(out), "")) != `["i1"]` {
		t.Errorf("as JSON: %q", out)
	}
}
