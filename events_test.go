package cay_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strings"
	"testing"

	"github.com/cay-run/cay"
)

// TestEventsAreListed holds Events and Reasons to the constants of event.go, and
// to the keys that the code gives events where it makes them.
func TestEventsAreListed(t *testing.T) {
	types := map[string]cay.EventInfo{}
	for _, e := range cay.Events() {
		if _, twice := types[string(e.Type)]; twice || e.Meaning == "" {
			t.Errorf("event %q is listed twice, or without its meaning", e.Type)
		}
		types[string(e.Type)] = e
	}
	reasons := map[string]bool{}
	for _, r := range cay.Reasons() {
		if reasons[r.Reason] || r.Meaning == "" {
			t.Errorf("reason %q is listed twice, or without its meaning", r.Reason)
		}
		reasons[r.Reason] = true
	}
	names := map[string]string{} // of constants, with their types
	for name, value := range stringConstants(t, "event.go") {
		names[name] = value
		if _, listed := types[value]; !listed && !reasons[value] {
			t.Errorf("neither Events nor Reasons has %s", name)
		}
	}
	for _, cause := range []cay.Cause{cay.CauseAsked, cay.CauseTimeout, cay.CauseOutOfMemory, cay.CauseEngine, cay.CauseHostLost, cay.CauseFailedStart, cay.CauseBudget, cay.CauseMemoryLost} {
		if !reasons[string(cause)] {
			t.Errorf("Reasons lacks the cause %q", cause)
		}
	}
	for what, keys := range eventKeys(t) {
		e := types[names[what]]
		for key := range keys {
			if !slices.Contains(e.Data, key) {
				t.Errorf("%s is given %q, which Events does not name", what, key)
			}
		}
		for _, key := range e.Data {
			if !keys[key] {
				t.Errorf("Events names %q of %s, which nothing gives it", key, what)
			}
		}
	}
}

// eventKeys finds the calls that make events, and returns the keys of their
// data by the constant of the type.
func eventKeys(t *testing.T) map[string]map[string]bool {
	t.Helper()
	out := map[string]map[string]bool{}
	for _, file := range tracked(t, ".go") {
		if strings.HasSuffix(file, "_test.go") || !strings.HasPrefix(file, "internal/") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || len(call.Args) < 4 {
				return true
			}
			// …, type, reason, key, value, key, value
			what, ok := call.Args[2].(*ast.SelectorExpr)
			name := callee(call)
			if !ok || name != "NewEvent" && name != "Report" && name != "Emit" {
				return true
			}
			if out[what.Sel.Name] == nil {
				out[what.Sel.Name] = map[string]bool{}
			}
			for i := 4; i < len(call.Args); i += 2 {
				if lit, ok := call.Args[i].(*ast.BasicLit); ok {
					out[what.Sel.Name][strings.Trim(lit.Value, `"`)] = true
				}
			}
			return true
		})
	}
	if len(out) < 10 {
		t.Fatalf("found %d types of events only: %v", len(out), out)
	}
	return out
}

func callee(call *ast.CallExpr) string {
	switch f := call.Fun.(type) {
	case *ast.Ident:
		return f.Name
	case *ast.SelectorExpr:
		return f.Sel.Name
	}
	return ""
}

// TestEventsPage holds docs/use/events.md to the catalogue.
func TestEventsPage(t *testing.T) {
	var b strings.Builder
	b.WriteString("| type | meaning | data |\n|---|---|---|\n")
	for _, e := range cay.Events() {
		data := "–"
		if len(e.Data) > 0 {
			data = "`" + strings.Join(e.Data, "`, `") + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", e.Type, e.Meaning, data)
	}
	b.WriteString("\n| reason | meaning |\n|---|---|\n")
	for _, r := range cay.Reasons() {
		fmt.Fprintf(&b, "| `%s` | %s |\n", r.Reason, r.Meaning)
	}
	holdPage(t, "docs/use/events.md", "events", b.String())
}
