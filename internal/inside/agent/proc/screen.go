package proc

import "sync/atomic"

const (
	screenMin = 4 << 10
	// screenMax bounds what is kept of one terminal.
	screenMax = 256 << 10
	// screensMax bounds what is kept of all terminals of a sandbox together: a
	// terminal for which none of it is left keeps less, or nothing.
	screensMax = 8 << 20
)

// screen keeps the newest output of a terminal for viewers that come later. Of
// older output it knows the modes that were set, and whether the rest of a sequence
// follows. Its owner serialises calls.
type screen struct {
	room *atomic.Int64 // bytes that all screens together may still take
	ring []byte
	at   int // where the oldest byte is
	n    int // bytes that are kept
	past vt  // has read everything before them
	over bool
}

func newScreen(room *atomic.Int64) *screen { return &screen{room: room} }

// write keeps b.
func (s *screen) write(b []byte) {
	if s.over {
		return
	}
	for s.n+len(b) > len(s.ring) && s.grow() {
	}
	if len(s.ring) == 0 {
		s.past.read(b, nil)
		return
	}
	if more := len(b) - len(s.ring); more > 0 { // the ring has only the end of it
		s.drop(s.n)
		s.past.read(b[:more], nil)
		b = b[more:]
	}
	s.drop(s.n + len(b) - len(s.ring))
	end := (s.at + s.n) % len(s.ring)
	k := copy(s.ring[end:], b)
	copy(s.ring, b[k:])
	s.n += len(b)
}

// drop gives the oldest bytes up.
func (s *screen) drop(k int) {
	if k <= 0 {
		return
	}
	one := s.ring[s.at:min(s.at+k, len(s.ring))]
	s.past.read(one, nil)
	s.past.read(s.ring[:k-len(one)], nil)
	s.at = (s.at + k) % len(s.ring)
	s.n -= k
}

// grow doubles the ring, within its bound and that of all.
func (s *screen) grow() bool {
	size := max(screenMin, 2*len(s.ring))
	more := int64(size - len(s.ring))
	if size > screenMax {
		return false
	}
	if s.room.Add(-more) < 0 {
		s.room.Add(more)
		return false
	}
	ring := make([]byte, size)
	s.copyTo(ring)
	s.ring, s.at = ring, 0
	return true
}

func (s *screen) copyTo(to []byte) {
	k := copy(to, s.ring[s.at:min(s.at+s.n, len(s.ring))])
	copy(to[k:], s.ring[:s.n-k])
}

// replay is what a terminal shows that reads it first: the modes that are set and
// the output that is kept, from the first whole character or sequence on. Nothing
// in it asks a terminal for an answer, which the process would read as typed, and
// nothing reaches the viewer's clipboard.
func (s *screen) replay() []byte {
	kept := make([]byte, s.n)
	s.copyTo(kept)
	past := s.past.clone()
	// The rest of a sequence or a character that began before is passed over.
	skip := past.settle(kept)
	out := past.modes.restore(make([]byte, 0, len(kept)+64))
	now := vt{}
	out = now.read(kept[skip:], out)
	return append(out, now.rest()...)
}

// free gives the memory back; later output is not kept.
func (s *screen) free() {
	s.room.Add(int64(len(s.ring)))
	s.ring, s.at, s.n, s.past, s.over = nil, 0, 0, vt{}, true
}
