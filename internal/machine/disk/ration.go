package disk

import (
	"io"
	"sync/atomic"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/shares"
)

// Ration is what a team may use of a disk for one kind of file: it has no more than what
// it leaves to all others, above the reserve.
type Ration struct {
	Disk Reserve // with no directory nothing is bounded
	What string  // the files, in an error
	// Held is how many bytes the team has, with those that are on their way.
	Held func() int64

	since atomic.Int64 // bytes that were taken since the disk was looked at
}

// rationStep is how many bytes are written between two looks at the disk.
const rationStep = 32 << 20

// Check fails where the team may not have so many bytes more. Bytes of a number that is not
// known are checked as they come, by Writer.
func (r *Ration) Check(bytes int64) error {
	if r.Disk.Dir == "" {
		return nil
	}
	l, err := r.Disk.Level()
	if err != nil {
		return nil // the writer will get the error
	}
	held := r.Held()
	room := held + max(0, l.Free-l.Reserve) // without what others have
	if shares.Fits(room, held, held, max(0, bytes)) {
		return nil
	}
	return cay.Errorf(cay.NoSpace, "your team's %s have %d MB on this server, and a team has at most as much as it leaves free for all others", r.What, held>>20).
		WithHint("remove some of them, or have the operator free space on the server's disk (cay gc)")
}

// Took checks again after every few bytes that were written.
func (r *Ration) Took(bytes int64) error {
	if r.since.Add(bytes) < rationStep {
		return nil
	}
	r.since.Store(0)
	return r.Check(0)
}

// Writer is a writer of the team's files.
func (r *Ration) Writer(w io.Writer) io.Writer { return rationed{w, r} }

type rationed struct {
	io.Writer
	ration *Ration
}

func (r rationed) Write(p []byte) (int, error) {
	n, err := r.Writer.Write(p)
	if err == nil {
		err = r.ration.Took(int64(n))
	}
	return n, err
}
