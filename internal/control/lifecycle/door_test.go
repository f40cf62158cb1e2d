package lifecycle

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestOneDoor keeps every change of the record of a sandbox, and of its place in its tree, in
// what is given to record or recordTree: they note a change that may count. Beside them are the
// functions that write for a sandbox without an entry.
func TestOneDoor(t *testing.T) {
	doors := []string{"record", "recordTree"}
	writes := []string{"AddSandbox", "UpdateSandbox", "UpdateNetwork", "PutBranch", "AddCheckpoint", "AdoptSandbox", "TakeSandbox"}
	beside := map[string]string{
		"recordLaunch":     "a birth, which launch finds out (born)",
		"addFailed":        "an end without a life",
		"recordFound":      "the start of the server, which an error ends",
		"comeback.record":  "of recordComeback at the start, of endLost, and in record",
		"Controller.Adopt": "the sandbox is another node's until then",
		"Controller.Take":  "the sandbox is another node's until then",
		"RecordDown":       "no server runs",
		"endLost":          "of a node that is gone; called again",
	}
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range file.Decls {
			fn, ok := decl.(*ast.FuncDecl)
			if !ok {
				continue
			}
			inside := [][2]token.Pos{}
			ast.Inspect(fn, func(n ast.Node) bool {
				call, ok := n.(*ast.CallExpr)
				if !ok {
					return true
				}
				to, ok := call.Fun.(*ast.SelectorExpr)
				if !ok {
					return true
				}
				if slices.Contains(doors, to.Sel.Name) {
					inside = append(inside, [2]token.Pos{call.Lparen, call.Rparen})
				}
				if !slices.Contains(writes, to.Sel.Name) {
					return true
				}
				seen[to.Sel.Name] = true
				through := slices.ContainsFunc(inside, func(span [2]token.Pos) bool { return span[0] < call.Pos() && call.Pos() < span[1] })
				_, known := beside[fn.Name.Name]
				_, method := beside[receiver(fn)+"."+fn.Name.Name]
				if !through && !known && !method {
					t.Errorf("%s: %s goes round record", set.Position(call.Pos()), to.Sel.Name)
				}
				return true
			})
		}
	}
	for _, name := range writes {
		if !seen[name] {
			t.Errorf("%s is called nowhere: is it of another name now?", name)
		}
	}
}

// receiver is the type that a function is a method of.
func receiver(fn *ast.FuncDecl) string {
	if fn.Recv == nil {
		return ""
	}
	of := fn.Recv.List[0].Type
	if star, ok := of.(*ast.StarExpr); ok {
		of = star.X
	}
	if name, ok := of.(*ast.Ident); ok {
		return name.Name
	}
	return ""
}
