package server

import (
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/disk"
	"github.com/cay-run/cay/internal/machine/node"
	"github.com/cay-run/cay/internal/machine/pkgcache"
)

// TestMetricsPage holds the page to names and types that dashboards are built
// on.
func TestMetricsPage(t *testing.T) {
	from := gauges{
		sandboxes: func() int { return 3 },
		pool: func() node.PoolStats {
			return node.PoolStats{
				Budget: 2 << 30, Memory: 1 << 20, Warm: 7, Cold: 2, Short: true,
				Ready: map[cay.TemplateID]int{"a": 1, "b": 2}, Wanted: map[cay.TemplateID]int{"a": 4},
			}
		},
		disk:     func() (disk.Level, error) { return disk.Level{Size: 100, Free: 9, Reserve: 10}, nil },
		packages: func() pkgcache.Stats { return pkgcache.Stats{Files: 5, Bytes: 6, Limit: 7, Hits: 8, Served: 9} },
	}
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(from)
	const want = `
# HELP cay_creates_total Sandboxes made of templates.
# TYPE cay_creates_total counter
cay_creates_total{start="cold"} 2
cay_creates_total{start="warm"} 7
# HELP cay_disk_low 1 while new work is refused for it.
# TYPE cay_disk_low gauge
cay_disk_low 1
# HELP cay_package_cache_hits_total Requests answered from the disk.
# TYPE cay_package_cache_hits_total counter
cay_package_cache_hits_total 8
# HELP cay_pool_memory_limit_bytes Memory that they may have.
# TYPE cay_pool_memory_limit_bytes gauge
cay_pool_memory_limit_bytes 2.147483648e+09
# HELP cay_pool_ready Sandboxes that wait to be claimed.
# TYPE cay_pool_ready gauge
cay_pool_ready{template="a"} 1
cay_pool_ready{template="b"} 2
# HELP cay_pool_short 1 while the machine has no memory or tasks to spare for a pool.
# TYPE cay_pool_short gauge
cay_pool_short 1
# HELP cay_sandboxes Sandboxes that run on this machine.
# TYPE cay_sandboxes gauge
cay_sandboxes 3
`
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "cay_creates_total", "cay_disk_low", "cay_package_cache_hits_total",
		"cay_pool_memory_limit_bytes", "cay_pool_ready", "cay_pool_short", "cay_sandboxes"); err != nil {
		t.Error(err)
	}
	if n, err := testutil.GatherAndCount(registry); err != nil || n != 22 {
		t.Errorf("%d metrics, %v", n, err)
	}

	from.packages = nil
	handler := metricsHandler(from, slog.New(slog.DiscardHandler))
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	text := w.Body.String()
	for _, name := range []string{"cay_sandboxes 3\n", "go_goroutines", "process_resident_memory_bytes"} {
		if !strings.Contains(text, name) {
			t.Errorf("the page lacks %s", name)
		}
	}
	if w.Code != 200 || strings.Contains(text, "cay_package_cache") {
		t.Errorf("without a package cache: %d %s", w.Code, text)
	}
	w = httptest.NewRecorder()
	if handler.ServeHTTP(w, httptest.NewRequest("GET", "/", nil)); w.Code != 404 {
		t.Errorf("another path answers %d", w.Code)
	}
}
