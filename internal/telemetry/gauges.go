package telemetry

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/cache"
	"github.com/cay-run/cay/internal/machine/disk"
	"github.com/cay-run/cay/internal/machine/node"
	"github.com/cay-run/cay/internal/machine/pkgcache"
)

// Sources are the parts that are asked when the page is read. Packages is nil where none
// are kept, Copies and Cache without a bucket, and Cluster on a machine alone; all others are required.
type Sources struct {
	Sandboxes func() map[cay.TeamID]map[cay.State]int
	Instances func() int
	Pool      func() node.PoolStats
	Turns     func() int // that are waited for
	Builds    func(context.Context) (waiting, running int, err error)
	Waiting   func(ctx context.Context, now time.Time) (runs, approvals int, err error)
	Egress    func() (allowed, refused int64)
	Events    func(context.Context) (int64, error)
	Budgets   func() map[cay.TeamID]float64 // the part that is used of each team's fullest
	Disk      func() (disk.Level, error)
	Room      func() (node.Room, error)
	Loading   func() (node.Loading, error)
	Packages  func() pkgcache.Stats
	Copies    func() int // snapshots that the bucket has not got yet
	Cache     func() Cache
	Cluster   func() Cluster
}

// Cluster is what a node knows of its cluster, and what it did as a front since it began.
type Cluster struct {
	Nodes    map[cay.NodeState]int // the members that it sees
	Draining int                   // drained nodes among them
	Leads    bool                  // this node
	Lease    time.Duration         // for which this node serves without a renewal
	Clock    time.Duration         // by which this machine's is before the database's
	// Certificate is the remaining life of this node's certificate, Authority of the cluster's.
	Certificate, Authority time.Duration
	FreeShare              float64 // the free part of the memory of all that take new sandboxes

	Answered map[string]int64 // requests of clients, by what answered them
	Moved    int64            // that went to a node first which did not have the sandbox any more
	Refused  int64            // creates that a node refused, so that another one was asked
}

// scrapeWithin bounds the questions of one page.
const scrapeWithin = 5 * time.Second

// Ask has the page ask the parts. It is called once.
func (t *Telemetry) Ask(from Sources) {
	t.registry.MustRegister(&gauges{from: from, unmade: &t.unmade, log: t.log})
}

// gauges reads what the page shows at the moment when it is asked for.
type gauges struct {
	from   Sources
	unmade *tally
	failed atomic.Int64
	log    *slog.Logger
}

// Describe implements prometheus.Collector; it leaves the metrics unchecked,
// because the page has those of the package cache only where there is one.
func (*gauges) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (g *gauges) Collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeWithin)
	defer cancel()
	s := sheet{out}
	s.put("cay_info", 1, cay.Version)
	g.sandboxes(s)
	s.put("cay_instances", float64(g.from.Instances()))
	g.pool(s)
	g.queues(ctx, s)
	allowed, refused := g.from.Egress()
	s.put("cay_egress_connections_total", float64(allowed), "allowed")
	s.put("cay_egress_connections_total", float64(refused), "refused")
	if n, err := g.from.Events(ctx); g.asked("events", err) {
		s.put("cay_events_total", float64(n))
	}
	for team, used := range fullest(g.from.Budgets()) {
		s.put("cay_budget_used_ratio", used, team)
	}
	g.host(s)
	g.loading(s)
	if g.from.Packages != nil {
		s.packages(g.from.Packages())
	}
	if g.from.Copies != nil {
		s.put("cay_copies_waiting", float64(g.from.Copies()))
	}
	if g.from.Cache != nil {
		s.cache(g.from.Cache())
	}
	if g.from.Cluster != nil {
		s.cluster(g.from.Cluster())
	}
	s.put("cay_scrape_failures_total", float64(g.failed.Load()))
}

// asked reports whether a part answered.
func (g *gauges) asked(what string, err error) bool {
	if err != nil {
		g.failed.Add(1)
		g.log.Warn("a part of the metrics is missing", "part", what, "err", err)
	}
	return err == nil
}

func (g *gauges) sandboxes(s sheet) {
	byState := map[cay.State]map[string]int{}
	for team, states := range g.from.Sandboxes() {
		for state, n := range states {
			if byState[state] == nil {
				byState[state] = map[string]int{}
			}
			byState[state][string(team)] = n
		}
	}
	for state, teams := range byState {
		for team, n := range bounded(teams) {
			s.put("cay_sandboxes", float64(n), string(state), team)
		}
	}
}

func (g *gauges) pool(s sheet) {
	p := g.from.Pool()
	for id, n := range bounded(texts(p.Ready)) {
		s.put("cay_pool_ready", float64(n), id)
	}
	for id, n := range bounded(texts(p.Wanted)) {
		s.put("cay_pool_wanted", float64(n), id)
	}
	s.put("cay_pool_memory_bytes", float64(p.Memory))
	s.put("cay_pool_memory_limit_bytes", float64(p.Budget))
	s.put("cay_pool_short", truth(p.Short))
	s.put("cay_creates_total", float64(p.Warm), "warm", "ok")
	s.put("cay_creates_total", float64(p.Cold), "cold", "ok")
	for result, n := range g.unmade.all() {
		s.put("cay_creates_total", float64(n), "none", result)
	}
}

func (g *gauges) queues(ctx context.Context, s sheet) {
	s.put("cay_queue_depth", float64(g.from.Turns()), "turns")
	if waiting, running, err := g.from.Builds(ctx); g.asked("builds", err) {
		s.put("cay_queue_depth", float64(waiting), "builds")
		s.put("cay_builds", float64(waiting), "waiting")
		s.put("cay_builds", float64(running), "running")
	}
	if runs, approvals, err := g.from.Waiting(ctx, time.Now()); g.asked("waiting", err) {
		s.put("cay_queue_depth", float64(runs), "runs")
		s.put("cay_queue_depth", float64(approvals), "approvals")
	}
}

