// Package promql reads the alert rules and the dashboard of deploy with
// Prometheus' own parsers. It is a module of its own, so that the server does
// not depend on Prometheus.
package promql

import (
	"encoding/json"
	"log/slog"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
)

// documented are the metrics of docs/operate/metrics.md, by type: the page is
// held to the server's real one by internal/telemetry.
func documented(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile("../../docs/operate/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{"up": "gauge"}
	for _, m := range regexp.MustCompile("(?m)^\\| `(cay_[a-z_]+)` \\| ([a-z]+) \\|").FindAllStringSubmatch(string(text), -1) {
		out[m[1]] = m[2]
	}
	if len(out) < 40 {
		t.Fatalf("the page has %d metrics", len(out))
	}
	return out
}

// check parses an expression, and holds each name in it to the page: counters
// and histograms are never read but by rate and the like.
func check(t *testing.T, expr string) {
	t.Helper()
	tree, err := parser.NewParser(parser.Options{}).ParseExpr(expr)
	if err != nil {
		t.Errorf("%v: %s", err, expr)
		return
	}
	metrics := documented(t)
	parser.Inspect(tree, func(n parser.Node, path []parser.Node) error {
		s, ok := n.(*parser.VectorSelector)
		if !ok {
			return nil
		}
		name, kind := s.Name, metrics[s.Name]
		for _, end := range []string{"_bucket", "_count", "_sum"} {
			if base := strings.TrimSuffix(name, end); base != name && metrics[base] == "histogram" {
				kind = "counter"
			}
		}
		inRange := slices.ContainsFunc(path, func(p parser.Node) bool { _, ok := p.(*parser.MatrixSelector); return ok })
		switch {
		case strings.HasPrefix(name, "go_") || strings.HasPrefix(name, "process_"):
		case kind == "" || kind == "histogram":
			t.Errorf("%s is not exported: %s", name, expr)
		case kind == "counter" && !inRange:
			t.Errorf("%s is a counter, and no rate is taken of it: %s", name, expr)
		}
		return nil
	})
}

func TestRules(t *testing.T) {
	groups, errs := rulefmt.ParseFile("../../deploy/prometheus/alerts.yaml", false, model.LegacyValidation, parser.NewParser(parser.Options{}), slog.New(slog.DiscardHandler))
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	n := 0
	for _, g := range groups.Groups {
		for _, r := range g.Rules {
			n++
			check(t, r.Expr)
		}
	}
	if n < 10 {
		t.Errorf("%d rules", n)
	}
}

func TestDashboard(t *testing.T) {
	text, err := os.ReadFile("../../deploy/grafana/cay.json")
	if err != nil {
		t.Fatal(err)
	}
	var d struct {
		Panels []struct {
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	fill := strings.NewReplacer("$__rate_interval", "5m", "$job", "cay") // as Grafana does
	n := 0
	for _, p := range d.Panels {
		for _, target := range p.Targets {
			n++
			check(t, fill.Replace(target.Expr))
		}
	}
	if n < 30 {
		t.Errorf("%d expressions", n)
	}
}
