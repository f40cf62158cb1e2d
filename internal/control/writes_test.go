package control_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// function is one of the sources, with what it calls.
type function struct {
	name  string // "package.Type.Method"
	short string
	calls []call
}

// call is a call, or the name of a method that is given away: "c.store.Tx" is Tx of store.
type call struct{ of, name string }

// functionsOf reads the functions of a package's sources.
func functionsOf(t *testing.T, dir string) (out []function) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range file.Decls {
			fn, ok := decl.(*ast.FuncDecl)
			if !ok || fn.Body == nil {
				continue
			}
			one := function{name: filepath.Base(dir) + "." + typeOf(fn) + fn.Name.Name, short: fn.Name.Name}
			ast.Inspect(fn.Body, func(n ast.Node) bool {
				if to, ok := n.(*ast.CallExpr); ok {
					for _, x := range append(slices.Clone(to.Args), to.Fun) {
						if c, ok := callOf(x); ok {
							one.calls = append(one.calls, c)
						}
					}
				}
				return true
			})
			out = append(out, one)
		}
	}
	return out
}

func callOf(x ast.Expr) (call, bool) {
	switch x := x.(type) {
	case *ast.Ident:
		return call{name: x.Name}, true
	case *ast.SelectorExpr:
		switch of := x.X.(type) {
		case *ast.Ident:
			return call{of.Name, x.Sel.Name}, true
		case *ast.SelectorExpr:
			return call{of.Sel.Name, x.Sel.Name}, true
		}
		return call{"?", x.Sel.Name}, true
	}
	return call{}, false
}

func typeOf(fn *ast.FuncDecl) string {
	if fn.Recv == nil {
		return ""
	}
	of := fn.Recv.List[0].Type
	if star, ok := of.(*ast.StarExpr); ok {
		of = star.X
	}
	if name, ok := of.(*ast.Ident); ok {
		return name.Name + "."
	}
	return ""
}

// reach returns the short names of the functions that make calls which direct says are writes,
// or call such a function of their package.
func reach(all []function, direct func(call) bool) map[string]bool {
	names := map[string]bool{}
	own := map[string]bool{}
	for _, one := range all {
		own[one.short] = true
	}
	for more := true; more; {
		more = false
		for _, one := range all {
			writes := func(c call) bool {
				return direct(c) || names[c.name] && own[c.name] && !slices.Contains([]string{"store", "node", "ledger", "tx", "storage"}, c.of)
			}
			if !names[one.short] && slices.ContainsFunc(one.calls, writes) {
				names[one.short], more = true, true
			}
		}
	}
	return names
}

// TestEachWriteHasARow lists the use cases that write records, from the code. Each has a row in
// the matrix of changes without an answer (changes), or a reason to need none.
func TestEachWriteHasARow(t *testing.T) {
	stores := reach(functionsOf(t, "../store"), func(c call) bool {
		return c.of == "s" && slices.Contains([]string{"tx", "exec", "inBatches"}, c.name)
	})
	written := func(c call) bool {
		return stores[c.name] && slices.Contains([]string{"store", "tx", "s", "records"}, c.of)
	}
	ledger := reach(functionsOf(t, "ledger"), written)
	seen := map[string]bool{}
	dirs, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range dirs {
		if !dir.IsDir() || dir.Name() == "controltest" || dir.Name() == "ledger" {
			continue
		}
		all := functionsOf(t, dir.Name())
		names := reach(all, func(c call) bool { return written(c) || c.of == "ledger" && ledger[c.name] })
		for _, one := range all {
			if names[one.short] && ast.IsExported(one.short) {
				seen[one.name] = true
			}
		}
	}
	for name := range seen {
		row, ok := rows[name]
		if !ok {
			t.Errorf("%s writes records, and has no row: name those of TestUnconfirmed, or a reason to need none", name)
			continue
		}
		for _, what := range row.in {
			if _, ok := changes[what]; !ok {
				t.Errorf("%s: there is no row %q", name, what)
			}
		}
	}
	for name := range rows {
		if !seen[name] {
			t.Errorf("%s writes no records any more", name)
		}
	}
}

// row is where a use case is in the matrix, or the reason why it needs no row there.
type row struct {
	in  []string
	why string
}

func in(names ...string) row { return row{in: names} }

func needless(why string) row { return row{why: why} }

// Reasons. The error says that the change may count, and a repetition of it does the same or says
// that it is so already: nothing outside the records depends on it.
const (
	recordsAlone = "it changes records alone"
	recordFirst  = "it removes what a record named after the record: an error leaves it to the next collection"
	repeated     = "it is done again until it is confirmed"
	inserts      = "it is another one's work, called with a row of its own"
	reads        = "it changes nothing; the name of a function it calls is that of one that does"
)

