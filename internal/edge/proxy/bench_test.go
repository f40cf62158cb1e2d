package proxy

import (
	"bytes"
	"io"
	"net/http"
	"testing"
)

// BenchmarkRequest is one request of 1 KB answered with 1 KB, from a client
// through the proxy to a sandbox's port, all in this process.
func BenchmarkRequest(b *testing.B) {
	w := newWorld(b)
	body := bytes.Repeat([]byte("x"), 1<<10)
	w.sandbox(b, "ibench", nil, map[int]http.Handler{8080: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = rw.Write(body)
	})})
	client := w.front.Client()
	b.ReportAllocs()
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		req, err := http.NewRequestWithContext(b.Context(), http.MethodPost, w.front.URL+"/", bytes.NewReader(body))
		if err != nil {
			b.Fatal(err)
		}
		req.Host = "8080-ibench.example.com"
		resp, err := client.Do(req)
		if err != nil {
			b.Fatal(err)
		}
		if n, err := io.Copy(io.Discard, resp.Body); err != nil || n != int64(len(body)) {
			b.Fatalf("%d bytes with status %d, %v", n, resp.StatusCode, err)
		}
		resp.Body.Close()
	}
}

// BenchmarkRoute is the decision alone: which sandbox and port a request is for.
func BenchmarkRoute(b *testing.B) {
	for name, host := range map[string]string{"sandbox": "8080-ibench.example.com", "rest": "api.example.com"} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				parseHost(host)
			}
		})
	}
}
