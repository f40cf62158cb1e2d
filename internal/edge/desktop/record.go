package desktop

import (
	"context"
	"encoding/binary"
	"io"
	"time"
)

const (
	// RecordMost is how long a recording may be, and recordBytes how large.
	RecordMost  = time.Hour
	recordBytes = 256 << 20
	// recordEvery is the shortest time between two pictures of a recording.
	recordEvery = 80 * time.Millisecond
	// recordMagic begins a recording.
	recordMagic = "CAYRFB1\n"
)

// Recording writes a recording to out: what a viewer is sent from now on, with times.
// It ends with ctx, with the desktop, or at its bounds; an error is of its begin.
//
// A recording is recordMagic and then parts: the milliseconds since its begin and the
// number of bytes, each in four bytes, the most significant first, and so many bytes
// of what a server of RFB 3.8 says to a client that reads Tight and follows the
// screen's size. begun is called before the first byte.
func (d *Desktops) Record(ctx context.Context, box Box, who Person, begun func(), out io.Writer) error {
	s, err := d.enter(ctx, box)
	if err != nil {
		return err
	}
	defer d.leave(s)
	who.MayControl = false
	v := &viewer{who: who, recorder: true, tight: true, resizes: true, format: ours}
	if err := s.admit(v); err != nil {
		return err
	}
	defer s.dismiss(v)
	begun()
	ctx, cancel := context.WithTimeout(ctx, RecordMost)
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	r := &recording{out: out, begun: time.Now(), left: recordBytes}
	if _, err := io.WriteString(out, recordMagic); err != nil {
		return nil // the client is gone
	}
	hello := append([]byte(versionText), 1, securityNone, 0, 0, 0, 0)
	if !r.add(append(hello, s.introduce(v)...)) {
		return nil
	}
	for {
		s.mu.Lock()
		picture, err := s.picture(v)
		s.mu.Unlock()
		if err != nil || picture != nil && !r.add(picture) {
			return nil
		}
		select {
		case <-time.After(recordEvery):
		case <-ctx.Done():
			return nil
		}
		if picture != nil { // there may be more already
			continue
		}
		select {
		case <-v.wake:
		case <-ctx.Done():
			return nil
		}
	}
}

// recording is one that is being written.
type recording struct {
	out   io.Writer
	begun time.Time
	left  int
}

// add adds a part, and reports whether there may be another.
func (r *recording) add(part []byte) bool {
	if r.left -= len(part); r.left < 0 {
		return false
	}
	head := binary.BigEndian.AppendUint32(nil, uint32(time.Since(r.begun).Milliseconds()))
	head = binary.BigEndian.AppendUint32(head, uint32(len(part)))
	_, err := r.out.Write(append(head, part...))
	return err == nil
}