var rows = map[string]row{
	"accounts.Accounts.AddMember":           needless(recordsAlone),
	"accounts.Accounts.CreateAccessToken":   needless(recordsAlone),
	"accounts.Accounts.CreateKey":           needless(recordsAlone),
	"accounts.Accounts.CreateTeam":          needless(recordsAlone),
	"accounts.Accounts.CreateTokenFor":      needless(recordsAlone),
	"accounts.Accounts.DisablePerson":       needless(recordsAlone),
	"accounts.Accounts.DisableTeam":         needless(recordsAlone),
	"accounts.Accounts.RemoveAccessToken":   needless(recordsAlone),
	"accounts.Accounts.RemoveKey":           needless(recordsAlone),
	"accounts.Accounts.RemoveMember":        needless(recordsAlone),
	"accounts.Accounts.RemoveTeam":          needless(repeated),
	"accounts.Accounts.RenameTeam":          needless(recordsAlone),
	"accounts.Accounts.RunAccounts":         needless(repeated),
	"accounts.Accounts.SetRole":             needless(recordsAlone),
	"accounts.Accounts.UpdateKey":           needless(recordsAlone),
	"approvals.Approvals.Decide":            needless(recordsAlone),
	"approvals.Approvals.DecideByLink":      needless(recordsAlone),
	"approvals.Approvals.Hold":              needless(recordsAlone),
	"approvals.Approvals.MayStart":          needless(recordsAlone),
	"approvals.Approvals.Request":           needless(recordsAlone),
	"approvals.Approvals.Work":              needless(repeated),
	"builds.Open":                           needless(repeated),
	"builds.Queue.CancelBuilds":             needless(recordsAlone),
	"builds.Queue.RequestBuild":             needless(recordsAlone),
	"builds.Queue.Run":                      in("build"),
	"builds.Queue.StartBuild":               needless(recordsAlone),
	"builds.Queue.Upload":                   needless(recordsAlone),
	"fleet.Catalogue.AssignTags":            needless(recordFirst),
	"fleet.Catalogue.ChangeLimits":          needless(recordsAlone),
	"fleet.Catalogue.CreateSecret":          needless(recordsAlone),
	"fleet.Catalogue.Publish":               in("publish"),
	"fleet.Catalogue.RemoveSecret":          needless(recordsAlone),
	"fleet.Catalogue.RemoveTags":            needless(recordFirst),
	"fleet.Catalogue.RemoveTemplate":        in("removal of a template"),
	"fleet.Catalogue.SetPublic":             needless(recordsAlone),
	"fleet.Catalogue.UpdateSecret":          needless(recordsAlone),
	"lifecycle.Controller.Adopt":            needless(repeated),
	"lifecycle.Controller.AllowOut":         in("network"),
	"lifecycle.Controller.Changes":          needless(reads),
	"lifecycle.Controller.Checkpoint":       in("checkpoint"),
	"lifecycle.Controller.Compare":          needless(reads),
	"lifecycle.Controller.Connect":          in("resume"),
	"lifecycle.Controller.Copied":           needless(repeated),
	"lifecycle.Controller.Create":           in("create", "create once"),
	"lifecycle.Controller.Drain":            needless(recordsAlone),
	"lifecycle.Controller.Emit":             needless(recordsAlone),
	"lifecycle.Controller.Drained":          needless(reads),
	"lifecycle.Controller.EndLost":          needless(repeated),
	"lifecycle.Controller.EndSandboxes":     in("kill"),
	"lifecycle.Controller.Enter":            needless(reads),
	"lifecycle.Controller.Extend":           in("timeout"),
	"lifecycle.Controller.Fork":             in("fork"),
	"lifecycle.Controller.ForkCheckpoint":   in("fork of a checkpoint"),
	"lifecycle.Controller.Give":             in("give"),
	"lifecycle.Controller.Halt":             in("kill"),
	"lifecycle.Controller.Join":             in("network"),
	"lifecycle.Controller.Keep":             needless(reads),
	"lifecycle.Controller.Kill":             in("kill"),
	"lifecycle.Controller.Label":            in("label"),
	"lifecycle.Controller.LatestMetrics":    needless(reads),
	"lifecycle.Controller.Logs":             needless(reads),
	"lifecycle.Controller.Members":          needless(reads),
	"lifecycle.Controller.Metrics":          needless(reads),
	"lifecycle.Controller.MoveAlways":       needless(inserts),
	"lifecycle.Controller.Pause":            in("pause"),
	"lifecycle.Controller.PauseDurably":     in("pause"),
	"lifecycle.Controller.Promote":          in("promote"),
	"lifecycle.Controller.Refresh":          in("timeout"),
	"lifecycle.Controller.RemoveCheckpoint": in("removal of a checkpoint"),
	"lifecycle.Controller.Report":           needless(recordsAlone),
	"lifecycle.Controller.Resume":           in("resume"),
	"lifecycle.Controller.Rollback":         in("rollback", "rollback while paused"),
	"lifecycle.Controller.Run":              needless(repeated),
	"lifecycle.Controller.SearchLogs":       needless(reads),
	"lifecycle.Controller.SetAuto":          in("automatic checkpoints"),
	"lifecycle.Controller.SetBandwidth":     in("network"),
	"lifecycle.Controller.SetNetwork":       in("network"),
	"lifecycle.Controller.SetTimeout":       in("timeout"),
	"lifecycle.Controller.Snapshot":         in("snapshot"),
	"lifecycle.Controller.Take":             needless(repeated),
	"lifecycle.Controller.TokensFor":        needless(recordsAlone),
	"lifecycle.Controller.Undo":             in("undo"),
	"lifecycle.Controller.Used":             in("use after a rollback"),
	"lifecycle.Controller.Wake":             in("wake"),
	"lifecycle.Open":                        needless(repeated),
	"lifecycle.RecordDown":                  needless(repeated),
	"logins.Logins.Arrive":                  needless(recordsAlone),
	"nodes.Members.Drain":                   needless(recordsAlone),
	"nodes.Members.NewToken":                needless(recordsAlone),
	"nodes.Members.Remove":                  needless(recordsAlone),
	"providers.Providers.Remove":            needless(recordsAlone),
	"providers.Providers.Set":               needless(recordsAlone),
	"triggers.New":                          needless(inserts),
	"triggers.Triggers.Cancel":              needless(recordsAlone),
	"triggers.Triggers.Create":              needless(recordsAlone),
	"triggers.Triggers.Receive":             needless(recordsAlone),
	"triggers.Triggers.Remove":              needless(recordsAlone),
	"triggers.Triggers.Rotate":              needless(recordsAlone),
	"triggers.Triggers.Serve":               needless(inserts),
	"triggers.Triggers.Start":               needless(recordsAlone),
	"triggers.Triggers.Update":              needless(recordsAlone),
	"triggers.Triggers.Work":                needless(repeated),
	"triggers.everywhere.Create":            needless(inserts),
	"usage.Meter.AddBudget":                 needless(recordsAlone),
	"usage.Meter.Allows":                    needless(reads),
	"usage.Meter.Budget":                    needless(reads),
	"usage.Meter.Budgets":                   needless(reads),
	"usage.Meter.ChangeBudget":              needless(recordsAlone),
	"usage.Meter.RemoveBudget":              needless(recordsAlone),
	"usage.Meter.Reserve":                   needless(reads),
	"usage.Meter.Run":                       needless(repeated),
	"usage.Meter.SetLabels":                 needless(recordsAlone),
	"usage.Meter.SetPrices":                 needless(recordsAlone),
	"usage.Meter.Spend":                     needless(reads),
	"usage.Meter.Usage":                     needless(reads),
	"volumes.Volumes.Clone":                 in("copy of a volume"),
	"volumes.Volumes.Create":                in("volume"),
	"volumes.Volumes.Delete":                in("removal of a volume"),
	"volumes.Volumes.RemoveAll":             in("removal of a volume"),
	"volumes.Volumes.RemoveSnapshot":        in("removal of a snapshot of a volume"),
	"volumes.Volumes.Resize":                in("size of a volume"),
	"volumes.Volumes.Restore":               in("restore of a volume"),
	"volumes.Volumes.Run":                   needless(repeated),
	"volumes.Volumes.Snapshot":              in("snapshot of a volume"),
	"volumes.Volumes.Sweep":                 needless(repeated),
	"webhooks.Hooks.CreateWebhook":          needless(recordsAlone),
	"webhooks.Hooks.Redeliver":              needless(recordsAlone),
	"webhooks.Hooks.RemoveWebhook":          needless(recordsAlone),
	"webhooks.Hooks.RotateWebhook":          needless(recordsAlone),
	"webhooks.Hooks.Run":                    needless(repeated),
	"webhooks.Hooks.TestWebhook":            needless(recordsAlone),
	"webhooks.Hooks.UpdateWebhook":          needless(recordsAlone),
}
