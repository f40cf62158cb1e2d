package replica

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/klauspost/compress/s2"
)

// Parts that nodes send each other are packed where that is quicker: the bytes that it saves cost more
// than the codec over a slow link, and less over a fast one.
const (
	packing = "s2"
	asParam = "as"
	// worthwhile is how much smaller a packed part must be: by one byte in so many.
	worthwhile = 8
)

var errPacking = errors.New("the part is not packed as it should be")

// pack packs a part into room, of packRoom bytes; nil where that is not worthwhile.
func pack(room, part []byte) []byte {
	packed := s2.Encode(room, part)
	if len(packed) > len(part)-len(part)/worthwhile {
		return nil
	}
	return packed
}

func packRoom(part []byte) int64 { return int64(s2.MaxEncodedLen(len(part))) }

// unpack fills into with what is packed. It writes and allocates nothing beyond into, whatever
// another node packed.
func unpack(into, packed []byte) error {
	n, err := s2.DecodedLen(packed)
	if err == nil && n == len(into) {
		_, err = s2.Decode(into, packed)
	} else {
		err = errors.Join(errPacking, err)
	}
	return err
}

// readPart fills into from the body of an answer, of so many bytes and packed as its header says.
func readPart(into []byte, body io.Reader, size int64, as string) error {
	switch {
	case as == "" && size == int64(len(into)):
		_, err := io.ReadFull(body, into)
		return err
	case as == packing && 0 < size && size < int64(len(into)):
		packed := partOf(size)
		defer parts.Put(packed)
		if _, err := io.ReadFull(body, *packed); err != nil {
			return err
		}
		return unpack(into, *packed)
	}
	return fmt.Errorf("the node sends %d bytes of %d, packed as %.20q", size, len(into), as)
}

// pace tells how long parts take, as they are and packed. Which is quicker depends on the link, on
// what is in them and on what else the processors of both nodes do.
type pace struct {
	mu     sync.Mutex
	asked  int
	plain  float64 // seconds a byte; 0 until one has come
	packed float64
}

const (
	// paced is the size from which a part counts: smaller ones wait for answers, not for bytes.
	paced = 64 << 10
	// worth is what packed parts may take of the time of others: the processors have other work, of
	// the guest that starts above all.
	worth = 0.7
	// retry is after how many parts one is asked for in the way that was slower.
	retry = 16
)

// packs chooses how the next part is asked for.
func (p *pace) packs() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked++
	if p.plain == 0 || p.packed == 0 {
		return p.asked%2 == 0
	}
	return p.packed < p.plain*worth != (p.asked%retry == 0)
}

// took counts a part that has come.
func (p *pace) took(packs bool, bytes int, time time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	of := &p.plain
	if packs {
		of = &p.packed
	}
	last := time.Seconds() / float64(bytes)
	if *of == 0 {
		*of = last
	}
	*of += (last - *of) / 2
}
