package egress

import (
	"sync"
	"sync/atomic"
	"testing"
)

// Work that arrives while the proxy closes either ends before Close returns or
// does not begin.
func TestCloseWaitsForWhatBegan(t *testing.T) {
	for range 200 {
		p := New(Config{})
		var underWay atomic.Int32
		var callers sync.WaitGroup
		for range 8 {
			callers.Go(func() {
				for p.start(func() { underWay.Add(1); underWay.Add(-1) }) {
				}
			})
		}
		p.Close()
		if n := underWay.Load(); n != 0 {
			t.Fatalf("%d are at work after Close", n)
		}
		callers.Wait()
		if p.start(func() { t.Error("it began") }) {
			t.Error("a closed proxy takes work")
		}
	}
}
