package server

import (
	"log/slog"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/cay-run/cay/internal/machine/disk"
	"github.com/cay-run/cay/internal/machine/node"
	"github.com/cay-run/cay/internal/machine/pkgcache"
)

// gauges reads what the metrics page shows at the moment when it is asked for.
// The packages are nil where none are kept.
type gauges struct {
	sandboxes func() int
	pool      func() node.PoolStats
	disk      func() (disk.Level, error)
	packages  func() pkgcache.Stats
}

// metricsHandler serves the metrics page. No metric has the id of a sandbox as
// a label.
func metricsHandler(from gauges, log *slog.Logger) http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(from, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn), EnableOpenMetrics: true,
	}))
	return mux
}

// Describe implements prometheus.Collector; it leaves the metrics unchecked,
// because the page has those of the package cache only where there is one.
func (gauges) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (g gauges) Collect(out chan<- prometheus.Metric) {
	page{out}.gauge("cay_sandboxes", "Sandboxes that run on this machine.", float64(g.sandboxes()))
	page{out}.pool(g.pool())
	if l, err := g.disk(); err == nil {
		page{out}.disk(l)
	}
	if g.packages != nil {
		page{out}.packages(g.packages())
	}
}

// page writes metrics.
type page struct{ out chan<- prometheus.Metric }

func (p page) gauge(name, help string, value float64) {
	p.out <- prometheus.MustNewConstMetric(prometheus.NewDesc(name, help, nil, nil), prometheus.GaugeValue, value)
}

func (p page) counter(name, help string, value int64) {
	p.out <- prometheus.MustNewConstMetric(prometheus.NewDesc(name, help, nil, nil), prometheus.CounterValue, float64(value))
}

func (p page) pool(s node.PoolStats) {
	byTemplate := []string{"template"}
	ready := prometheus.NewDesc("cay_pool_ready", "Sandboxes that wait to be claimed.", byTemplate, nil)
	for id, n := range s.Ready {
		p.out <- prometheus.MustNewConstMetric(ready, prometheus.GaugeValue, float64(n), string(id))
	}
	wanted := prometheus.NewDesc("cay_pool_wanted", "Sandboxes that should wait to be claimed, by demand and memory.", byTemplate, nil)
	for id, n := range s.Wanted {
		p.out <- prometheus.MustNewConstMetric(wanted, prometheus.GaugeValue, float64(n), string(id))
	}
	p.gauge("cay_pool_memory_bytes", "Memory of the sandboxes that wait.", float64(s.Memory))
	p.gauge("cay_pool_memory_limit_bytes", "Memory that they may have.", float64(s.Budget))
	short := 0.0
	if s.Short {
		short = 1
	}
	p.gauge("cay_pool_short", "1 while the machine has no memory or tasks to spare for a pool.", short)
	creates := prometheus.NewDesc("cay_creates_total", "Sandboxes made of templates.", []string{"start"}, nil)
	p.out <- prometheus.MustNewConstMetric(creates, prometheus.CounterValue, float64(s.Warm), "warm")
	p.out <- prometheus.MustNewConstMetric(creates, prometheus.CounterValue, float64(s.Cold), "cold")
}

func (p page) disk(l disk.Level) {
	p.gauge("cay_disk_size_bytes", "Size of the disk of the data directory.", float64(l.Size))
	p.gauge("cay_disk_free_bytes", "Bytes of it that are free.", float64(l.Free))
	p.gauge("cay_disk_reserve_bytes", "With less free, new work is refused.", float64(l.Reserve))
	low := 0.0
	if l.Low() {
		low = 1
	}
	p.gauge("cay_disk_low", "1 while new work is refused for it.", low)
}

func (p page) packages(s pkgcache.Stats) {
	p.gauge("cay_package_cache_files", "Packages and index pages that are kept.", float64(s.Files))
	p.gauge("cay_package_cache_bytes", "Their size.", float64(s.Bytes))
	p.gauge("cay_package_cache_limit_bytes", "The size that they may have.", float64(s.Limit))
	p.counter("cay_package_cache_hits_total", "Requests answered from the disk.", s.Hits)
	p.counter("cay_package_cache_stale_total", "Hits whose host could not be asked.", s.Stale)
	p.counter("cay_package_cache_misses_total", "Requests answered by a fetch.", s.Misses)
	p.counter("cay_package_cache_passed_total", "Requests passed on, with nothing to keep.", s.Passed)
	p.counter("cay_package_cache_served_bytes_total", "Bytes that sandboxes got.", s.Served)
	p.counter("cay_package_cache_fetched_bytes_total", "Bytes that were fetched for them.", s.Fetched)
}
