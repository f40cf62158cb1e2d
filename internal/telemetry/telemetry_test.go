package telemetry

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/cache"
	"github.com/cay-run/cay/internal/machine/disk"
	"github.com/cay-run/cay/internal/machine/node"
	"github.com/cay-run/cay/internal/machine/pkgcache"
	"github.com/cay-run/cay/internal/trail"
)

var update = flag.Bool("update", false, "write docs/operate/metrics.md")

func TestMetricsDocument(t *testing.T) {
	const path, mark = "../../docs/operate/metrics.md", "go test ./internal/telemetry -update -->\n"
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok := strings.Cut(string(text), mark)
	if !ok {
		t.Fatalf("%s has no mark", path)
	}
	if *update {
		if err := os.WriteFile(path, []byte(head+mark+page()), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if rest != page() {
		t.Errorf("%s is not what the code says: run go test ./internal/telemetry -update", path)
	}
	for _, f := range families {
		for _, l := range f.labels {
			if labels[l] == "" {
				t.Errorf("label %s of %s has no description", l, f.name)
			}
		}
	}
	if strconv.Itoa(mostValues) != most {
		t.Errorf("the document says %s, the code %d", most, mostValues)
	}
}

// everything is a source of each gauge.
func everything() Sources {
	return Sources{
		Sandboxes: func() map[cay.TeamID]map[cay.State]int {
			return map[cay.TeamID]map[cay.State]int{"a": {cay.Running: 3, cay.Paused: 1}}
		},
		Instances: func() int { return 4 },
		Pool: func() node.PoolStats {
			return node.PoolStats{
				Budget: 2 << 30, Memory: 1 << 20, Warm: 7, Cold: 2, Short: true,
				Ready: map[cay.TemplateID]int{"a": 1, "b": 2}, Wanted: map[cay.TemplateID]int{"a": 4},
			}
		},
		Turns:   func() int { return 5 },
		Waiting: func(context.Context, time.Time) (int, int, error) { return 17, 18, nil },
		Builds:  func(context.Context) (int, int, error) { return 6, 2, nil },
		Egress:  func() (int64, int64) { return 8, 9 },
		Events:  func(context.Context) (int64, error) { return 10, nil },
		Budgets: func() map[cay.TeamID]float64 { return map[cay.TeamID]float64{"a": .5} },
		Disk:    func() (disk.Level, error) { return disk.Level{Size: 100, Free: 9, Reserve: 10}, nil },
		Room:    func() (node.Room, error) { return node.Room{Memory: 11, MemoryFree: 12, Tasks: 13, TasksFree: 14}, nil },
		Loading: func() (node.Loading, error) {
			return node.Loading{Instances: 2, Pending: 15, Reserve: 3, Removed: 1, Kept: 16}, nil
		},
		Packages: func() pkgcache.Stats { return pkgcache.Stats{Files: 5, Bytes: 6, Limit: 7, Hits: 8, Served: 9} },
		Copies:   func() int { return 19 },
		Cache: func() Cache {
			return Cache{Stats: cache.Stats{Bytes: 28, Limit: 29, Evicted: 30, Snapshots: 31, Images: 32}, Misses: 33}
		},
		Cluster: func() Cluster {
			return Cluster{
				Nodes: map[cay.NodeState]int{cay.NodeReady: 20, cay.NodeSilent: 1}, Draining: 2, Leads: true, Lease: 21500 * time.Millisecond, Clock: -1500 * time.Millisecond, Certificate: time.Hour, Authority: 2 * time.Hour, FreeShare: .25,
				Answered: map[string]int64{"here": 22, "node": 23, "several": 24, "none": 25}, Moved: 26, Refused: 27,
			}
		},
	}
}

func open(t testing.TB, from Sources) *Telemetry {
	t.Helper()
	out, err := New(t.Context(), func(string) string { return "" }, nil)
	if err != nil {
		t.Fatal(err)
	}
	out.Ask(from)
	return out
}

// read reads the page with Prometheus' own parser.
func read(t testing.TB, of *Telemetry, accept string) map[string]*dto.MetricFamily {
	t.Helper()
	w := httptest.NewRecorder()
	r := httptest.NewRequest("GET", "/metrics", nil)
	r.Header.Set("Accept", accept)
	of.Handler().ServeHTTP(w, r)
	if w.Code != 200 {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	out := map[string]*dto.MetricFamily{}
	dec := expfmt.NewDecoder(w.Body, expfmt.ResponseFormat(w.Header()))
	for {
		var f dto.MetricFamily
		err := dec.Decode(&f)
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		out[f.GetName()] = &f
	}
}

// valueOf finds a metric by its labels, name and value by turns.
func valueOf(f *dto.MetricFamily, labels ...string) (float64, bool) {
	for _, m := range f.GetMetric() {
		have := map[string]string{}
		for _, l := range m.Label {
			have[l.GetName()] = l.GetValue()
		}
		same := len(have) == len(labels)/2
		for i := 0; i < len(labels); i += 2 {
			same = same && have[labels[i]] == labels[i+1]
		}
		if !same {
			continue
		}
		switch {
		case m.Counter != nil:
			return m.Counter.GetValue(), true
		case m.Gauge != nil:
			return m.Gauge.GetValue(), true
		case m.Histogram != nil:
			return float64(m.Histogram.GetSampleCount()), true
		}
	}
	return 0, false
}

// serve has a request be answered.
func serve(of *Telemetry, method string, status int, as func(*trail.Request)) {
	handler := trail.Follow(trail.REST, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		as(trail.Of(r.Context()))
		w.WriteHeader(status)
	}))
	r := httptest.NewRequest("GET", "/", nil)
	r.Method = method
	handler.ServeHTTP(httptest.NewRecorder(), r.WithContext(trail.Watch(r.Context(), of)))
}

func TestCounts(t *testing.T) {
	of := open(t, everything())
	serve(of, "GET", 200, func(r *trail.Request) { r.Route = "/sandboxes/{sandboxID}" })
	serve(of, "GET", 401, func(r *trail.Request) { r.Route, r.Code = "/sandboxes", string(cay.Unauthenticated) })
	serve(of, "GET", 404, func(*trail.Request) {})
	serve(of, "POST", 200, func(r *trail.Request) { r.Face = trail.Agent })
	serve(of, "POST", 502, func(r *trail.Request) { r.Face = trail.Port })
	serve(of, "POST", 403, func(r *trail.Request) { r.Face, r.Code = trail.Port, string(cay.Denied) })
	serve(of, "POST", 429, func(r *trail.Request) { r.Route, r.Code = "/sandboxes", cay.CodeTeamLimit })
	serve(of, "POST", 429, func(r *trail.Request) { r.Route, r.Code = "/sandboxes", cay.CodeRateLimit })
	serve(of, "POST", 429, func(r *trail.Request) { r.Face, r.Code = trail.Port, cay.CodeBudget })
	ctx := trail.Watch(t.Context(), of)
	for _, op := range trail.Operations {
		_, done := trail.Begin(ctx, op)
		done(nil)
	}
	_, done := trail.Begin(ctx, trail.Create)
	done(cay.Errorf(cay.Exhausted, "full"))
	_, done = trail.Begin(ctx, trail.Pause)
	done(fmt.Errorf("gone: %w", context.Canceled))
	_, done = trail.Begin(ctx, trail.Deliver)
	done(errors.New("http_error"))
	of.Took("AddSandbox", time.Millisecond, time.Millisecond)
	of.Took("Events", -1, time.Millisecond)
	of.SSHRefused()
	of.ModelAttempt(cay.OpenAIWire, "silent", time.Second)
	of.ModelRequest(cay.OpenAIWire, 200, 11, 7)

	page := read(t, of, "")
	for _, tt := range []struct {
		name   string
		labels string // name=value, by spaces
		want   float64
	}{
		{"cay_requests_total", "route=/sandboxes/{sandboxID} method=GET status=200", 1},
		{"cay_requests_total", "route=none method=GET status=404", 1},
		{"cay_request_seconds", "route=/sandboxes/{sandboxID} method=GET", 1},
		{"cay_proxy_requests_total", "kind=agent class=2xx", 1},
		{"cay_proxy_requests_total", "kind=port class=5xx", 1},
		{"cay_proxy_seconds", "kind=agent", 1},
		{"cay_model_requests_total", "wire=openai class=2xx", 1},
		{"cay_model_tokens_total", "wire=openai direction=input", 11},
		{"cay_errors_total", "code=team_limit_reached", 1},
		{"cay_errors_total", "code=unauthenticated", 1},
		{"cay_refusals_total", "reason=limit", 1},
		{"cay_refusals_total", "reason=rate", 1},
		{"cay_refusals_total", "reason=budget", 1},
		{"cay_auth_failures_total", "face=rest", 1},
		{"cay_auth_failures_total", "face=port", 1},
		{"cay_auth_failures_total", "face=ssh", 1},
		{"cay_operation_seconds", "operation=create result=ok", 1},
		{"cay_operation_seconds", "operation=create result=exhausted", 1},
		{"cay_operation_seconds", "operation=pause result=canceled", 1},
		{"cay_build_seconds", "result=ok", 1},
		{"cay_creates_total", "start=warm result=ok", 7},
		{"cay_creates_total", "start=cold result=ok", 2},
		{"cay_creates_total", "start=none result=exhausted", 1},
		{"cay_store_seconds", "operation=AddSandbox", 1},
		{"cay_store_seconds", "operation=Events", 1},
		{"cay_store_wait_seconds", "", 1},
		{"cay_sandboxes", "state=running team=a", 3},
		{"cay_instances", "", 4},
		{"cay_pool_ready", "template=b", 2},
		{"cay_pool_short", "", 1},
		{"cay_pool_memory_limit_bytes", "", 2 << 30},
		{"cay_queue_depth", "queue=turns", 5},
		{"cay_queue_depth", "queue=builds", 6},
		{"cay_queue_depth", "queue=runs", 17},
		{"cay_queue_depth", "queue=approvals", 18},
		{"cay_builds", "state=running", 2},
		{"cay_egress_connections_total", "decision=refused", 9},
		{"cay_events_total", "", 10},
		{"cay_budget_used_ratio", "team=a", .5},
		{"cay_webhook_delivery_seconds", "result=ok", 1},
		{"cay_webhook_delivery_seconds", "result=failed", 1},
		{"cay_disk_low", "", 1},
		{"cay_host_memory_free_bytes", "", 12},
		{"cay_memory_pending_bytes", "", 15},
		{"cay_memory_pending_reserve_bytes", "", 3},
		{"cay_snapshots_removed_in_use", "", 1},
		{"cay_snapshots_removed_in_use_bytes", "", 16},
		{"cay_package_cache_hits_total", "", 8},
		{"cay_copies_waiting", "", 19},
		{"cay_cache_bytes", "", 28},
		{"cay_cache_limit_bytes", "", 29},
		{"cay_cache_evicted", "", 30},
		{"cay_cache_evictions_total", "of=snapshot", 31},
		{"cay_cache_evictions_total", "of=image", 32},
		{"cay_cache_misses_total", "", 33},
		{"cay_cluster_nodes", "state=ready", 20},
		{"cay_cluster_nodes", "state=silent", 1},
		{"cay_cluster_draining_nodes", "", 2},
		{"cay_cluster_lead", "", 1},
		{"cay_cluster_lease_seconds", "", 21.5},
		{"cay_cluster_clock_seconds", "", -1.5},
		{"cay_cluster_certificate_seconds", "certificate=node", 3600},
		{"cay_cluster_certificate_seconds", "certificate=authority", 7200},
		{"cay_cluster_free_ratio", "", .25},
		{"cay_front_requests_total", "by=here", 22},
		{"cay_front_requests_total", "by=node", 23},
		{"cay_front_requests_total", "by=several", 24},
		{"cay_front_requests_total", "by=none", 25},
		{"cay_front_moved_total", "", 26},
		{"cay_front_refused_total", "", 27},
		{"cay_info", "version=" + cay.Version, 1},
	} {
		got, ok := valueOf(page[tt.name], strings.FieldsFunc(tt.labels, func(r rune) bool { return r == ' ' || r == '=' })...)
		if !ok || got != tt.want {
			t.Errorf("%s{%s} is %v, want %v", tt.name, tt.labels, got, tt.want)
		}
	}
	for _, f := range families {
		if page[f.name] == nil {
			t.Errorf("%s is not on the page", f.name)
		}
	}
	for name, f := range page {
		if !strings.HasPrefix(name, "cay_") {
			continue
		}
		of := find(name) // panics where there is none
		if f.GetHelp() != of.help || strings.ToLower(f.GetType().String()) != string(of.kind) {
			t.Errorf("%s is a %s that says %q", name, f.GetType(), f.GetHelp())
		}
		for _, m := range f.Metric {
			if len(m.Label) != len(of.labels) {
				t.Errorf("%s has labels %v", name, m.Label)
			}
		}
	}
	for _, name := range []string{"go_goroutines", "process_resident_memory_bytes"} {
		if page[name] == nil {
			t.Errorf("the page lacks %s", name)
		}
	}
}

// TestFormats reads the page in each format that a Prometheus asks for.
func TestFormats(t *testing.T) {
	of := open(t, everything())
	_, done := of.Begin(t.Context(), trail.Create)
	done(nil)
	binary := read(t, of, string(expfmt.NewFormat(expfmt.TypeProtoDelim)))
	h := binary["cay_operation_seconds"].GetMetric()[0].GetHistogram()
	if h.GetSchema() == 0 || len(h.GetPositiveSpan()) == 0 || len(h.GetBucket()) != len(boundsOfOperations) {
		t.Errorf("the histogram is not native and classic at once: %v", h)
	}
	w := httptest.NewRecorder()
	r := httptest.NewRequest("GET", "/metrics", nil)
	r.Header.Set("Accept", "application/openmetrics-text; version=1.0.0")
	of.Handler().ServeHTTP(w, r)
	if !strings.HasPrefix(w.Header().Get("Content-Type"), "application/openmetrics-text") || !bytes.HasSuffix(w.Body.Bytes(), []byte("# EOF\n")) {
		t.Errorf("asked for OpenMetrics: %s, %.200s", w.Header().Get("Content-Type"), w.Body)
	}
	seen := map[string]bool{}
	for line := range strings.Lines(w.Body.String()) {
		if name, ok := strings.CutPrefix(line, "# TYPE "); ok {
			name, _, _ = strings.Cut(name, " ")
			if seen[name] {
				t.Errorf("%s is there twice, which OpenMetrics forbids", name)
			}
			seen[name] = true
		}
	}
	w = httptest.NewRecorder()
	if of.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/", nil)); w.Code != 404 {
		t.Errorf("another path answers %d", w.Code)
	}
	for name := range read(t, of, "") {
		if !model.LegacyValidation.IsValidMetricName(name) {
			t.Errorf("%q is no name of a metric", name)
		}
	}
}