func (g *gauges) host(s sheet) {
	if l, err := g.from.Disk(); g.asked("disk", err) {
		s.put("cay_disk_size_bytes", float64(l.Size))
		s.put("cay_disk_free_bytes", float64(l.Free))
		s.put("cay_disk_reserve_bytes", float64(l.Reserve))
		s.put("cay_disk_low", truth(l.Low()))
	}
	if r, err := g.from.Room(); g.asked("room", err) {
		s.put("cay_host_memory_bytes", float64(r.Memory))
		s.put("cay_host_memory_free_bytes", float64(r.MemoryFree))
		s.put("cay_host_tasks", float64(r.Tasks))
		s.put("cay_host_tasks_free", float64(r.TasksFree))
	}
}

// loading tells of memory that is loaded by demand.
func (g *gauges) loading(s sheet) {
	l, err := g.from.Loading()
	if !g.asked("loading", err) {
		return
	}
	s.put("cay_memory_pending_instances", float64(l.Instances))
	s.put("cay_memory_pending_bytes", float64(l.Pending))
	s.put("cay_memory_pending_reserve_bytes", float64(l.Reserve))
	s.put("cay_snapshots_removed_in_use", float64(l.Removed))
	s.put("cay_snapshots_removed_in_use_bytes", float64(l.Kept))
}

// Cache is what of a bucket's snapshots is on this machine as well.
type Cache struct {
	cache.Stats
	Misses int64 // snapshots that were copied back
}

func (s sheet) cache(c Cache) {
	s.put("cay_cache_bytes", float64(c.Bytes))
	s.put("cay_cache_limit_bytes", float64(c.Limit))
	s.put("cay_cache_evicted", float64(c.Evicted))
	s.put("cay_cache_evictions_total", float64(c.Snapshots), "snapshot")
	s.put("cay_cache_evictions_total", float64(c.Images), "image")
	s.put("cay_cache_misses_total", float64(c.Misses))
}

// sheet writes metrics.
type sheet struct{ out chan<- prometheus.Metric }

func (s sheet) put(name string, value float64, labels ...string) {
	f := find(name)
	of := prometheus.GaugeValue
	if f.kind == counter {
		of = prometheus.CounterValue
	}
	s.out <- prometheus.MustNewConstMetric(f.desc(), of, value, labels...)
}

func (s sheet) packages(p pkgcache.Stats) {
	s.put("cay_package_cache_files", float64(p.Files))
	s.put("cay_package_cache_bytes", float64(p.Bytes))
	s.put("cay_package_cache_limit_bytes", float64(p.Limit))
	s.put("cay_package_cache_hits_total", float64(p.Hits))
	s.put("cay_package_cache_stale_total", float64(p.Stale))
	s.put("cay_package_cache_misses_total", float64(p.Misses))
	s.put("cay_package_cache_passed_total", float64(p.Passed))
	s.put("cay_package_cache_served_bytes_total", float64(p.Served))
	s.put("cay_package_cache_fetched_bytes_total", float64(p.Fetched))
}

func (s sheet) cluster(c Cluster) {
	for state, n := range c.Nodes {
		s.put("cay_cluster_nodes", float64(n), string(state))
	}
	s.put("cay_cluster_draining_nodes", float64(c.Draining))
	s.put("cay_cluster_lead", truth(c.Leads))
	s.put("cay_cluster_lease_seconds", c.Lease.Seconds())
	s.put("cay_cluster_clock_seconds", c.Clock.Seconds())
	s.put("cay_cluster_certificate_seconds", c.Certificate.Seconds(), "node")
	s.put("cay_cluster_certificate_seconds", c.Authority.Seconds(), "authority")
	s.put("cay_cluster_free_ratio", c.FreeShare)
	for by, n := range c.Answered {
		s.put("cay_front_requests_total", float64(n), by)
	}
	s.put("cay_front_moved_total", float64(c.Moved))
	s.put("cay_front_refused_total", float64(c.Refused))
}

// bounded keeps the largest values under their names, and the sum of the others
// as "other".
func bounded(values map[string]int) map[string]int {
	if len(values) <= mostValues {
		return values
	}
	names := slices.SortedFunc(maps.Keys(values), func(a, b string) int {
		return cmp.Or(cmp.Compare(values[b], values[a]), cmp.Compare(a, b))
	})
	out := make(map[string]int, mostValues+1)
	for i, name := range names {
		if i < mostValues {
			out[name] = values[name]
		} else {
			out["other"] += values[name]
		}
	}
	return out
}

// fullest keeps the largest ratios under their teams, and the largest of the
// others as "other".
func fullest(ratios map[cay.TeamID]float64) map[string]float64 {
	teams := slices.SortedFunc(maps.Keys(ratios), func(a, b cay.TeamID) int {
		return cmp.Or(cmp.Compare(ratios[b], ratios[a]), cmp.Compare(a, b))
	})
	out := make(map[string]float64, min(len(teams), mostValues+1))
	for i, team := range teams {
		if i == mostValues {
			out["other"] = ratios[team]
			break
		}
		out[string(team)] = ratios[team]
	}
	return out
}

func texts[K ~string](m map[K]int) map[string]int {
	out := make(map[string]int, len(m))
	for k, n := range m {
		out[string(k)] = n
	}
	return out
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// tally counts by name.
type tally struct {
	mu sync.Mutex
	n  map[string]int
}

func (t *tally) add(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.n == nil {
		t.n = map[string]int{}
	}
	t.n[name]++
}

func (t *tally) all() map[string]int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return maps.Clone(t.n)
}
