package store_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
)

// The store is many small interfaces: none of those that it is made of has more than a
// dozen methods.
func TestInterfacesAreSmall(t *testing.T) {
	const most = 12
	methods, parts := map[string]int{}, []string{}
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok {
				return true
			}
			if of, ok := spec.Type.(*ast.InterfaceType); ok {
				for _, m := range of.Methods.List {
					if part, embedded := m.Type.(*ast.Ident); embedded && spec.Name.Name == "Store" {
						parts = append(parts, part.Name)
					}
					methods[spec.Name.Name] += len(m.Names)
				}
			}
			return false
		})
	}
	for _, part := range append(parts, "Store") {
		if n := methods[part]; n == 0 || n > most {
			t.Errorf("%s has %d methods; %d is the most", part, n, most)
		}
	}
	if len(parts) < 20 {
		t.Errorf("the store is made of %s alone", strings.Join(parts, ", "))
	}
}