// TestHostileLabels sends what tenants and guests may send, and looks at how
// many metrics it makes.
func TestHostileLabels(t *testing.T) {
	from := everything()
	from.Sandboxes = func() map[cay.TeamID]map[cay.State]int {
		out := map[cay.TeamID]map[cay.State]int{}
		for i := range 10_000 {
			out[cay.TeamID(fmt.Sprintf("team%05d", i))] = map[cay.State]int{cay.Running: i, cay.Paused: 1}
		}
		return out
	}
	from.Pool = func() node.PoolStats {
		out := node.PoolStats{Ready: map[cay.TemplateID]int{}, Wanted: map[cay.TemplateID]int{}}
		for i := range 10_000 {
			out.Ready[cay.TemplateID(strconv.Itoa(i))] = 1
		}
		return out
	}
	from.Budgets = func() map[cay.TeamID]float64 {
		out := map[cay.TeamID]float64{}
		for i := range 10_000 {
			out[cay.TeamID(strconv.Itoa(i))] = float64(i) / 10_000
		}
		return out
	}
	of := open(t, from)
	for i := range 10_000 {
		odd := strconv.Itoa(i)
		serve(of, "M"+odd, 404, func(*trail.Request) {})
		serve(of, "GET", 100+i%900, func(r *trail.Request) { r.Face, r.Code = trail.Port, "code"+odd })
	}
	page := read(t, of, "")
	sum := 0
	for name, f := range page {
		if strings.HasPrefix(name, "cay_") {
			sum += len(f.Metric)
		}
	}
	if sum > 1000 {
		t.Errorf("%d metrics", sum)
	}
	if got, _ := valueOf(page["cay_requests_total"], "route", "none", "method", "other", "status", "404"); got != 10_000 {
		t.Errorf("%v requests of odd methods", got)
	}
	running := 0.0
	for _, m := range page["cay_sandboxes"].Metric {
		if m.Label[0].GetValue() == "running" {
			running += m.Gauge.GetValue()
		}
	}
	if running != 9_999*10_000/2 {
		t.Errorf("%v sandboxes run by the page", running)
	}
	if got, _ := valueOf(page["cay_budget_used_ratio"], "team", "other"); got != .9899 {
		t.Errorf("the fullest of the other budgets is %v", got)
	}
	if got, _ := valueOf(page["cay_sandboxes"], "state", "running", "team", "team09999"); got != 9999 {
		t.Errorf("the team with the most has %v", got)
	}
}

