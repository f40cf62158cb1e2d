// Package telemetry is what a server tells of itself: metrics for Prometheus,
// and traces over OTLP where they are asked for. It learns of requests and
// operations as their trail.Watcher, and asks the parts for the rest when the
// page is read. No label has an unbounded set of values.
package telemetry

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/trail"
)

const (
	// mostValues bounds the values of a label that tenants can add to.
	mostValues = 100
	// nativeReset is how seldom a native histogram that has too many buckets may
	// begin anew.
	nativeReset = time.Hour
)

// Telemetry counts what a server does. It is a trail.Watcher and a
// store.Observer.
type Telemetry struct {
	registry *prometheus.Registry
	log      *slog.Logger
	traces   *traces // nil while they are off

	errors, refused      *prometheus.CounterVec
	refusals             *prometheus.CounterVec
	requests, proxied    *prometheus.CounterVec
	requestTime, proxyIn *prometheus.HistogramVec
	operations, builds   *prometheus.HistogramVec
	deliveries           *prometheus.HistogramVec
	store, storeWait     *prometheus.HistogramVec
	modelRequests        *prometheus.CounterVec
	modelTokens          *prometheus.CounterVec
	modelAttempts        *prometheus.HistogramVec
	unmade               tally // creates that failed, by result
	kinds                map[string]bool
	codes                map[string]bool
}

var _ trail.Watcher = (*Telemetry)(nil)

// New returns a telemetry. Traces are on where OTEL_EXPORTER_OTLP_ENDPOINT is
// set: env looks variables up. Log may be nil.
func New(ctx context.Context, env func(string) string, log *slog.Logger) (*Telemetry, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	r := prometheus.NewRegistry()
	t := &Telemetry{
		registry: r, log: log, kinds: kinds(), codes: map[string]bool{},
		refusals: counters(r, "cay_refusals_total"),
		errors:   counters(r, "cay_errors_total"), refused: counters(r, "cay_auth_failures_total"),
		requests: counters(r, "cay_requests_total"), proxied: counters(r, "cay_proxy_requests_total"),
		requestTime: histograms(r, "cay_request_seconds"), proxyIn: histograms(r, "cay_proxy_seconds"),
		operations: histograms(r, "cay_operation_seconds"), builds: histograms(r, "cay_build_seconds"),
		deliveries:    histograms(r, "cay_webhook_delivery_seconds"),
		modelRequests: counters(r, "cay_model_requests_total"), modelTokens: counters(r, "cay_model_tokens_total"),
		modelAttempts: histograms(r, "cay_model_attempt_seconds"),
		store:         histograms(r, "cay_store_seconds"), storeWait: histograms(r, "cay_store_wait_seconds"),
	}
	for _, c := range cay.Codes() {
		t.codes[c.Code] = true
	}
	// Two of the classic memory metrics are one by OpenMetrics' rules, and a
	// strict reader refuses the page.
	runtime := collectors.NewGoCollector(collectors.WithGoCollectorMemStatsMetricsDisabled(), collectors.WithGoCollectorRuntimeMetrics(collectors.MetricsMemory))
	r.MustRegister(runtime, collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	var err error
	t.traces, err = openTraces(ctx, env, log)
	return t, err
}

// Close sends the spans that are left.
func (t *Telemetry) Close() error {
	if t.traces == nil {
		return nil
	}
	return t.traces.close()
}

// Handler serves the metrics page, at /metrics alone.
func (t *Telemetry) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(t.registry, promhttp.HandlerOpts{
		ErrorLog: slog.NewLogLogger(t.log.Handler(), slog.LevelWarn), EnableOpenMetrics: true,
	}))
	return mux
}

// Arrived implements trail.Watcher.
func (t *Telemetry) Arrived(ctx context.Context, r *http.Request, of *trail.Request) context.Context {
	if t.traces != nil {
		return t.traces.arrived(ctx, r, of)
	}
	return ctx
}

