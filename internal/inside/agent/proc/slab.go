package proc

import (
	"sync"
	"sync/atomic"
)

// slab is memory that an output is read into and that events then point into.
// Big ones are used again when the last event of theirs was sent: a process
// that writes gigabytes would otherwise keep the collector busy, which costs
// more than moving the bytes. An event without a taker leaves its slab to
// the collector, which is as good.
type slab struct {
	b    []byte
	refs atomic.Int32
}

var slabs = sync.Pool{New: func() any { return &slab{b: make([]byte, burst)} }}

// newSlab returns a slab of size bytes, which its caller holds.
func newSlab(size int) *slab {
	s := &slab{}
	if size == burst {
		s = slabs.Get().(*slab)
	} else {
		s.b = make([]byte, size)
	}
	s.refs.Store(1)
	return s
}

// hold keeps the memory for one more; nil is memory without an owner.
func (s *slab) hold() {
	if s != nil {
		s.refs.Add(1)
	}
}

// release gives up what hold or newSlab gave.
func (s *slab) release() {
	if s != nil && s.refs.Add(-1) == 0 && len(s.b) == burst {
		slabs.Put(s)
	}
}
