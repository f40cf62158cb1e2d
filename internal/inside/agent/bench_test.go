package agent_test

import (
	"bytes"
	"net/http"
	"testing"
)

// BenchmarkStart is a process from the request to its end event: the SDKs'
// commands.run without a shell's start files.
func BenchmarkStart(b *testing.B) {
	w := newWorld(b)
	c := w.client()
	b.ReportAllocs()
	for b.Loop() {
		if p := w.start(c, sh("exit 0")).wait(); p.end.GetExitCode() != 0 {
			b.Fatalf("ended with %v", p.end)
		}
	}
}

// BenchmarkOutput is a megabyte of output through one stream.
func BenchmarkOutput(b *testing.B) {
	w := newWorld(b)
	c := w.client()
	b.SetBytes(1 << 20)
	for b.Loop() {
		if p := w.start(c, sh("head -c 1048576 /dev/zero")).wait(); p.stdout.Len() != 1<<20 {
			b.Fatalf("%d bytes arrived", p.stdout.Len())
		}
	}
}

// BenchmarkUpload is a file of a megabyte by one request.
func BenchmarkUpload(b *testing.B) {
	w := newWorld(b)
	client := transport(b, false)
	body := bytes.Repeat([]byte("x"), 1<<20)
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		req, err := http.NewRequestWithContext(b.Context(), http.MethodPost, w.url+"/files?path=bench&username=user", bytes.NewReader(body))
		if err != nil {
			b.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/octet-stream")
		resp, err := client.Do(req)
		if err != nil {
			b.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			b.Fatalf("status %d", resp.StatusCode)
		}
	}
}
