package server_test

import (
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cay-run/cay/internal/server/servertest"
)

// BenchmarkRequests asks a whole server over one connection, and reports the
// median of each kind of request beside the mean.
func BenchmarkRequests(b *testing.B) {
	w := servertest.New(b)
	w.Config.PoolMemory, w.Config.LogLevel = "1024", "info"
	w.Start()
	defer func() { // the pool outlives the server
		w.Stop()
		if err := w.Down(); err != nil {
			b.Error(err)
		}
	}()
	ask := func(method, path, body string) string {
		r, err := http.NewRequestWithContext(b.Context(), method, w.URL()+path, strings.NewReader(body))
		if err != nil {
			b.Fatal(err)
		}
		r.Header.Set("X-API-Key", w.Key)
		r.Header.Set("Content-Type", "application/json")
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			b.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode >= 300 {
			b.Fatal(resp.StatusCode, string(text), err)
		}
		return string(text)
	}
	sandbox := func() string {
		_, rest, _ := strings.Cut(ask("POST", "/sandboxes", `{"templateID":"base"}`), `"sandboxID":"`)
		id, _, _ := strings.Cut(rest, `"`)
		return id
	}
	id := sandbox()
	median := func(b *testing.B, do func()) {
		var took []time.Duration
		for b.Loop() {
			began := time.Now()
			do()
			took = append(took, time.Since(began))
		}
		slices.Sort(took)
		b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
	}
	b.Run("read", func(b *testing.B) { median(b, func() { ask("GET", "/sandboxes/"+id, "") }) })
	b.Run("create", func(b *testing.B) {
		median(b, func() {
			made := sandbox()
			b.StopTimer()
			ask("DELETE", "/sandboxes/"+made, "")
			b.StartTimer()
		})
	})
}
