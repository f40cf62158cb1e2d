package interp

import (
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// failure is one way in which code fails, and the name of its error; no name
// where code does not fail.
type failure struct{ name, title, code string }

// failures are the ways of testdata/failures/LANGUAGE.txt, which the end-to-end
// tests read as well. A line ">>> NAME: TITLE" begins each; its code follows. With
// CAY_TEST_TABLES=whole they are all there.
func failures(t *testing.T, lang string) (all []failure) {
	t.Helper()
	text, err := os.ReadFile("testdata/failures/" + lang + ".txt")
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range strings.Split("\n"+string(text), "\n>>> ")[1:] {
		head, code, _ := strings.Cut(part, "\n")
		name, title, _ := strings.Cut(head, ": ")
		all = append(all, failure{name, title, code})
	}
	if os.Getenv("CAY_TEST_TABLES") == "whole" {
		return all
	}
	return short(all)
}

// short is a table without what takes most of its time: texts of 30 MB, and all but
// a few rows that end a kernel.
func short(all []failure) []failure {
	ends := 0
	return slices.DeleteFunc(all, func(f failure) bool {
		if f.name == errUnexpectedEnd {
			ends++
		}
		return f.name == errUnexpectedEnd && ends > 4 || strings.HasSuffix(f.title, "very much text")
	})
}

// fails runs each failure of a language, those that end the kernel in contexts
// of their own: each ends with an error of its name, and the others run code
// afterwards.
func (w *world) fails(t *testing.T, lang string) {
	t.Helper()
	for _, f := range failures(t, lang) {
		t.Run(f.title, func(t *testing.T) {
			body := map[string]any{"code": f.code, "language": lang}
			if f.name == errUnexpectedEnd {
				id := w.context(t, lang)
				defer w.do(t, http.MethodDelete, "/contexts/"+id, "")
				body = map[string]any{"code": f.code, "context_id": id}
			}
			if x := w.execute(t, body); x.err.text("name") != f.name {
				t.Errorf("%s\nends with %q, want %q: %.2000v", f.code, x.err.text("name"), f.name, x.events)
			}
		})
	}
}

// context makes a context and returns its id.
func (w *world) context(t *testing.T, lang string) string {
	t.Helper()
	_, text := w.do(t, http.MethodPost, "/contexts", `{"language":"`+lang+`"}`)
	var made struct{ ID string }
	if err := json.Unmarshal([]byte(text), &made); err != nil || made.ID == "" {
		t.Fatal(text)
	}
	return made.ID
}

// configs are of servers for one language each.
var configs = map[string]func(t *testing.T) Config{
	langPython:     func(t *testing.T) Config { return Config{Python: python(t)} },
	langJavaScript: func(t *testing.T) Config { return Config{Node: nodePath(t)} },
	langTypeScript: func(t *testing.T) Config { return Config{Node: nodeOfTypes(t)} },
	langBash:       func(*testing.T) Config { return Config{} },
	langR:          func(t *testing.T) Config { return Config{R: rPath(t)} },
	langJava:       func(t *testing.T) Config { return Config{Java: program(t, "java")} },
}

// TestFailures is the table: code that failed never ends as success, in any
// language.
func TestFailures(t *testing.T) {
	for lang, config := range configs {
		t.Run(lang, func(t *testing.T) {
			w := openWorld(t, config(t))
			if lang == langJava {
				if err := w.compileJava(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			w.fails(t, lang)
		})
	}
}

// nodeOfTypes finds a node that can read TypeScript.
func nodeOfTypes(t *testing.T) string {
	t.Helper()
	node := nodePath(t)
	if exec.Command(node, "-e", "if (!require('module').stripTypeScriptTypes) process.exit(1)").Run() != nil {
		t.Skip("TypeScript needs node 22.13 or newer: set CAY_TEST_NODE to one")
	}
	return node
}

// rPath finds R with the packages that its kernel needs.
func rPath(t *testing.T) string {
	t.Helper()
	r := program(t, "R")
	if err := exec.Command(r, "--no-echo", "-e", "library(repr); library(jsonlite); library(IRdisplay)").Run(); err != nil {
		t.Skip("R without r-cran-repr, r-cran-irdisplay and r-cran-jsonlite")
	}
	return r
}
