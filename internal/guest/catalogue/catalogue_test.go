package catalogue

import (
	"cmp"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The rows are what a shell and a path can have, and each key that one needs is used.
func TestRows(t *testing.T) {
	if !slices.IsSortedFunc(servers, func(a, b Server) int { return cmp.Compare(a.Name, b.Name) }) {
		t.Error("the rows are not sorted")
	}
	if len(servers) < 40 {
		t.Errorf("there are %d", len(servers))
	}
	name := regexp.MustCompile(`^[a-z][A-Za-z0-9]*$`)
	pkg := regexp.MustCompile(`^(@[a-z0-9-]+/)?[a-z0-9][a-z0-9.-]*$`)
	version := regexp.MustCompile(`^[0-9][0-9a-z.]*$`)
	for i, s := range servers {
		if i > 0 && servers[i-1].Name == s.Name {
			t.Errorf("%s is there twice", s.Name)
		}
		if !name.MatchString(s.Name) || !version.MatchString(s.Version) || (s.NPM == "") == (s.PyPI == "") || !pkg.MatchString(s.NPM+s.PyPI) {
			t.Errorf("the row %+v", s)
		}
		used := slices.Collect(maps.Values(s.Env))
		for _, a := range s.Args {
			if _, after, ok := strings.Cut(a, "{"); ok {
				key, _, _ := strings.Cut(after, "}")
				used = append(used, strings.TrimSuffix(key, "..."))
			}
		}
		for _, key := range s.Needs {
			if !slices.Contains(used, key) {
				t.Errorf("%s needs %s and has no use for it", s.Name, key)
			}
		}
		if found, ok := Find(s.Name); !ok || found.Name != s.Name {
			t.Errorf("%s is not found", s.Name)
		}
	}
}

func TestNear(t *testing.T) {
	for word, want := range map[string]string{
		"firecrwl": "firecrawl", "Sequential": "sequentialthinking", "file-system": "filesystem", "git": "git", "neo4j": "neo4jCypher",
	} {
		if got := Near(word); !slices.Contains(got, want) {
			t.Errorf("near %s are %q", word, got)
		}
	}
	if got := Near("qqqqqqqqqqqq"); len(got) > 0 {
		t.Errorf("near nothing are %q", got)
	}
	if _, ok := Find("gi"); ok {
		t.Error("a part of a name is found")
	}
}

// TestThePageListsThem: docs/use/mcp-gateway.md has the names that there are.
func TestThePageListsThem(t *testing.T) {
	text, err := os.ReadFile("../../../docs/use/mcp-gateway.md")
	if err != nil {
		t.Fatal(err)
	}
	var listed []string
	for _, row := range regexp.MustCompile(`(?m)^\| (?:nothing|an account|a server elsewhere) \| (.*) \|$`).FindAllStringSubmatch(string(text), -1) {
		for name := range strings.SplitSeq(row[1], ", ") {
			name, _, _ = strings.Cut(name, " ")
			listed = append(listed, name)
		}
	}
	slices.Sort(listed)
	if !slices.Equal(listed, Names()) {
		t.Errorf("the page lists %q, and there are %q", listed, Names())
	}
}
