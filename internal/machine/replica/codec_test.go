package replica

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"

	"github.com/cay-run/cay/internal/blob"
)

// TestCodecs: bytes of either codec are unpacked without a word of which it was, and no others are.
func TestCodecs(t *testing.T) {
	k := keys(newKey())
	for name, plain := range map[string][]byte{"words": words(snapshotPiece), "noise": noise(1, snapshotPiece), "zeros": make([]byte, 5000), "a byte": {7}, "nothing": {}} {
		for as, c := range map[string]codec{"small": small, "quick": quick} {
			got, err := k.open("name", k.sealAs("name", plain, c))
			if err != nil || !bytes.Equal(got, plain) {
				t.Errorf("%s, %s: %d bytes of %d, %v", name, as, len(got), len(plain), err)
			}
		}
	}
	packed := s2.Encode(nil, words(5000))
	for name, bad := range map[string][]byte{
		"nothing":     {},
		"only a mark": {quickMark},
		"no mark":     packed,
		"cut":         append([]byte{quickMark}, packed[:len(packed)-1]...),
		"another":     append([]byte{2}, packed...),
		"4 GiB":       {quickMark, 0xff, 0xff, 0xff, 0xff, 0x0f, 0},
	} {
		sealed := k.cipher("name").Seal(nil, nil, bad, []byte("name"))
		if got, err := k.open("name", sealed); name != "nothing" && !errors.Is(err, blob.ErrDamaged) || len(got) > 0 {
			t.Errorf("%s: %d bytes, %v", name, len(got), err)
		}
	}
}

// TestMark: no frame of zstd begins as bytes of S2 do.
func TestMark(t *testing.T) {
	for _, plain := range [][]byte{words(5000), noise(1, 300), {7}} {
		for level := zstd.SpeedFastest; level <= zstd.SpeedBestCompression; level++ {
			e, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(level))
			noError(t, err)
			if packed := e.EncodeAll(plain, nil); packed[0] == quickMark {
				t.Errorf("level %v begins with %x", level, packed[0])
			}
		}
	}
}

// TestEffort: pieces are packed with S2 where processors hold a copy up, on a busy machine too, and
// with zstd where the link does.
func TestEffort(t *testing.T) {
	const ms = time.Millisecond
	for name, tt := range map[string]struct {
		processors       int64
		packing, sending time.Duration // of a piece, with S2
		small            bool
	}{
		"nothing is known":                    {2, 0, 0, false},
		"two processors, 1 GB a second":       {2, 2 * ms, 5 * ms, false},
		"two processors, 100 MB a second":     {2, 2 * ms, 50 * ms, false},
		"two processors, 25 MB a second":      {2, 2 * ms, 200 * ms, true},
		"the same, ten times as busy":         {2, 20 * ms, 300 * ms, false},
		"many processors, 100 MB a second":    {16, 2 * ms, 50 * ms, true},
		"many processors, ten times as busy":  {16, 20 * ms, 70 * ms, false},
		"many processors, 2 GB a second":      {16, 2 * ms, 3 * ms, false},
		"many processors, a bucket far away":  {16, 2 * ms, 80 * ms, true},
		"one processor, a bucket in the town": {1, 2 * ms, 80 * ms, false},
	} {
		e := &effort{processors: tt.processors}
		for range 10 { // it stays so, though zstd takes longer
			c := e.codec()
			e.took(c, tt.packing*c.cost, tt.sending)
		}
		if got := e.codec().cost == small.cost; got != tt.small {
			t.Errorf("%s: small %v", name, got)
		}
	}
}

// TestQuickPieces: a copy that is waited for is packed with S2 and its record says that pieces may be;
// another machine reads it, and one that nothing waits for is as before.
func TestQuickPieces(t *testing.T) {
	w := newWorld(t)
	one, other := w.machine("one"), w.machine("other")
	noError(t, one.Take(t.Context()))
	packed := func(path string) []byte {
		name := path[strings.Index(path, snapshots):]
		sealed, err := one.bucket.Get(t.Context(), name)
		noError(t, err)
		out, err := one.keys.cipher(name).Open(nil, nil, sealed, []byte(name))
		noError(t, err)
		return out
	}
	for _, waits := range []bool{false, true} {
		tmp, s := one.writes(t, 1)
		if waits {
			one.Ahead(s.ID, tmp)
			one.sent(s.ID)
		}
		quicks := 0
		for path := range w.written(s.ID) {
			if packed(path)[0] == quickMark {
				quicks++
			}
		}
		if (quicks > 0) != waits {
			t.Errorf("waited for %v: %d pieces are packed with S2", waits, quicks)
		}
		noError(t, one.dir.Commit(tmp, s))
		noError(t, one.Push(t.Context(), s.ID))
		at := snapshots + string(s.ID) + "/"
		in, err := one.record(t.Context(), at)
		noError(t, err)
		if in.Format != map[bool]int{false: format, true: quickFormat}[waits] {
			t.Errorf("waited for %v: the record has format %d", waits, in.Format)
		}
		noError(t, other.Fetch(t.Context(), s.ID))
		same(t, one, other, s)
		// A file more: what is there is not sent again, and the record goes on to say so.
		one.grows(t, s.ID, "more/file", "more")
		noError(t, one.Push(t.Context(), s.ID))
		more, err := one.record(t.Context(), at)
		noError(t, err)
		if more.Format != in.Format || len(more.Files) != len(in.Files)+1 {
			t.Errorf("waited for %v: the record has format %d and %d files", waits, more.Format, len(more.Files))
		}
	}
}
