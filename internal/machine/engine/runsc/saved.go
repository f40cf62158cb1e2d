package runsc

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"sort"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/cay-run/cay/internal/guest"
)

// This file reads gVisor's file checkpoints. Their parts are a manifest, a tar
// in which a file's body is its size and a list of segments, and the pages
// that the segments point into through an index. A hostile guest shaped their
// contents, so every number is checked.

// errFormat says that a checkpoint is not what this reader knows.
var errFormat = errors.New("unexpected format")

// savedManifest is one file system of a checkpoint, and its memory file.
type savedManifest struct {
	at                 string // where it is mounted
	tarStart, tarEnd   int64
	metaStart, metaEnd int64
	pagesStart         int64
	parts              int // of the two, those that were met
}

// parseManifest returns the file systems that a checkpoint of an instance holds:
// the root's first and, of one with Docker, that of its store.
func parseManifest(text []byte) ([]savedManifest, error) {
	const memoryFiles, tmpfs = 5, 6
	root, store := savedManifest{at: "/"}, savedManifest{at: guest.DockerStore}
	err := eachField(text, func(n protowire.Number, f field) error {
		if n != memoryFiles && n != tmpfs {
			return nil
		}
		inner, err := numbers(f.bytes)
		if err != nil {
			return err
		}
		at, err := mountOf(f.bytes)
		if err != nil {
			return err
		}
		m := &root
		switch at {
		case root.at:
		case store.at:
			m = &store
		default:
			return errFormat
		}
		m.parts++
		if n == tmpfs {
			m.tarStart, m.tarEnd = inner[2], inner[3]
		} else {
			m.metaStart, m.metaEnd, m.pagesStart = inner[2], inner[3], inner[4]
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	out := []savedManifest{root}
	if store.parts > 0 {
		out = append(out, store)
	}
	for _, m := range out {
		if m.parts != 2 || m.tarEnd < m.tarStart || m.metaEnd < m.metaStart || m.tarEnd == 0 || m.metaEnd == 0 {
			return nil, errFormat
		}
	}
	return out, nil
}

// mountOf reads where a part of a manifest is mounted.
func mountOf(text []byte) (at string, err error) {
	const resource, path = 1, 2
	err = eachField(text, func(n protowire.Number, f field) error {
		if n != resource {
			return nil
		}
		return eachField(f.bytes, func(n protowire.Number, f field) error {
			if n == path {
				at = string(f.bytes)
			}
			return nil
		})
	})
	return at, err
}

// extent is a part of the memory file that lies in the pages file.
type extent struct{ start, end, at int64 }

// parseIndex finds where the committed parts of the memory file were written:
// one after the other, in order.
func parseIndex(meta []byte, m savedManifest) ([]extent, error) {
	if m.metaEnd > int64(len(meta)) || m.metaEnd-m.metaStart < 8 {
		return nil, errFormat
	}
	meta = meta[m.metaStart:m.metaEnd]
	length := binary.LittleEndian.Uint64(meta)
	if length > uint64(len(meta)-8) {
		return nil, errFormat
	}
	const accounted = 3
	var index []extent
	at := m.pagesStart
	err := eachField(meta[8:8+length], func(n protowire.Number, f field) error {
		if n != accounted {
			return nil
		}
		v, err := numbers(f.bytes)
		if err != nil {
			return err
		}
		start, end, committed := v[1], v[2], v[5] != 0
		if !committed {
			return nil
		}
		if end < start || len(index) > 0 && start < index[len(index)-1].end || at > math.MaxInt64-(end-start) {
			return errFormat
		}
		index = append(index, extent{start, end, at})
		at += end - start
		return nil
	})
	return index, err
}

// segment is a part of a file and where it is in the memory file.
type segment struct{ start, end, value int64 }

// maxSegments bounds what one file's list takes in memory.
const maxSegments = 1 << 20

// body reads a file's segments and returns its contents.
func (s *savedTree) body(in io.Reader, length int64) (io.Reader, int64, error) {
	const width = 24
	count := (length - 8) / width
	if length < 8 || (length-8)%width != 0 || count > maxSegments {
		return nil, 0, errFormat
	}
	raw := make([]byte, length)
	if _, err := io.ReadFull(in, raw); err != nil {
		return nil, 0, err
	}
	number := func(at int64) int64 { return int64(binary.LittleEndian.Uint64(raw[at:])) }
	size := number(0)
	if size < 0 {
		return nil, 0, errFormat
	}
	var parts []io.Reader
	at := int64(0)
	for i := range count {
		seg := segment{number(8 + i*width), number(16 + i*width), number(24 + i*width)}
		if seg.start < at || seg.end < seg.start || seg.value < 0 || seg.value > math.MaxInt64-(seg.end-seg.start) {
			return nil, 0, errFormat
		}
		// Segments are whole pages; the last one reaches beyond the end.
		start, end := min(seg.start, size), min(seg.end, size)
		parts = append(parts, zeros(start-at))
		parts = append(parts, s.memory(seg.value, seg.value+end-start)...)
		at = end
	}
	parts = append(parts, zeros(size-at))
	return io.MultiReader(parts...), size, nil
}

// memory returns a part of the memory file. Pages that were not committed are zero.
func (s *savedTree) memory(from, to int64) []io.Reader {
	var parts []io.Reader
	i := sort.Search(len(s.index), func(i int) bool { return s.index[i].end > from })
	for ; from < to; i++ {
		if i == len(s.index) || s.index[i].start >= to {
			return append(parts, zeros(to-from))
		}
		x := s.index[i]
		if x.start > from {
			parts = append(parts, zeros(x.start-from))
			from = x.start
		}
		n := min(x.end, to) - from
		parts = append(parts, io.NewSectionReader(s.pages, x.at+from-x.start, n))
		from += n
	}
	return parts
}

// zeros reads as n zero bytes.
func zeros(n int64) io.Reader { return io.LimitReader(zero{}, n) }

type zero struct{}

func (zero) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// field is a field of a protocol buffer: a number or bytes.
type field struct {
	number uint64
	bytes  []byte
}

// eachField walks the fields of a message that it knows no type for.
func eachField(text []byte, visit func(protowire.Number, field) error) error {
	for len(text) > 0 {
		n, kind, used := protowire.ConsumeTag(text)
		if used < 0 {
			return protowire.ParseError(used)
		}
		text = text[used:]
		var f field
		switch kind {
		case protowire.VarintType:
			f.number, used = protowire.ConsumeVarint(text)
		case protowire.BytesType:
			f.bytes, used = protowire.ConsumeBytes(text)
		default:
			used = protowire.ConsumeFieldValue(n, kind, text)
		}
		if used < 0 {
			return protowire.ParseError(used)
		}
		text = text[used:]
		if err := visit(n, f); err != nil {
			return err
		}
	}
	return nil
}

// numbers reads the number fields of a message; absent ones are zero.
func numbers(text []byte) (map[protowire.Number]int64, error) {
	out := make(map[protowire.Number]int64)
	err := eachField(text, func(n protowire.Number, f field) error {
		if f.number > math.MaxInt64 {
			return fmt.Errorf("field %d: %w", n, errFormat)
		}
		if f.bytes == nil {
			out[n] = int64(f.number)
		}
		return nil
	})
	return out, err
}
