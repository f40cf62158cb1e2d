package telemetry

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/trail"
)

// kind is the type of a metric.
type kind string

const (
	counter   kind = "counter"
	gauge     kind = "gauge"
	histogram kind = "histogram"
)

// family is a metric. All of Cay's own stand in families: the page has no
// other, and docs/operate/metrics.md is rendered from them.
type family struct {
	group  string
	name   string
	kind   kind
	help   string
	labels []string
	bounds []float64 // of a histogram's classic buckets, in seconds
}

// Bounds of classic buckets. A server that scrapes native histograms gets finer
// ones.
var (
	boundsOfRequests   = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}
	boundsOfOperations = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}
	boundsOfBuilds     = []float64{1, 5, 15, 30, 60, 120, 300, 600, 1800, 3600}
	boundsOfModels     = []float64{.005, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 600}
	boundsOfRecords    = []float64{.00001, .000025, .00005, .0001, .00025, .0005, .001, .0025, .005, .01, .05, .25, 1}
)

var families = []family{
	{"Health", "cay_info", gauge, "1, of this version.", []string{"version"}, nil},
	{"Health", "cay_errors_total", counter, "Requests that were refused or failed, by the error's code, or its kind where it has none.", []string{"code"}, nil},
	{"Health", "cay_refusals_total", counter, "Requests that were refused because a team, or all of them, had their fill: those of a rate, of a limit or of a budget.", []string{"reason"}, nil},
	{"Health", "cay_auth_failures_total", counter, "Requests whose key, token or SSH key opens nothing.", []string{"face"}, nil},
	{"Health", "cay_scrape_failures_total", counter, "Parts that could not be asked for this page; their metrics are missing from it.", nil, nil},

	{"Requests", "cay_requests_total", counter, "Requests to the REST API and the operator's socket, by the route as the API's description has it.", []string{"route", "method", "status"}, nil},
	{"Requests", "cay_request_seconds", histogram, "Their time, until the end of the answer; streams take long by nature.", []string{"route", "method"}, boundsOfRequests},
	{"Requests", "cay_proxy_requests_total", counter, "Requests to what runs in sandboxes.", []string{"kind", "class"}, nil},
	{"Requests", "cay_proxy_seconds", histogram, "Their time, until the answer began.", []string{"kind"}, boundsOfRequests},

	{"Sandboxes", "cay_sandboxes", gauge, "Sandboxes that live, by state and team.", []string{"state", "team"}, nil},
	{"Sandboxes", "cay_instances", gauge, "Instances that run on this machine, with those of the pool and of builds.", nil, nil},
	{"Sandboxes", "cay_creates_total", counter, "Sandboxes made of templates, by where they came from; failures have the start `none` and the error's kind as result.", []string{"start", "result"}, nil},
	{"Sandboxes", "cay_operation_seconds", histogram, "The time of operations, by result: `ok`, `canceled` or the error's kind. Those with a dot are parts of the others.", []string{"operation", "result"}, boundsOfOperations},

	{"Pool", "cay_pool_ready", gauge, "Sandboxes that wait to be claimed.", []string{"template"}, nil},
	{"Pool", "cay_pool_wanted", gauge, "Sandboxes that should wait to be claimed, by demand and memory.", []string{"template"}, nil},
	{"Pool", "cay_pool_memory_bytes", gauge, "Memory of the sandboxes that wait.", nil, nil},
	{"Pool", "cay_pool_memory_limit_bytes", gauge, "Memory that they may have.", nil, nil},
	{"Pool", "cay_pool_short", gauge, "1 while the machine has no memory or tasks to spare for a pool.", nil, nil},

	{"Queues", "cay_queue_depth", gauge, "Work that waits: `approvals` for a decision, `builds` for a worker, `runs` of hooks and schedules to be started, `turns` for the memory of an instance to be read or written.", []string{"queue"}, nil},
	{"Queues", "cay_builds", gauge, "Builds of teams' templates, by state.", []string{"state"}, nil},
	{"Queues", "cay_build_seconds", histogram, "The time of builds, without the queue.", []string{"result"}, boundsOfBuilds},

	{"Events", "cay_events_total", counter, "Events that were recorded, since the data directory was made.", nil, nil},
	{"Events", "cay_webhook_delivery_seconds", histogram, "The time of attempts to deliver an event to a webhook.", []string{"result"}, boundsOfRequests},
	{"Events", "cay_budget_used_ratio", gauge, "The part that is used of a team's fullest budget, 1 when it is used up.", []string{"team"}, nil},

	{"Egress", "cay_egress_connections_total", counter, "Connections that sandboxes tried to open by name or past the packet filter, by decision.", []string{"decision"}, nil},
	{"Egress", "cay_package_cache_files", gauge, "Packages and index pages that are kept.", nil, nil},
	{"Egress", "cay_package_cache_bytes", gauge, "Their size.", nil, nil},
	{"Egress", "cay_package_cache_limit_bytes", gauge, "The size that they may have.", nil, nil},
	{"Egress", "cay_package_cache_hits_total", counter, "Requests answered from the disk.", nil, nil},
	{"Egress", "cay_package_cache_stale_total", counter, "Hits whose host could not be asked.", nil, nil},
	{"Egress", "cay_package_cache_misses_total", counter, "Requests answered by a fetch.", nil, nil},
	{"Egress", "cay_package_cache_passed_total", counter, "Requests passed on, with nothing to keep.", nil, nil},
	{"Egress", "cay_package_cache_served_bytes_total", counter, "Bytes that sandboxes got.", nil, nil},
	{"Egress", "cay_package_cache_fetched_bytes_total", counter, "Bytes that were fetched for them.", nil, nil},

	{"Models", "cay_model_requests_total", counter, "Requests of sandboxes to models.", []string{"wire", "class"}, nil},
	{"Models", "cay_model_attempt_seconds", histogram, "How long providers of models took until their answer began, or until it was clear that none will.", []string{"wire", "outcome"}, boundsOfModels},
	{"Models", "cay_model_tokens_total", counter, "Tokens that sandboxes exchanged with models, as they are counted into usage.", []string{"wire", "direction"}, nil},

	{"Store", "cay_store_seconds", histogram, "The time of the records' operations: of a change until it is committed, of a query until its first row.", []string{"operation"}, boundsOfRecords},
	{"Store", "cay_store_wait_seconds", histogram, "How long changes waited for their turn to write.", nil, boundsOfRecords},

	{"Cluster", "cay_cluster_nodes", gauge, "Nodes of the cluster as this one sees them, by state. One with `CAY_ROLES=node` sees them while it leads.", []string{"state"}, nil},
	{"Cluster", "cay_cluster_draining_nodes", gauge, "Those of them that are drained.", nil, nil},
	{"Cluster", "cay_cluster_lead", gauge, "1 on the node that leads.", nil, nil},
	{"Cluster", "cay_cluster_lease_seconds", gauge, "For how long this node serves without another renewal of its lease.", nil, nil},
	{"Cluster", "cay_cluster_clock_seconds", gauge, "By how much the clock of this machine is before the database's at least; negative where it is behind. A server does not begin beyond 10.", nil, nil},
	{"Cluster", "cay_cluster_certificate_seconds", gauge, "For how long a certificate is good: that of this node, which a start renews, or that of the cluster's authority.", []string{"certificate"}, nil},
	{"Cluster", "cay_cluster_free_ratio", gauge, "The free part of the memory of all nodes that take new sandboxes, 0 where none does.", nil, nil},
	{"Cluster", "cay_front_requests_total", counter, "Requests of clients to this node, by what answered them.", []string{"by"}, nil},
	{"Cluster", "cay_front_moved_total", counter, "Requests that went to a node which did not have the sandbox any more, and from there to the one that has it.", nil, nil},
	{"Cluster", "cay_front_refused_total", counter, "Creates that a node had no room for, so that another one was asked.", nil, nil},
	{"Cluster", "cay_copies_waiting", gauge, "Snapshots of this machine whose copy in the bucket is not confirmed.", nil, nil},
	{"Cluster", "cay_cache_bytes", gauge, "Snapshots of teams' and their root images on this machine, where there is a bucket.", nil, nil},
	{"Cluster", "cay_cache_limit_bytes", gauge, "The bytes beyond which they are evicted.", nil, nil},
	{"Cluster", "cay_cache_evicted", gauge, "Snapshots that were here and that the bucket alone has now.", nil, nil},
	{"Cluster", "cay_cache_evictions_total", counter, "Evictions, of snapshots and of root images.", []string{"of"}, nil},
	{"Cluster", "cay_cache_misses_total", counter, "Snapshots that were needed here and were copied from the bucket.", nil, nil},

	{"Host", "cay_disk_size_bytes", gauge, "Size of the disk of the data directory.", nil, nil},
	{"Host", "cay_disk_free_bytes", gauge, "Bytes of it that are free.", nil, nil},
	{"Host", "cay_disk_reserve_bytes", gauge, "With less free, new work is refused.", nil, nil},
	{"Host", "cay_disk_low", gauge, "1 while new work is refused for it.", nil, nil},
	{"Host", "cay_host_memory_bytes", gauge, "Memory of this machine.", nil, nil},
	{"Host", "cay_host_memory_free_bytes", gauge, "Memory that new sandboxes can use without swapping.", nil, nil},
	{"Host", "cay_memory_pending_instances", gauge, "Sandboxes that have not loaded all memory of the snapshot that they started from.", nil, nil},
	{"Host", "cay_memory_pending_bytes", gauge, "Memory that they may still load, at any moment.", nil, nil},
	{"Host", "cay_memory_pending_reserve_bytes", gauge, "The part of it that is kept free for them: with less, new sandboxes are refused.", nil, nil},
	{"Host", "cay_snapshots_removed_in_use", gauge, "Snapshots that are removed and whose files such sandboxes still read.", nil, nil},
	{"Host", "cay_snapshots_removed_in_use_bytes", gauge, "Disk that those take until the last of their sandboxes has ended or loaded all.", nil, nil},
	{"Host", "cay_host_tasks", gauge, "Processes and threads that this machine allows.", nil, nil},
	{"Host", "cay_host_tasks_free", gauge, "Those that it has left.", nil, nil},
}

