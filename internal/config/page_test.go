package config_test

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/cay-run/cay/internal/config"
)

var update = flag.Bool("update", false, "write docs/operate/settings.md")

const (
	page  = "../../docs/operate/settings.md"
	begin = "<!-- settings: begin; go test ./internal/config -update writes them -->\n"
	end   = "<!-- settings: end -->\n"
)

// TestSettingsPage holds the table of settings in the documents to the code.
func TestSettingsPage(t *testing.T) {
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, found := strings.Cut(string(text), begin)
	_, tail, closed := strings.Cut(rest, end)
	if !found || !closed {
		t.Fatalf("%s lacks its marks", page)
	}
	want := head + begin + table() + end + tail
	if string(text) == want {
		return
	}
	if !*update {
		t.Fatalf("%s is stale: go test ./internal/config -update", page)
	}
	if err := os.WriteFile(page, []byte(want), 0o644); err != nil {
		t.Fatal(err)
	}
}

// table renders the settings. The default stands in brackets at the end of a
// setting's use.
func table() string {
	var b strings.Builder
	b.WriteString("| variable | sets | default |\n|---|---|---|\n")
	for _, v := range config.Variables {
		use, byDefault, _ := strings.Cut(strings.TrimSuffix(v.Use, "]"), " [")
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", v.Name, strings.ReplaceAll(use, "|", "\\|"), byDefault)
	}
	return b.String()
}
