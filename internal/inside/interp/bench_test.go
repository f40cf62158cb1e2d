package interp

import "testing"

// BenchmarkRunCode is what a client waits for a result of Python: the request,
// the kernel's messages, the stream of the answer.
func BenchmarkRunCode(b *testing.B) {
	w := newWorld(b, true)
	b.ReportAllocs()
	for b.Loop() {
		if x := w.run(b, "1 + 1"); x.text() != "2" {
			b.Fatalf("got %v", x.events)
		}
	}
}
