package main

import (
	"strings"
	"testing"
)

func TestDiffCommand(t *testing.T) {
	change := `"changes":[{"path":"/x","change":"added","after":{"type":"file","mode":"0644","size":2},"diff":"+++ b/x\n+1\n"}],"added":2}`
	environ := stand(t, map[string]string{
		"GET /cay/v1/sandboxes/i1/checkpoints": `{"root":"i1","checkpoints":[{"checkpointID":"s1","label":"good"},{"checkpointID":"s2"}],"branches":[]}`,
		"GET /cay/v1/sandboxes/i1/diff":        `{"from":"s2",` + change,
		"GET /cay/v1/checkpoints/s1/diff":      `{"from":"s1","to":"s2",` + change,
	})
	const text = "+ /x  (2 B)\n… and 1 more\n"
	for _, tt := range []struct {
		args      string
		ok        bool
		out, errs string
	}{
		{"sandbox diff i1", true, text + "\n+++ b/x\n+1\n", ""},
		{"sandbox diff i1 good", true, text + "\n+++ b/x\n+1\n", ""},
		{"sandbox diff --stat i1 good s2", true, text, ""},
		{"sandbox diff i9", false, "", "not found"},
		{"sandbox diff i1 s2 good", false, "", "not found"},
	} {
		code, out, errs := invoke(t, environ, strings.Fields(tt.args)...)
		if (code == 0) != tt.ok || out != tt.out || !strings.Contains(errs, tt.errs) {
			t.Errorf("cay %s: %d, %q, %q", tt.args, code, out, errs)
		}
	}
}
