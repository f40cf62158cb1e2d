package runsc

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"sort"

	"google.golang.org/protobuf/encoding/protowire"
)

// This file reads gVisor's file checkpoints. Their parts are a manifest, a tar
// in which a file's body is its size and a list of segments, and the pages
// that the segments point into through an index. A hostile guest shaped their
// contents, so every number is checked.

// errFormat says that a checkpoint is not what this reader knows.
var errFormat = errors.New("unexpected format")

// savedManifest is the one file system and the one memory file that a
// checkpoint of an instance holds.
type savedManifest struct {
	tarStart, tarEnd   int64
	metaStart, metaEnd int64
	pagesStart         int64
}

func parseManifest(text []byte) (savedManifest, error) {
	const memoryFiles, tmpfs = 5, 6
	var m savedManifest
	var files, trees int
	err := eachField(text, func(n protowire.Number, f field) error {
		var inner map[protowire.Number]int64
		var err error
		switch n {
		case memoryFiles:
			files++
			inner, err = numbers(f.bytes)
			m.metaStart, m.metaEnd, m.pagesStart = inner[2], inner[3], inner[4]
		case tmpfs:
			trees++
			inner, err = numbers(f.bytes)
			m.tarStart, m.tarEnd = inner[2], inner[3]
		}
		return err
	})
	if err == nil && (files != 1 || trees != 1 || m.tarEnd < m.tarStart || m.metaEnd < m.metaStart) {
		err = errFormat
	}
	return m, err
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
func (s *saved) body(in io.Reader, length int64) (io.Reader, int64, error) {
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
func (s *saved) memory(from, to int64) []io.Reader {
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