// TestDeafParts has parts fail: the page is there, without what they would say.
func TestDeafParts(t *testing.T) {
	from := everything()
	broken := errors.New("broken")
	from.Builds = func(context.Context) (int, int, error) { return 0, 0, broken }
	from.Events = func(context.Context) (int64, error) { return 0, broken }
	from.Disk = func() (disk.Level, error) { return disk.Level{}, broken }
	from.Room = func() (node.Room, error) { return node.Room{}, broken }
	from.Packages = nil
	page := read(t, open(t, from), "")
	for _, name := range []string{"cay_builds", "cay_events_total", "cay_disk_free_bytes", "cay_host_tasks", "cay_package_cache_files"} {
		if page[name] != nil {
			t.Errorf("%s is there", name)
		}
	}
	if got, _ := valueOf(page["cay_scrape_failures_total"]); got != 4 {
		t.Errorf("%v failures", got)
	}
}

func BenchmarkFollow(b *testing.B) {
	of := open(b, everything())
	handler := trail.Follow(trail.REST, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		trail.Of(r.Context()).Route = "/sandboxes"
		w.WriteHeader(204)
	}))
	for _, watched := range []bool{false, true} {
		b.Run(fmt.Sprintf("watched=%v", watched), func(b *testing.B) {
			r := httptest.NewRequest("GET", "/", nil)
			if watched {
				r = r.WithContext(trail.Watch(r.Context(), of))
			}
			b.ReportAllocs()
			for b.Loop() {
				handler.ServeHTTP(httptest.NewRecorder(), r)
			}
		})
	}
}

func BenchmarkBegin(b *testing.B) {
	of := open(b, everything())
	for _, watched := range []bool{false, true} {
		b.Run(fmt.Sprintf("watched=%v", watched), func(b *testing.B) {
			ctx := b.Context()
			if watched {
				ctx = trail.Watch(ctx, of)
			}
			b.ReportAllocs()
			for b.Loop() {
				_, done := trail.Begin(ctx, trail.Create)
				done(nil)
			}
		})
	}
}
