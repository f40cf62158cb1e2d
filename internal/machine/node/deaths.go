package node

import (
	"context"
	"sync"

	"github.com/cay-run/cay"
)

// deaths is a log of deaths without an end on one side: an instance's goroutine
// never waits for a reader. A reader asks for what comes after a cursor, which
// says that it has all before it: that is forgotten.
type deaths struct {
	mu     sync.Mutex
	epoch  string // of this log; another node's cursors mean nothing to it
	before int64  // deaths that are forgotten
	list   []cay.Death
	news   chan struct{} // closed when there is more, or the log is closed
	closed bool
}

func newDeaths() *deaths {
	return &deaths{epoch: string(cay.NewInstanceID()), news: make(chan struct{})}
}

func (d *deaths) add(death cay.Death) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.list = append(d.list, death)
	d.wake()
}

// wake lets readers look again. The caller holds d.mu.
func (d *deaths) wake() {
	close(d.news)
	d.news = make(chan struct{})
}

// after returns the deaths after a cursor and the cursor after them. It waits
// for one, until the context or the log ends.
func (d *deaths) after(ctx context.Context, at cay.Cursor) ([]cay.Death, cay.Cursor, error) {
	for {
		list, next, news, closed := d.read(at)
		if len(list) > 0 {
			return list, next, nil
		}
		if closed {
			return nil, next, cay.Errorf(cay.Unavailable, "the server is stopping")
		}
		select {
		case <-news:
		case <-ctx.Done():
			return nil, next, ctx.Err()
		}
	}
}

func (d *deaths) read(at cay.Cursor) (list []cay.Death, next cay.Cursor, news chan struct{}, closed bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if at.Epoch != d.epoch {
		at.Seq = d.before
	}
	if known := at.Seq - d.before; known > 0 {
		known = min(known, int64(len(d.list)))
		d.list = d.list[known:]
		d.before += known
	}
	list = append(list, d.list...)
	return list, cay.Cursor{Epoch: d.epoch, Seq: d.before + int64(len(list))}, d.news, d.closed
}

// close ends the waiting of readers.
func (d *deaths) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.closed {
		d.closed = true
		d.wake()
	}
}
