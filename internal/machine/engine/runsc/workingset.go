package runsc

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"

	"github.com/cay-run/cay/internal/machine/engine"
)

// nearPages is the widest gap, in pages, that a working set is closed over. A
// sentry loads and maps one part of a set after another, and the guest faults once
// for each: the pages between two near ones cost less than the second one.
const nearPages = 4

// setMagic begins a working set as builds with patch 0020 write it: then for each
// part the pages between it and the one before, and its own, as varints, and a
// CRC-32C of all that.
const setMagic = "cayws\x001\n"

// part is a range of pages of a pages file.
type part struct{ start, end uint64 }

// widened is a working set with the gaps closed that are no wider than near. A set of
// another form, or a damaged one, stays as it is: the sentry that reads it decides.
func widened(set []byte, near uint64) []byte {
	parts, ok := decodeSet(set)
	if !ok {
		return set
	}
	var out []part
	for _, p := range parts {
		if n := len(out); n > 0 && p.start-out[n-1].end <= near {
			out[n-1].end = p.end
		} else {
			out = append(out, p)
		}
	}
	return encodeSet(out)
}

func decodeSet(set []byte) ([]part, bool) {
	n := len(set) - crc32.Size
	if n < len(setMagic) || len(set) > engine.MaxWorkingSet || !bytes.HasPrefix(set, []byte(setMagic)) ||
		binary.LittleEndian.Uint32(set[n:]) != crc32.Checksum(set[:n], castagnoli) {
		return nil, false
	}
	const most = 1 << 32 // pages; a set with more is none
	var out []part
	last := uint64(0)
	for rest := set[len(setMagic):n]; len(rest) > 0; {
		gap, k := binary.Uvarint(rest)
		if k <= 0 {
			return nil, false
		}
		pages, l := binary.Uvarint(rest[k:])
		if l <= 0 || gap > most || pages == 0 || pages > most || last > most {
			return nil, false
		}
		rest = rest[k+l:]
		p := part{start: last + gap, end: last + gap + pages}
		out, last = append(out, p), p.end
	}
	return out, true
}

func encodeSet(parts []part) []byte {
	out := []byte(setMagic)
	last := uint64(0)
	for _, p := range parts {
		out = binary.AppendUvarint(out, p.start-last)
		out = binary.AppendUvarint(out, p.end-p.start)
		last = p.end
	}
	return binary.LittleEndian.AppendUint32(out, crc32.Checksum(out, castagnoli))
}