// Answered implements trail.Watcher.
func (t *Telemetry) Answered(ctx context.Context, r *http.Request, of *trail.Request, a trail.Answer) {
	if t.traces != nil {
		t.traces.answered(ctx, r, of, a)
	}
	t.failed(of, a.Status)
	switch of.Face {
	case trail.Agent, trail.Interpreter, trail.Port:
		t.proxied.WithLabelValues(string(of.Face), classOf(a.Status)).Inc()
		t.proxyIn.WithLabelValues(string(of.Face)).Observe(a.Head.Seconds())
	default:
		route, method := routeOf(of), methodOf(r.Method)
		t.requests.WithLabelValues(route, method, statusOf(a.Status)).Inc()
		t.requestTime.WithLabelValues(route, method).Observe(a.Took.Seconds())
	}
	level := slog.LevelDebug
	if of.Face == trail.REST && of.Team != "" && of.Chosen() { // a client that chose an id looks for it
		level = slog.LevelInfo
	}
	t.log.LogAttrs(ctx, level, "answered", slog.String("face", string(of.Face)), slog.String("method", methodOf(r.Method)),
		slog.String("route", of.Route), slog.String("team", string(of.Team)), slog.Int("status", a.Status),
		slog.Bool("whole", a.Whole), slog.Duration("took", a.Took))
}

// failed counts a request that was refused or failed.
func (t *Telemetry) failed(of *trail.Request, status int) {
	if status == http.StatusUnauthorized || of.Face != trail.REST && of.Code == string(cay.Denied) {
		t.refused.WithLabelValues(string(of.Face)).Inc()
	}
	if of.Code == "" {
		return
	}
	code := of.Code
	if !t.codes[code] && !t.kinds[code] {
		code = "other"
	}
	t.errors.WithLabelValues(code).Inc()
	if reason := reasons[code]; reason != "" {
		t.refusals.WithLabelValues(reason).Inc()
	}
}

// reasons are the codes of refusals for which a team, or all, had their fill.
var reasons = map[string]string{
	cay.CodeRateLimit: "rate", cay.CodeLoginRate: "rate",
	cay.CodeTeamLimit: "limit", cay.CodeBuildLimit: "limit", cay.CodeStreamLimit: "limit", cay.CodeWebhookLimit: "limit",
	cay.CodeBudget: "budget",
}

// SSHRefused counts a caller of the SSH server that was not let in.
func (t *Telemetry) SSHRefused() { t.refused.WithLabelValues("ssh").Inc() }

// Begin implements trail.Watcher.
func (t *Telemetry) Begin(ctx context.Context, what trail.Operation) (context.Context, func(error)) {
	began := time.Now()
	end := func(error) {}
	if t.traces != nil {
		ctx, end = t.traces.begin(ctx, what)
	}
	return ctx, func(err error) {
		end(err)
		result, took := resultOf(err), time.Since(began).Seconds()
		switch what {
		case trail.Build:
			t.builds.WithLabelValues(result).Observe(took)
			return
		case trail.Deliver:
			if result != "ok" && result != "canceled" {
				result = "failed"
			}
			t.deliveries.WithLabelValues(result).Observe(took)
			return
		}
		t.operations.WithLabelValues(string(what), result).Observe(took)
		if what == trail.Create && err != nil {
			t.unmade.add(result)
		}
	}
}

// Took is told of an operation of the records.
func (t *Telemetry) Took(operation string, waited, took time.Duration) {
	t.store.WithLabelValues(operation).Observe(took.Seconds())
	if waited >= 0 {
		t.storeWait.WithLabelValues().Observe(waited.Seconds())
	}
}

// resultOf is an operation's outcome as a label.
func resultOf(err error) string {
	switch {
	case err == nil:
		return "ok"
	case errors.Is(err, context.Canceled):
		return "canceled"
	}
	return string(cay.KindOf(err))
}

// routeOf is a request's route as a label.
func routeOf(of *trail.Request) string {
	switch {
	case of.Face == trail.Operator:
		return "operator"
	case of.Route == "":
		return "none"
	}
	return of.Route
}

// methodOf is a request's method as a label.
func methodOf(method string) string {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions:
		return method
	}
	return "other"
}

// statusOf is an answer's status as a label: those of this server's own faces
// are few.
func statusOf(status int) string {
	switch {
	case status == 0:
		return "broken"
	case status < 100 || status > 599:
		return "other"
	}
	return strconv.Itoa(status)
}

// classOf is the class of a status as a label: a guest may answer with any.
func classOf(status int) string {
	switch {
	case status == 0:
		return "broken"
	case status < 100 || status > 599:
		return "other"
	}
	return strconv.Itoa(status/100) + "xx"
}

func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
