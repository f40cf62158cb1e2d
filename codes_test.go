package cay_test

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cay-run/cay"
)

var update = flag.Bool("update", false, "write the pages of docs/use that are rendered from the code")

// TestKindsAreListed holds Kinds to the constants of errors.go.
func TestKindsAreListed(t *testing.T) {
	listed := map[string]bool{}
	for _, k := range cay.Kinds() {
		if listed[string(k.Kind)] {
			t.Errorf("kind %q is listed twice", k.Kind)
		}
		listed[string(k.Kind)] = true
		checkEntry(t, string(k.Kind), k.Meaning, k.Cure, k.Retry)
		if err := cay.Errorf(k.Kind, "x"); cay.StatusOf(err) != k.Status || cay.RetryOf(err) != k.Retry {
			t.Errorf("an error of kind %q has status %d and %+v", k.Kind, cay.StatusOf(err), cay.RetryOf(err))
		}
	}
	for name, value := range stringConstants(t, "errors.go") {
		if !listed[value] {
			t.Errorf("Kinds lacks %s", name)
		}
		delete(listed, value)
	}
	for kind := range listed {
		t.Errorf("Kinds has %q, which is no constant of errors.go", kind)
	}
	if got := cay.StatusOf(errors.New("foreign")); got != 500 {
		t.Errorf("an error that is not ours has status %d", got)
	}
}

// TestCodesAreListed holds Codes to the constants of codes.go.
func TestCodesAreListed(t *testing.T) {
	listed := map[string]bool{}
	for _, c := range cay.Codes() {
		if listed[c.Code] {
			t.Errorf("code %q is listed twice", c.Code)
		}
		listed[c.Code] = true
		checkEntry(t, c.Code, c.Meaning, c.Cure, c.Retry)
		err := fmt.Errorf("around: %w", cay.Errorf(c.Kind, "x").WithCode(c.Code))
		if cay.RetryOf(err) != c.Retry || c.Status != 0 && cay.StatusOf(err) != c.Status {
			t.Errorf("an error of code %q has status %d and %+v", c.Code, cay.StatusOf(err), cay.RetryOf(err))
		}
	}
	for name, value := range stringConstants(t, "codes.go") {
		if !listed[value] {
			t.Errorf("Codes lacks %s", name)
		}
	}
}

func checkEntry(t *testing.T, name, meaning, cure string, retry cay.Retry) {
	t.Helper()
	if meaning == "" || cure == "" {
		t.Errorf("%q lacks its meaning or its cure", name)
	}
	if retry.May != (retry.After > 0) || retry.After%time.Second != 0 {
		t.Errorf("%q: a retry has a delay of whole seconds, got %+v", name, retry)
	}
}

// stringConstants returns the typed and untyped string constants of a file.
func stringConstants(t *testing.T, file string) map[string]string {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	ast.Inspect(parsed, func(n ast.Node) bool {
		if spec, ok := n.(*ast.ValueSpec); ok && len(spec.Values) == 1 {
			if lit, ok := spec.Values[0].(*ast.BasicLit); ok && lit.Kind == token.STRING {
				out[spec.Names[0].Name] = strings.Trim(lit.Value, `"`)
			}
		}
		return true
	})
	if len(out) == 0 {
		t.Fatalf("%s has no constants", file)
	}
	return out
}

// TestCodesAreConstants finds codes that are written where an error is made.
func TestCodesAreConstants(t *testing.T) {
	for _, file := range tracked(t, ".go") {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Contains(text, []byte("WithCode")) {
			continue
		}
		files := token.NewFileSet()
		parsed, err := parser.ParseFile(files, file, text, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || len(call.Args) != 1 {
				return true
			}
			name, ok := call.Fun.(*ast.SelectorExpr)
			if lit, literal := call.Args[0].(*ast.BasicLit); ok && literal && name.Sel.Name == "WithCode" {
				t.Errorf("%s: the code %s has no constant in codes.go and no entry in Codes", files.Position(lit.Pos()), lit.Value)
			}
			return true
		})
	}
}

// TestErrorsPage holds docs/use/errors.md to the catalogue.
func TestErrorsPage(t *testing.T) {
	var b strings.Builder
	b.WriteString("| kind | status | `Should-Retry` | meaning | cure |\n|---|---|---|---|---|\n")
	for _, k := range cay.Kinds() {
		fmt.Fprintf(&b, "| %s | %d | %s | %s | %s |\n", strings.ReplaceAll(string(k.Kind), "_", " "), k.Status, wireRetry(k.Retry), k.Meaning, k.Cure)
	}
	b.WriteString("\n| `error_code` | status | `Should-Retry` | meaning | cure |\n|---|---|---|---|---|\n")
	for _, c := range cay.Codes() {
		status := cay.StatusOf(cay.Errorf(c.Kind, "").WithCode(c.Code))
		fmt.Fprintf(&b, "| `%s` | %d | %s | %s | %s |\n", c.Code, status, wireRetry(c.Retry), c.Meaning, c.Cure)
	}
	b.WriteString("\n| client | versions read | route | status | text | then |\n|---|---|---|---|---|---|\n")
	for _, c := range cay.ClientTexts() {
		text := "any"
		if c.Text != "" {
			text = "`" + c.Text + "`"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %d | %s | %s |\n", c.Client, c.Versions, c.Route, c.Status, text, c.Then)
	}
	holdPage(t, "docs/use/errors.md", "errors", b.String())
}

func wireRetry(r cay.Retry) string {
	if !r.May {
		return "false"
	}
	return fmt.Sprintf("true, after %d s", int(r.After/time.Second))
}

// holdPage compares the part of a page between its marks with what the code
// says, and writes it when the test is told to.
func holdPage(t *testing.T, page, name, want string) {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	begin := "<!-- " + name + ": begin; go test . -update writes them -->\n"
	end := "<!-- " + name + ": end -->\n"
	head, rest, found := strings.Cut(string(text), begin)
	_, tail, closed := strings.Cut(rest, end)
	if !found || !closed {
		t.Fatalf("%s lacks its marks", page)
	}
	whole := head + begin + want + end + tail
	if string(text) == whole {
		return
	}
	if !*update {
		t.Fatalf("%s is stale: go test . -update", page)
	}
	if err := os.WriteFile(page, []byte(whole), 0o644); err != nil {
		t.Fatal(err)
	}
}
