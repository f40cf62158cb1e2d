package changes

import (
	"bytes"
	"testing"

	"github.com/cay-run/cay/client"
)

func TestPrint(t *testing.T) {
	file := func(kind, mode string, size int64, target string) *client.FileState {
		return &client.FileState{Type: kind, Mode: mode, Size: size, Target: target}
	}
	var out bytes.Buffer
	Print(&out, client.Comparison{Changes: []client.FileChange{
		{Path: "/a\x1b[31m", Change: "changed", Before: file("file", "0644", 1, ""), After: file("file", "4755", 2000, ""), NoDiff: "binary"},
		{Path: "/b", Change: "changed", Before: file("file", "0644", 0, ""), After: file("symlink", "0777", 0, "c")},
		{Path: "/d", Change: "removed", Before: file("directory", "0755", 0, "")},
		{Path: "/e", Change: "added", After: file("symlink", "0777", 0, "f")},
		{Path: "/g", Change: "changed", Before: file("file", "0644", 1, ""), After: file("file", "0644", 1, ""), Diff: "\t+\x1b]0;title\a\n"},
	}, Changed: 3, Removed: 1, Added: 1}, true, true)
	want := "~ /a?[31m  (mode 0644 → 4755, 1 B → 2.0 kB, binary)\n~ /b  (file → symlink, mode 0644 → 0777)\n" +
		"- /d  (directory)\n+ /e  (→ f)\n~ /g\n\n\t+?]0;title?\n"
	if out.String() != want {
		t.Errorf("%q\nwant %q", out.String(), want)
	}
}
