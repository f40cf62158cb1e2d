package replica

import (
	"errors"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"

	"github.com/cay-run/cay/internal/blob"
)

// Objects are packed with zstd, which makes them smallest, or with S2, which takes a third of the
// processor and makes memory a third larger. Bytes of S2 come after a byte that no frame of zstd begins
// with.

const (
	quickMark = 1
	// quickFormat is that of a snapshot's record whose pieces may be packed with S2.
	quickFormat = 3
)

// codec is a way to pack.
type codec struct {
	// pack packs plain into room, which has packRoom bytes and one more, or into memory of its own.
	pack func(room, plain []byte) []byte
	cost time.Duration // of processors, beside S2
}

var (
	small = codec{func(room, plain []byte) []byte { return packer.EncodeAll(plain, room[:0]) }, 3}
	quick = codec{func(room, plain []byte) []byte {
		room[0] = quickMark
		return room[:1+len(s2.Encode(room[1:], plain))]
	}, 1}
)

// The codec of zstd is safe for many callers at once.
var (
	packer, _   = zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(mostAtOnce))
	unpacker, _ = zstd.NewReader(nil, zstd.WithDecoderMaxMemory(blob.MaxObject), zstd.WithDecoderConcurrency(mostAtOnce))
)

// unpacked is what either codec packed.
func unpacked(packed []byte) ([]byte, error) {
	if len(packed) == 0 || packed[0] != quickMark {
		return unpacker.DecodeAll(packed, nil)
	}
	packed = packed[1:]
	n, err := s2.DecodedLen(packed)
	if err != nil || n > blob.MaxObject {
		return nil, errors.Join(errPacking, err)
	}
	return s2.Decode(make([]byte, n), packed)
}

// effort tells what holds up a copy, the processors or the link, by the time that both have taken of
// its pieces. Both take longer on a busy machine, so that such a one is not taken for a slow link.
type effort struct {
	processors int64
	packing    atomic.Int64 // nanoseconds, as if S2 had packed all
	sending    atomic.Int64
}

func newEffort() *effort { return &effort{processors: int64(runtime.GOMAXPROCS(0))} }

// linkShare is how much longer a piece is on its way than S2 packs it, times the processors, where
// zstd is the quicker: mostAtOnce pieces share the link, and all work on a piece that zstd packs takes
// five times as long as S2, shared by the processors.
const linkShare = 5 * mostAtOnce

// codec chooses how the next piece is packed.
func (e *effort) codec() codec {
	if e.sending.Load()*e.processors > linkShare*e.packing.Load() {
		return small
	}
	return quick
}

// took counts a piece that the bucket has.
func (e *effort) took(c codec, packing, sending time.Duration) {
	e.packing.Add(int64(packing / c.cost))
	e.sending.Add(int64(sending))
}
