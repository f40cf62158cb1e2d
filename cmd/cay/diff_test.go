package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/cay-run/cay/client"
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

func TestPrintComparison(t *testing.T) {
	file := func(kind, mode string, size int64, target string) *client.FileState {
		return &client.FileState{Type: kind, Mode: mode, Size: size, Target: target}
	}
	var out bytes.Buffer
	printComparison(&out, client.Comparison{Changes: []client.FileChange{
		{Path: "/a\x1b[31m", Change: "changed", Before: file("file", "0644", 1, ""), After: file("file", "4755", 2000, ""), NoDiff: "binary"},
		{Path: "/b", Change: "changed", Before: file("file", "0644", 0, ""), After: file("symlink", "0777", 0, "c")},
		{Path: "/d", Change: "removed", Before: file("directory", "0755", 0, "")},
		{Path: "/e", Change: "added", After: file("symlink", "0777", 0, "f")},
		{Path: "/g", Change: "changed", Before: file("file", "0644", 1, ""), After: file("file", "0644", 1, ""), Diff: "\t+\x1b]0;title\a\n"},
	}, Changed: 3, Removed: 1, Added: 1}, true, cleanLines)
	want := "~ /a?[31m  (mode 0644 → 4755, 1 B → 2.0 kB, binary)\n~ /b  (file → symlink, mode 0644 → 0777)\n" +
		"- /d  (directory)\n+ /e  (→ f)\n~ /g\n\n\t+?]0;title?\n"
	if out.String() != want {
		t.Errorf("%q\nwant %q", out.String(), want)
	}
}
