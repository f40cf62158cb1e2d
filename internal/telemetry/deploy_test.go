package telemetry

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// exported reports whether a name of an expression is on the page: a family,
// or what a histogram has of its own.
func exported(name string) bool {
	for _, f := range families {
		if name == f.name && f.kind != histogram {
			return true
		}
		if f.kind == histogram && slices.Contains([]string{f.name + "_bucket", f.name + "_count", f.name + "_sum"}, name) {
			return true
		}
	}
	return slices.Contains([]string{"up", "go_goroutines", "process_cpu_seconds_total", "process_open_fds", "process_resident_memory_bytes"}, name)
}

var selector = regexp.MustCompile(`([a-z_]+)\{([^}]*)\}`)

// checkNames holds the selectors of an expression to the page: names and labels.
func checkNames(t *testing.T, expr string) {
	t.Helper()
	found := selector.FindAllStringSubmatch(expr, -1)
	if len(found) == 0 {
		t.Errorf("no selector in %s", expr)
	}
	for _, m := range found {
		if !exported(m[1]) {
			t.Errorf("%s is not exported: %s", m[1], expr)
			continue
		}
		base := m[1]
		for _, end := range []string{"_bucket", "_count", "_sum"} {
			base = strings.TrimSuffix(base, end)
		}
		allowed := []string{"job", "instance"}
		for _, f := range families {
			if f.name == base || f.name == m[1] {
				allowed = append(allowed, f.labels...)
			}
		}
		for _, by := range regexp.MustCompile(`([a-z_]+)\s*(=|!)`).FindAllStringSubmatch(m[2], -1) {
			if !slices.Contains(allowed, by[1]) {
				t.Errorf("%s has no label %s: %s", m[1], by[1], expr)
			}
		}
	}
}

// TestAlerts holds the rules to the metrics. test/promql reads their expressions
// with Prometheus' parser.
func TestAlerts(t *testing.T) {
	text, err := os.ReadFile("../../deploy/prometheus/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var rules struct {
		Groups []struct {
			Rules []struct {
				Alert, Expr string
				Labels      map[string]string
				Annotations struct{ Summary, Action string }
			}
		}
	}
	if err := yaml.Unmarshal(text, &rules); err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			if seen[r.Alert] || r.Annotations.Summary == "" || r.Annotations.Action == "" || r.Labels["severity"] == "" {
				t.Errorf("%s is there twice, or lacks something", r.Alert)
			}
			seen[r.Alert] = true
			checkNames(t, r.Expr)
		}
	}
	if len(seen) < 10 {
		t.Errorf("%d rules", len(seen))
	}
}

type gridPos struct{ H, W, X, Y int }

// TestDashboard holds the dashboard to what Grafana loads, and to the metrics.
func TestDashboard(t *testing.T) {
	text, err := os.ReadFile("../../deploy/grafana/cay.json")
	if err != nil {
		t.Fatal(err)
	}
	var d struct {
		Title, UID    string
		SchemaVersion int
		Templating    struct{ List []struct{ Name, Type string } }
		Panels        []struct {
			ID          int
			Type, Title string
			GridPos     gridPos
			Datasource  struct{ Type, UID string }
			Targets     []struct{ RefID, Expr, LegendFormat string }
		}
	}
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	if d.Title == "" || d.UID == "" || d.SchemaVersion < 39 || len(d.Templating.List) != 2 {
		t.Errorf("the dashboard is %q, %q, of schema %d, with variables %v", d.Title, d.UID, d.SchemaVersion, d.Templating.List)
	}
	ids, used := map[int]bool{}, map[string]bool{}
	var rows []string
	var taken []gridPos
	for _, p := range d.Panels {
		if ids[p.ID] || p.Title == "" {
			t.Errorf("panel %d is there twice, or has no title", p.ID)
		}
		ids[p.ID] = true
		for _, other := range taken {
			if p.GridPos.X < other.X+other.W && other.X < p.GridPos.X+p.GridPos.W && p.GridPos.Y < other.Y+other.H && other.Y < p.GridPos.Y+p.GridPos.H {
				t.Errorf("panel %q lies on another: %v, %v", p.Title, p.GridPos, other)
			}
		}
		taken = append(taken, p.GridPos)
		if p.Type == "row" {
			rows = append(rows, p.Title)
			continue
		}
		if !slices.Contains([]string{"timeseries", "stat", "bargauge"}, p.Type) || p.Datasource.Type != "prometheus" || p.Datasource.UID != "${datasource}" || len(p.Targets) == 0 {
			t.Errorf("panel %q: %s of %v", p.Title, p.Type, p.Datasource)
		}
		for _, target := range p.Targets {
			checkNames(t, target.Expr)
			for _, m := range selector.FindAllStringSubmatch(target.Expr, -1) {
				used[m[1]] = true
			}
		}
	}
	if want := []string{"Health", "Creates and latency", "Requests", "Pool", "Builds", "Events", "Egress", "Store", "Host", "Teams", "Cluster"}; !slices.Equal(rows, want) {
		t.Errorf("the rows are %q", rows)
	}
	unseen := []string{ // what no picture needs
		"cay_instances", "cay_scrape_failures_total", "cay_disk_low", "cay_package_cache_files", "cay_package_cache_bytes",
		"cay_package_cache_limit_bytes", "cay_package_cache_passed_total",
	}
	for _, f := range families {
		if !used[f.name] && !used[f.name+"_bucket"] && !slices.Contains(unseen, f.name) {
			t.Errorf("no panel shows %s", f.name)
		}
	}
}
