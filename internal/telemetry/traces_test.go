package telemetry

import (
	"compress/gzip"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	spans "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/trail"
)

// receiver is a collector that speaks OTLP over HTTP.
type receiver struct {
	*httptest.Server
	mu     sync.Mutex
	spans  []*spans.Span
	about  map[string]string
	header http.Header
}

func newReceiver(t *testing.T) *receiver {
	r := &receiver{about: map[string]string{}}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		var body io.Reader = req.Body
		if req.Header.Get("Content-Encoding") == "gzip" {
			var err error
			if body, err = gzip.NewReader(req.Body); err != nil {
				t.Error(err)
				return
			}
		}
		text, err := io.ReadAll(body)
		var in collector.ExportTraceServiceRequest
		if err != nil || req.URL.Path != "/v1/traces" || proto.Unmarshal(text, &in) != nil {
			t.Errorf("%s %s: %v", req.Method, req.URL, err)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.header = req.Header
		for _, of := range in.ResourceSpans {
			for _, a := range of.Resource.Attributes {
				r.about[a.Key] = a.Value.GetStringValue()
			}
			for _, scope := range of.ScopeSpans {
				r.spans = append(r.spans, scope.Spans...)
			}
		}
		w.Header().Set("Content-Type", "application/x-protobuf")
	}))
	t.Cleanup(r.Close)
	return r
}

func attributes(s *spans.Span) map[string]string {
	out := map[string]string{}
	for _, a := range s.Attributes {
		out[a.Key] = a.Value.GetStringValue()
	}
	return out
}

// environment sets variables for OpenTelemetry, which reads them itself.
func environment(t *testing.T, vars map[string]string) func(string) string {
	for name, value := range vars {
		t.Setenv(name, value)
	}
	return func(name string) string { return vars[name] }
}

func TestSpans(t *testing.T) {
	to := newReceiver(t)
	env := environment(t, map[string]string{
		"OTEL_EXPORTER_OTLP_ENDPOINT": to.URL, "OTEL_EXPORTER_OTLP_HEADERS": "authorization=Bearer%20x",
		"OTEL_EXPORTER_OTLP_COMPRESSION": "gzip", "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=test",
	})
	of, err := New(t.Context(), env, nil)
	if err != nil {
		t.Fatal(err)
	}
	of.traces.within = time.Minute
	const parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	handler := trail.Follow(trail.REST, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		followed := trail.Of(r.Context())
		followed.Route, followed.Team = "/sandboxes", "team1"
		ctx, done := trail.Begin(r.Context(), trail.Create)
		_, inner := trail.Begin(context.WithoutCancel(ctx), trail.NodeCreate)
		inner(cay.Errorf(cay.Exhausted, "no room"))
		done(nil)
		w.WriteHeader(http.StatusCreated)
	}))
	answers := map[string]http.Header{}
	for _, given := range []string{parent, ""} {
		r := httptest.NewRequest("POST", "/sandboxes?signature=verysecret", nil)
		r.Header.Set("X-API-Key", "e2b_verysecret")
		if given != "" {
			r.Header.Set("Traceparent", given)
		}
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r.WithContext(trail.Watch(r.Context(), of)))
		answers[given] = w.Header()
	}
	if err := of.Close(); err != nil {
		t.Fatal(err)
	}

	if len(to.spans) != 6 {
		t.Fatalf("%d spans: %v", len(to.spans), to.spans)
	}
	traces := map[string]map[string]*spans.Span{}
	for _, s := range to.spans {
		id := hexOf(s.TraceId)
		if traces[id] == nil {
			traces[id] = map[string]*spans.Span{}
		}
		traces[id][s.Name] = s
		if strings.Contains(s.String(), "verysecret") {
			t.Errorf("a secret is in %v", s)
		}
	}
	for given, header := range answers {
		trace := traces[header.Get("X-E2B-Trace-ID")]
		root, use, node := trace["POST /sandboxes"], trace["create"], trace["node.create"]
		if root == nil || use == nil || node == nil {
			t.Fatalf("with traceparent %q, answered with %v, the trace is %v", given, header, trace)
		}
		if hexOf(use.ParentSpanId) != hexOf(root.SpanId) || hexOf(node.ParentSpanId) != hexOf(use.SpanId) {
			t.Errorf("the spans are not linked: %v", trace)
		}
		if want := map[string]string{parent: "00f067aa0ba902b7"}[given]; hexOf(root.ParentSpanId) != want {
			t.Errorf("the request's parent is %s, want %q", hexOf(root.ParentSpanId), want)
		}
		if root.Kind != spans.Span_SPAN_KIND_SERVER || attributes(root)["cay.team"] != "team1" || attributes(root)["cay.request"] != header.Get("X-Request-ID") {
			t.Errorf("the request's span is %v", root)
		}
		if node.Status.GetCode() != spans.Status_STATUS_CODE_ERROR || attributes(node)["error.type"] != "exhausted" {
			t.Errorf("the failed span is %v", node)
		}
	}
	if to.about["service.name"] != "cay" || to.about["deployment.environment.name"] != "test" || to.header.Get("Authorization") != "Bearer x" {
		t.Errorf("the variables have no effect: %v, %v", to.about, to.header)
	}
}

func hexOf(id []byte) string {
	const digits = "0123456789abcdef"
	var out strings.Builder
	for _, b := range id {
		out.WriteByte(digits[b>>4])
		out.WriteByte(digits[b&15])
	}
	return out.String()
}

func TestTracesAreOff(t *testing.T) {
	for _, vars := range []map[string]string{
		{},
		{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_SDK_DISABLED": "true"},
		{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_TRACES_EXPORTER": "none"},
	} {
		of, err := New(t.Context(), func(name string) string { return vars[name] }, nil)
		if err != nil || of.traces != nil {
			t.Errorf("%v: %v, %v", vars, of.traces, err)
		}
	}
	_, err := New(t.Context(), func(name string) string {
		return map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}[name]
	}, nil)
	if cay.KindOf(err) != cay.Invalid {
		t.Errorf("gRPC is %v", err)
	}
}

// TestDeafCollector ends a server whose collector never answers.
func TestDeafCollector(t *testing.T) {
	hang := make(chan struct{})
	deaf := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-hang }))
	defer deaf.Close()
	defer close(hang)
	of, err := New(t.Context(), environment(t, map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": deaf.URL}), nil)
	if err != nil {
		t.Fatal(err)
	}
	of.traces.within = time.Second
	for range 10_000 { // more than the queue holds: requests wait for none of them
		_, done := of.Begin(t.Context(), trail.Create)
		done(nil)
	}
	if err := of.Close(); cay.KindOf(err) != cay.Unavailable {
		t.Errorf("Close: %v", err)
	}
}