// labels says what a label's values are, for the page of documents. Every set
// is bounded.
var labels = map[string]string{
	"of":          "`snapshot` or `image`",
	"by":          "`here`, this node; `node`, another one; `several`, all or those of a batch; `none`, where it reached no node",
	"certificate": "`node`, `authority`",
	"class":       "`2xx` and so on, `broken` for an answer that was broken off before it began, `other` for a status that HTTP does not know",
	"code":        "a code or kind of [errors](../use/errors.md)",
	"decision":    "`allowed`, `refused`",
	"direction":   "`input`, `output`",
	"outcome":     "`answered`; `refused`, by an error that no other provider is asked for; `full` (408, 429, 5xx); `silent`, without an answer",
	"wire":        "`openai`, `anthropic`",
	"face":        "`rest`, `operator`, `ssh`, or what a request to a sandbox was for, as in `kind`",
	"kind":        "`agent` (port 49983), `interpreter` (49999), `port` for users' own servers",
	"method":      "HTTP's own; `other` for any else",
	"operation":   "see below",
	"queue":       "`approvals`, `builds`, `runs`, `turns`",
	"reason":      "`rate`, `limit`, `budget`: the codes `rate_limit_exceeded` and `login_rate_limited`; those of limits of things; `budget_exhausted`",
	"result":      "`ok`, `canceled`, or the kind of an [error](../use/errors.md); of a delivery `ok`, `canceled`, `failed`",
	"route":       "as in the API's description; `none` where there is no such route, `operator` for the operator's socket",
	"start":       "`warm` (of the pool), `cold`, `none`",
	"state":       "of sandboxes: `running`, `pausing`, `paused`, `resuming`; of builds: `waiting`, `running`; of nodes as in [Several machines](cluster.md#look-after)",
	"status":      "of HTTP; `broken` for an answer that was broken off before it began",
	"team":        "the team's id; the " + most + " with the most sandboxes in a state have their own, all others together are `other`; by budget those that have used the most, of all others the fullest is `other`",
	"template":    "the template's id; the " + most + " with the most sandboxes have their own, all others together are `other`",
	"version":     "of Cay",
}

