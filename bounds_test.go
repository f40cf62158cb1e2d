package cay_test

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/printer"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// boundsPage lists the bounds of the host.
const boundsPage = "docs/operate/limits.md"

// boundRow is a row of the table: its last cell names the file and the size.
var boundRow = regexp.MustCompile("\\| `(internal/[^`]+\\.go)` `([^`]+)` \\|$")

// TestBoundsHaveRows holds every bound of the host to a row that says what one team can do
// to another by it. A bound is what the host makes with a size: a channel of places, a
// semaphore, a group with a limit, a rate, a share. A new
// one says in its row whose it is.
func TestBoundsHaveRows(t *testing.T) {
	text, err := os.ReadFile(boundsPage)
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]bool{}
	for line := range strings.SplitSeq(string(text), "\n") {
		if m := boundRow.FindStringSubmatch(line); m != nil {
			rows[m[1]+" "+m[2]] = false
		}
	}
	for _, site := range boundSites(t) {
		if _, ok := rows[site]; !ok {
			t.Errorf("%s is a bound without a row in %s", site, boundsPage)
		}
		rows[site] = true
	}
	for row, found := range rows {
		if !found {
			t.Errorf("%s has a row for %s, which is no bound any more", boundsPage, row)
		}
	}
	if len(rows) < 30 {
		t.Errorf("only %d bounds were found", len(rows))
	}
}

// boundSites finds the bounds in the source of the host, as files and sizes.
func boundSites(t *testing.T) (sites []string) {
	t.Helper()
	err := filepath.WalkDir("internal", func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir() && (path == "internal/inside" || path == "internal/guest" || path == "internal/shares" || strings.HasSuffix(path, "test")):
			return fs.SkipDir
		case !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok {
				if size := boundSize(call); size != nil {
					var b bytes.Buffer
					_ = printer.Fprint(&b, set, size) // a buffer takes all
					sites = append(sites, path+" "+b.String())
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return sites
}

// boundSize is the size of a bound that a call makes; nil for any other call.
func boundSize(call *ast.CallExpr) ast.Expr {
	fun := call.Fun
	if index, ok := fun.(*ast.IndexExpr); ok {
		fun = index.X
	}
	switch f := fun.(type) {
	case *ast.Ident:
		switch {
		case f.Name != "make" || len(call.Args) != 2:
			return nil
		}
		if _, ok := call.Args[0].(*ast.ChanType); !ok {
			return nil
		}
		switch call.Args[1].(type) {
		case *ast.BasicLit, *ast.BinaryExpr: // room for an answer of each, or for a signal
			return nil
		}
		return call.Args[1]
	case *ast.SelectorExpr:
		from, _ := f.X.(*ast.Ident)
		switch {
		case f.Sel.Name == "SetLimit" && len(call.Args) == 1,
			from != nil && from.Name == "semaphore" && f.Sel.Name == "NewWeighted",
			from != nil && from.Name == "rate" && f.Sel.Name == "NewLimiter",
			from != nil && from.Name == "shares" && (f.Sel.Name == "New" || f.Sel.Name == "Fits"):
			return call.Args[0]
		}
	}
	return nil
}
