package cay_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestPromisesNameTests holds docs/develop/promises.md to the tree: a test that
// the page names exists. A name may end in "…", which stands for any ending.
func TestPromisesNameTests(t *testing.T) {
	text, err := os.ReadFile("docs/develop/promises.md")
	if err != nil {
		t.Fatal(err)
	}
	known := testNames(t)
	quoted := regexp.MustCompile("`((?:Test|Fuzz|Benchmark|test_|test[A-Z])[^` ]*)`")
	for _, m := range quoted.FindAllStringSubmatch(string(text), -1) {
		for _, name := range strings.Split(m[1], ".") {
			name, _, _ = strings.Cut(name, "/")
			if name == "py" || known[name] {
				continue
			}
			if prefix, any := strings.CutSuffix(name, "…"); any && begins(known, prefix) {
				continue
			}
			t.Errorf("docs/develop/promises.md names %s, and no test has that name", m[1])
		}
	}
}

func begins(names map[string]bool, prefix string) bool {
	for name := range names {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

// testNames returns the names of all test functions, classes and files.
func testNames(t *testing.T) map[string]bool {
	t.Helper()
	defined := regexp.MustCompile(`^(?:func|def|async def|class) ((?:Test|Fuzz|Benchmark|test)\w*)`)
	names := map[string]bool{}
	for _, file := range tracked(t, ".go", ".py", ".mjs") {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		names[strings.TrimSuffix(filepath.Base(file), filepath.Ext(file))] = true
		for line := range strings.Lines(string(text)) {
			if m := defined.FindStringSubmatch(strings.TrimSpace(line)); m != nil {
				names[m[1]] = true
			}
		}
	}
	return names
}

// TestLinksLead follows every link from one document of this repository to
// another.
func TestLinksLead(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#\s]+)(?:#[^)]*)?\)`)
	for _, file := range tracked(t, ".md") {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range link.FindAllStringSubmatch(string(text), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			if _, err := os.Stat(filepath.Join(filepath.Dir(file), m[1])); err != nil {
				t.Errorf("%s links to %s, which is not there", file, m[1])
			}
		}
	}
}

// TestPagesAreListed holds docs/README.md to the pages for users and operators beside it.
func TestPagesAreListed(t *testing.T) {
	index, err := os.ReadFile("docs/README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range tracked(t, ".md") {
		dir := filepath.Dir(file)
		if dir != "docs/use" && dir != "docs/operate" {
			continue
		}
		if link := "(" + strings.TrimPrefix(file, "docs/") + ")"; !strings.Contains(string(index), link) {
			t.Errorf("docs/README.md does not list %s", file)
		}
	}
}

// TestPlacesExist holds the documents for developers to the tree: a file that
// they name exists, and defines the functions and types named right after it.
func TestPlacesExist(t *testing.T) {
	place := regexp.MustCompile("`((?:[\\w-]+/)+[\\w.-]+\\.(?:go|py|mjs|yaml|md))`((?:,? `\\w+`)*)")
	name := regexp.MustCompile(`\w+`)
	for _, page := range tracked(t, ".md") {
		if dir := filepath.Dir(page); dir != "docs/develop" && page != "ARCHITECTURE.md" && page != "CONTRIBUTING.md" {
			continue
		}
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range place.FindAllStringSubmatch(string(text), -1) {
			code, err := os.ReadFile(m[1])
			if err != nil {
				t.Errorf("%s names %s, which is not there", page, m[1])
				continue
			}
			for _, want := range name.FindAllString(m[2], -1) {
				if !regexp.MustCompile(`(?m)^(func (\([^)]*\) )?|type )` + want + `\b`).Match(code) {
					t.Errorf("%s says that %s defines %s", page, m[1], want)
				}
			}
		}
	}
}

// TestDecisionsAreListed holds docs/adr/README.md to the pages beside it.
func TestDecisionsAreListed(t *testing.T) {
	index, err := os.ReadFile("docs/adr/README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range tracked(t, ".md") {
		if name := filepath.Base(file); filepath.Dir(file) == "docs/adr" && name != "README.md" &&
			!strings.Contains(string(index), "("+name+")") {
			t.Errorf("docs/adr/README.md does not list %s", name)
		}
	}
}

// pronouns stand for an unknown party.
const pronouns = `\b(?i:nobody|somebody|anybody|everybody|someone|anyone|everyone|whoever|whomever)\b`

// clause is a question word where a sentence begins, and no question.
const clause = `(?:Who|What|Whom|Whose|Whatever) [a-z][^?]*$`

// mayBeWrong reports whether a line has a word that the finds of TestWords begin with:
// most lines have none, and looking for them with expressions takes long.
func mayBeWrong(line string) bool {
	for _, word := range []string{"Who", "What"} {
		if strings.Contains(line, word) {
			return true
		}
	}
	line = strings.ToLower(line)
	for _, word := range []string{"body", "meone", "nyone", "everyone", "whoever", "whomever"} {
		if strings.Contains(line, word) {
			return true
		}
	}
	return false
}

// TestWords holds comments, documents and texts of the program to the rule of
// CONTRIBUTING: the subject of a sentence is a noun of the domain, never a pronoun
// for an unknown party, nor a clause that a question word begins. The engine's
// comments are left: its bytes are its id.
func TestWords(t *testing.T) {
	lines := map[string]*regexp.Regexp{
		".md":   regexp.MustCompile(pronouns + `|(?:^|[.:;] |[#|*-] |\*\*|")` + clause),
		"":      regexp.MustCompile(`(?:^|[.:;] |[/#*>-] ?|["'` + "`" + `])` + clause),
		".go":   regexp.MustCompile(`"` + clause),
		"tests": regexp.MustCompile(`t\.(?:Error|Fatal|Skip)f?\("[^"]*` + pronouns),
		"quote": regexp.MustCompile(`(?:"|>|description: )[^"]*` + pronouns),
	}
	comments := []string{".go", ".py", ".mjs", ".cjs", ".sh", ".R"}
	texts := []string{"", ".yaml", ".yml", ".svelte", ".ts", ".sql", ".java", ".js", ".proto", ".service"}
	for _, file := range tracked(t, slices.Concat(comments, texts, []string{".md"})...) {
		if strings.HasPrefix(file, "docs/benchmarks/") || strings.HasPrefix(file, "cmd/cay-runsc/") || strings.Contains(file, "/testdata/") {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if generated.Match(text) {
			continue
		}
		ext := filepath.Ext(file)
		var finds []*regexp.Regexp
		switch {
		case ext == ".md":
			finds = append(finds, lines[".md"])
		case slices.Contains(texts, ext):
			finds = append(finds, lines[""], lines["quote"])
		default:
			checkComments(t, file, string(text))
			switch {
			case strings.HasSuffix(file, "_test.go"):
				finds = append(finds, lines["tests"])
			case ext == ".go":
				finds = append(finds, lines[".go"])
			}
		}
		for i, line := range strings.Split(string(text), "\n") {
			if !mayBeWrong(line) {
				continue
			}
			for _, find := range finds {
				if m := find.FindString(line); m != "" {
					t.Errorf("%s:%d: %s", file, i+1, m)
				}
			}
		}
	}
}

var (
	comment = regexp.MustCompile(`^\s*(?://|#|""")\s?`)
	// badComment is found where its first word is, or never.
	badComment = regexp.MustCompile(pronouns + `|(?:^|[.] )(?:Who|What|Whom|Whose|Whatever)\b[^.?]*(?:[.]|$)`)
)

// checkComments reads comments as a whole, because sentences go on over lines,
// and the texts in three quotes that Python has for them.
func checkComments(t *testing.T, file, text string) {
	var block string
	quoted, doc := false, false
	for i, line := range strings.Split(text, "\n") {
		mark, within := comment.FindString(line), quoted && doc
		if filepath.Ext(file) == ".py" && strings.Count(line, `"""`)%2 == 1 {
			doc = quoted && doc || !quoted && mark != "" // a text that is no comment may be data
			quoted = !quoted
		}
		line = strings.TrimSpace(strings.TrimPrefix(line, mark))
		if mark == "" && !within || line == "" {
			block = ""
			continue
		}
		block = strings.TrimSpace(block + " " + line)
		if !mayBeWrong(line) {
			continue
		}
		if m := badComment.FindString(block); m != "" {
			t.Errorf("%s:%d: %s", file, i+1, m)
			block = ""
		}
	}
}

// TestExamplesWithModelsAreListed holds docs/use/models.md and the runner of
// make examples to the files of examples/models, and each file to its first lines:
// a command that installs packages at fixed versions, one for keys, one that runs it.
func TestExamplesWithModelsAreListed(t *testing.T) {
	page, err := os.ReadFile("docs/use/models.md")
	if err != nil {
		t.Fatal(err)
	}
	runner, err := os.ReadFile("test/models/run.py")
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("examples/models/*.*")
	if err != nil || len(files) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	first := regexp.MustCompile(`(?s)\A[^\n]+\n\n    (?:pip install(?: "?[\w\[\],-]+==[\d.]+"?)+|npm install(?: [@\w/-]+@[\d.]+)+)\n    eval "\$\(cay env --new-key me\)"[^\n]*\n    (?:python|node) ([\w.]+)\n\n`)
	for _, file := range files {
		name := filepath.Base(file)
		if !strings.Contains(string(page), "`"+name+"`") {
			t.Errorf("docs/use/models.md does not list %s", name)
		}
		if !strings.Contains(string(runner), `Example("`+name+`"`) {
			t.Errorf("test/models/run.py does not run %s", name)
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if m := first.FindSubmatch(text); m == nil || string(m[1]) != name {
			t.Errorf("%s does not begin with the three commands that run it", file)
		}
	}
}
