package telemetry

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/go-logr/logr"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/trail"
)

// traces makes spans of requests and operations.
type traces struct {
	provider *sdk.TracerProvider
	tracer   trace.Tracer
	within   time.Duration // that a server which ends waits for a collector
}

const sendWithin = 3 * time.Second

// openTraces returns nil where traces are off. All OTEL_* variables are read by
// OpenTelemetry itself; these decide whether it is asked.
func openTraces(ctx context.Context, env func(string) string, log *slog.Logger) (*traces, error) {
	const endpoint = "OTEL_EXPORTER_OTLP_ENDPOINT"
	if env(endpoint) == "" && env("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") == "" || env("OTEL_SDK_DISABLED") == "true" || env("OTEL_TRACES_EXPORTER") == "none" {
		return nil, nil
	}
	for _, name := range []string{"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"} {
		if p := env(name); p != "" && p != "http/protobuf" {
			return nil, cay.Errorf(cay.Invalid, "%s: traces are sent by http/protobuf alone, not by %.40q", name, p).
				WithHint("give the collector's HTTP port, usually 4318, in %s", endpoint)
		}
	}
	exporter, err := otlptracehttp.New(ctx)
	if err != nil {
		return nil, cay.Wrap(cay.Invalid, err, "%s: traces cannot be sent there", endpoint)
	}
	about, err := resource.New(ctx, resource.WithTelemetrySDK(), resource.WithHost(),
		resource.WithAttributes(attribute.String("service.name", "cay"), attribute.String("service.version", cay.Version)),
		resource.WithFromEnv()) // which wins
	if err != nil {
		log.Warn("some of OTEL_RESOURCE_ATTRIBUTES cannot be read", "err", err)
	}
	otel.SetLogger(logr.FromSlogHandler(log.Handler()))
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { log.Warn("traces cannot be sent", "err", err) }))
	provider := sdk.NewTracerProvider(sdk.WithBatcher(exporter), sdk.WithResource(about), sdk.WithIDGenerator(ids{}))
	return &traces{provider: provider, tracer: provider.Tracer("github.com/cay-run/cay"), within: sendWithin}, nil
}

func (t *traces) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), t.within)
	defer cancel()
	if err := t.provider.Shutdown(ctx); err != nil {
		return cay.Wrap(cay.Unavailable, err, "the last traces could not be sent")
	}
	return nil
}

// ids makes the ids of spans. A request's trace has the id that the request was
// answered with.
type ids struct{}

func (g ids) NewIDs(ctx context.Context) (trace.TraceID, trace.SpanID) {
	var id trace.TraceID
	if of := trail.Of(ctx); of != nil {
		if id, err := trace.TraceIDFromHex(of.Trace); err == nil {
			return id, g.NewSpanID(ctx, id)
		}
	}
	for !id.IsValid() {
		for i := range id {
			id[i] = byte(rand.Uint32())
		}
	}
	return id, g.NewSpanID(ctx, id)
}

func (ids) NewSpanID(context.Context, trace.TraceID) (id trace.SpanID) {
	for !id.IsValid() {
		for i := range id {
			id[i] = byte(rand.Uint32())
		}
	}
	return id
}

// arrived begins a request's span. Nothing in it opens anything: no query, which
// has the signatures of links, and no header with a key.
func (t *traces) arrived(ctx context.Context, r *http.Request, of *trail.Request) context.Context {
	theirs := propagation.TraceContext{}.Extract(ctx, propagation.HeaderCarrier(r.Header))
	if trace.SpanContextFromContext(theirs).TraceID().String() == of.Trace {
		ctx = theirs
	}
	ctx, _ = t.tracer.Start(ctx, methodOf(r.Method), trace.WithSpanKind(trace.SpanKindServer), trace.WithAttributes(
		attribute.String("http.request.method", methodOf(r.Method)),
		attribute.String("client.address", of.Address), attribute.String("user_agent.original", of.Agent),
		attribute.String("cay.request", of.Request),
	))
	return ctx
}

func (t *traces) answered(ctx context.Context, r *http.Request, of *trail.Request, a trail.Answer) {
	span := trace.SpanFromContext(ctx)
	if span.IsRecording() {
		name := string(of.Face)
		if of.Face == trail.REST {
			name = routeOf(of)
			span.SetAttributes(attribute.String("http.route", name))
		}
		span.SetName(methodOf(r.Method) + " " + name)
		span.SetAttributes(attribute.String("cay.face", string(of.Face)))
		for key, value := range map[string]string{"cay.team": string(of.Team), "cay.sandbox": string(of.Sandbox), "error.type": of.Code} {
			if value != "" {
				span.SetAttributes(attribute.String(key, value))
			}
		}
		if a.Status != 0 {
			span.SetAttributes(attribute.Int("http.response.status_code", a.Status))
		}
		if a.Status >= 500 || !a.Whole {
			span.SetStatus(codes.Error, "")
		}
	}
	span.End()
}

// begin begins an operation's span.
func (t *traces) begin(ctx context.Context, what trail.Operation) (context.Context, func(error)) {
	ctx, span := t.tracer.Start(ctx, string(what))
	return ctx, func(err error) {
		if err != nil {
			span.SetStatus(codes.Error, err.Error())
			span.SetAttributes(attribute.String("error.type", resultOf(err)))
		}
		span.End()
	}
}