// most is mostValues as a text.
const most = "100"

// find returns a family.
func find(name string) *family {
	for i := range families {
		if families[i].name == name {
			return &families[i]
		}
	}
	panic("no metric " + name) // a test makes every one
}

func (f *family) desc() *prometheus.Desc {
	return prometheus.NewDesc(f.name, f.help, f.labels, nil)
}

func counters(r prometheus.Registerer, name string) *prometheus.CounterVec {
	f := find(name)
	v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: f.name, Help: f.help}, f.labels)
	r.MustRegister(v)
	return v
}

// histograms makes one that is classic for a server that reads text, and native
// for one that asks for it.
func histograms(r prometheus.Registerer, name string) *prometheus.HistogramVec {
	f := find(name)
	v := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: f.name, Help: f.help, Buckets: f.bounds,
		NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 100, NativeHistogramMinResetDuration: nativeReset,
	}, f.labels)
	r.MustRegister(v)
	return v
}

// operations are the values of `operation` in cay_operation_seconds.
func operations() []string {
	var out []string
	for _, o := range trail.Operations {
		if o != trail.Build && o != trail.Deliver {
			out = append(out, "`"+string(o)+"`")
		}
	}
	return out
}

// page renders docs/operate/metrics.md's tables.
func page() string {
	var out strings.Builder
	group := ""
	for _, f := range families {
		if f.group != group {
			group = f.group
			out.WriteString("\n### " + group + "\n\n| metric | type | labels | says |\n|---|---|---|---|\n")
		}
		by := ""
		for i, l := range f.labels {
			if i > 0 {
				by += ", "
			}
			by += "`" + l + "`"
		}
		out.WriteString("| `" + f.name + "` | " + string(f.kind) + " | " + by + " | " + f.help + " |\n")
	}
	out.WriteString("\n### Labels\n\n| label | values |\n|---|---|\n")
	for _, name := range sorted(labels) {
		out.WriteString("| `" + name + "` | " + labels[name] + " |\n")
	}
	out.WriteString("\nThe operations of `cay_operation_seconds` are " + strings.Join(operations(), ", ") + ". Those of `cay_store_seconds` are the names of the store's methods in the code.\n")
	return out.String()
}

// kinds are all values that a result may have besides ok and canceled.
func kinds() map[string]bool {
	out := map[string]bool{}
	for _, k := range cay.Kinds() {
		out[string(k.Kind)] = true
	}
	return out
}
