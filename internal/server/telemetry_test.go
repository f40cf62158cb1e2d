package server_test

import (
	"context"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	spans "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/cay-run/cay/client"
	"github.com/cay-run/cay/internal/server/servertest"
)

// TestMetricsOfAServer reads the page of a whole server, and looks for what it
// was asked to do.
func TestMetricsOfAServer(t *testing.T) {
	w := servertest.New(t)
	w.Config.MetricsListen = "127.0.0.1:0"
	w.Start()
	c := w.Client()
	for range 2 {
		s, err := c.Create(t.Context(), client.CreateOptions{Template: "base", Timeout: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Kill(t.Context(), s.ID); err != nil {
			t.Fatal(err)
		}
	}
	s, err := c.Create(t.Context(), client.CreateOptions{Template: "base", Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Pause(t.Context(), s.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := w.ClientOf("e2b_" + strings.Repeat("0", 40)).List(t.Context()); err == nil {
		t.Fatal("a wrong key lists")
	}
	budget, err := http.NewRequestWithContext(t.Context(), "POST", w.URL()+"/cay/v1/budgets", strings.NewReader(`{"meter":"creates","limit":"4","period":"month"}`))
	if err != nil {
		t.Fatal(err)
	}
	budget.Header.Set("X-API-Key", w.Key)
	budget.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(budget)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	question(t, c, client.NewApproval{})
	page := get(t, w.MetricsURL())
	parser := expfmt.NewTextParser(model.LegacyValidation)
	if _, err := parser.TextToMetricFamilies(strings.NewReader(page)); err != nil {
		t.Error(err)
	}
	for _, want := range []string{
		`cay_requests_total{method="POST",route="/v2/sandboxes",status="201"} 3`,
		`cay_requests_total{method="DELETE",route="/sandboxes/{sandboxID}",status="204"} 2`,
		`cay_operation_seconds_count{operation="create",result="ok"} 3`,
		`cay_operation_seconds_count{operation="kill",result="ok"} 2`,
		`cay_operation_seconds_count{operation="pause",result="ok"} 1`,
		`cay_operation_seconds_count{operation="node.create",result="ok"} `,
		`cay_operation_seconds_count{operation="node.save",result="ok"} 1`,
		`cay_operation_seconds_count{operation="agent.init",result="ok"} `,
		`cay_sandboxes{state="paused",team="`,
		`cay_auth_failures_total{face="rest"} 1`,
		`cay_store_seconds_count{operation="recordRunning"} 3`,
		`cay_store_seconds_count{operation="UpdateSandbox"} `,
		`cay_store_wait_seconds_count `,
		`cay_host_memory_bytes `,
		`cay_budget_used_ratio{team="`,
		`cay_queue_depth{queue="approvals"} 1`,
		`cay_queue_depth{queue="runs"} 0`,
		`cay_scrape_failures_total 0`,
	} {
		if !strings.Contains(page, "\n"+want) {
			t.Errorf("the page lacks %s", want)
		}
	}
	if strings.Contains(page, s.ID) {
		t.Error("the page has the id of a sandbox")
	}
	if t.Failed() {
		for line := range strings.Lines(page) {
			if strings.HasPrefix(line, "cay_") && !strings.Contains(line, "_bucket") {
				t.Log(strings.TrimSpace(line))
			}
		}
	}
	if !regexp.MustCompile(`\ncay_budget_used_ratio\{team="[^"]+"\} 0\.75\n`).MatchString(page) {
		t.Error("three of four creates are not three quarters of the budget")
	}
	resp, err = http.Get(w.URL() + "/metrics") // the one port, which tenants reach
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusNotFound {
		t.Errorf("/metrics on the one port answers %d", resp.StatusCode)
	}
}

// TestTraceOfACreate has a collector get the spans of one create: one trace
// through the edge, the use case, the node and the agent.
func TestTraceOfACreate(t *testing.T) {
	got := make(chan *spans.Span, 1000)
	to := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, err := io.ReadAll(r.Body)
		var in collector.ExportTraceServiceRequest
		if err = errors.Join(err, proto.Unmarshal(text, &in)); err != nil {
			t.Error(err)
		}
		for _, of := range in.ResourceSpans {
			for _, scope := range of.ScopeSpans {
				for _, s := range scope.Spans {
					got <- s
				}
			}
		}
	}))
	defer to.Close()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", to.URL)
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
	w := servertest.Start(t)
	r, err := http.NewRequestWithContext(t.Context(), "POST", w.URL()+"/sandboxes", strings.NewReader(`{"templateID":"base"}`))
	if err != nil {
		t.Fatal(err)
	}
	const trace, parent = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
	r.Header.Set("X-API-Key", w.Key)
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Traceparent", "00-"+trace+"-"+parent+"-01")
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusCreated || resp.Header.Get("X-E2B-Trace-ID") != trace {
		t.Fatalf("%d %v", resp.StatusCode, resp.Header)
	}
	named := map[string]*spans.Span{}
	find := func(name string) *spans.Span {
		for late := time.After(time.Minute); named[name] == nil; {
			select {
			case s := <-got:
				if hex.EncodeToString(s.TraceId) == trace {
					named[s.Name] = s
				}
			case <-late:
				t.Fatalf("the trace has no %s: %v", name, named)
			}
		}
		return named[name]
	}
	above := parent
	for _, name := range []string{"POST /sandboxes", "create", "node.create", "agent.init"} {
		s := find(name)
		if hex.EncodeToString(s.ParentSpanId) != above {
			t.Errorf("%s has another parent than the one before it: %v", name, s)
		}
		above = hex.EncodeToString(s.SpanId)
	}
}

func get(t *testing.T, url string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, "GET", url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %d %v", url, resp.StatusCode, err)
	}
	return string(text)
}
