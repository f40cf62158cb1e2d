package pkgcache

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"
	"time"
)

const (
	// maxPage bounds an answer that does not say how long it is.
	maxPage = 64 << 20
	// pageStep is how much room it is given at a time.
	pageStep = 1 << 20
	// stallAfter is how long an upstream may be silent within an answer.
	stallAfter = time.Minute
	piece      = 64 << 10
)

// outcome is what came of asking an upstream.
type outcome int

const (
	unreachable outcome = iota // the host does not answer, and nothing is kept
	same                       // the kept file is still right
	stale                      // the host does not answer; the kept file serves
	arriving                   // a new answer, which is read while it arrives
	foreign                    // nothing to keep: each client asks the host itself
)

// flight asks an upstream once, for all requests of the same file at the time.
type flight struct {
	key     string
	cancel  context.CancelFunc
	decided chan struct{} // closed when outcome is known
	outcome outcome

	file   *os.File // of an arriving answer
	head   head
	offset int64
	length int64 // of the body; -1 is unknown
	room   int64 // that is reserved for it

	mu      sync.Mutex
	more    *sync.Cond
	got     int64
	done    bool
	err     error
	readers int
}

// join takes part in the flight for a wish, and begins it if there is none.
// The old answer, if any, is what it asks about. It returns nil when a flight
// has just ended that brought a newer one.
func (c *Cache) join(w wish, old *entry) *flight {
	key := w.key()
	c.mu.Lock()
	defer c.mu.Unlock()
	if f := c.flights[key]; f != nil && f.enter() {
		return f
	}
	if c.store.newer(key, old) {
		return nil
	}
	ctx, cancel := context.WithCancel(c.ctx)
	f := &flight{key: key, cancel: cancel, decided: make(chan struct{}), readers: 1}
	f.more = sync.NewCond(&f.mu)
	c.flights[key] = f
	c.work.Go(func() {
		defer cancel()
		c.fly(ctx, f, w, old)
		c.land(f)
	})
	return f
}

// enter takes part in a flight, unless it is over.
func (f *flight) enter() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.done {
		return false
	}
	f.readers++
	return true
}

// land takes a flight off the list. Its file lives on for its readers.
func (c *Cache) land(f *flight) {
	c.mu.Lock()
	if c.flights[f.key] == f {
		delete(c.flights, f.key)
	}
	c.mu.Unlock()
	f.leave()
}

// leave ends one's part. The last reader to go calls the flight off.
func (c *Cache) leave(f *flight) {
	c.mu.Lock()
	f.mu.Lock()
	f.readers--
	alone := f.readers == 0 && !f.done
	f.mu.Unlock()
	if alone { // no client joins a cancelled fetch
		if c.flights[f.key] == f {
			delete(c.flights, f.key)
		}
		f.cancel()
	}
	c.mu.Unlock()
	f.leave()
}

// leave closes the file when the last client is done with it.
func (f *flight) leave() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.done && f.readers == 0 && f.file != nil {
		_ = f.file.Close()
		f.file = nil
	}
}

// decide tells the waiting requests the outcome.
func (f *flight) decide(o outcome) {
	f.outcome = o
	close(f.decided)
}

// end tells the readers that no more comes.
func (f *flight) end(err error) {
	f.mu.Lock()
	f.done, f.err = true, err
	f.more.Broadcast()
	f.mu.Unlock()
}

// fly asks the upstream and keeps its answer.
func (c *Cache) fly(ctx context.Context, f *flight, w wish, old *entry) {
	resp, err := c.ask(ctx, w, old)
	if err != nil {
		c.cfg.Log.DebugContext(ctx, "a package host cannot be reached", "host", w.host, "err", err)
		f.give(old, unreachable)
		return
	}
	defer resp.Body.Close()
	fresh, final, keep := lasting(resp.Header)
	// A file that came in the clear and is not checked may be anything: a
	// portal's page, a mirror's half. Its host is asked once more before it is
	// kept for good.
	sure := isChecked(w.path) || resp.Request.URL.Scheme == "https"
	if w.final && !sure {
		fresh = 0
	}
	switch {
	case resp.StatusCode == http.StatusNotModified && old != nil:
		c.store.believe(old, fresh, w.final)
		f.give(old, same)
		return
	case old != nil && (w.final || resp.StatusCode >= http.StatusInternalServerError || resp.StatusCode == http.StatusTooManyRequests) &&
		resp.StatusCode != http.StatusOK: // nor has a host to have a file for ever
		f.give(old, unreachable)
		return
	case resp.StatusCode != http.StatusOK || !keep || endsAnywhere(resp):
		f.give(nil, foreign)
		return
	}
	f.length, f.room = resp.ContentLength, resp.ContentLength
	if f.length < 0 {
		f.room = pageStep
	}
	if !c.store.reserve(f.room) {
		f.give(nil, foreign)
		return
	}
	defer func() { c.store.release(f.room) }()
	f.head = head{URL: w.scheme + "://" + w.host + w.path, Header: keptHeader(resp.Header), Final: (w.final || final) && sure}
	if f.file, f.offset, err = c.store.create(f.head); err != nil {
		c.cfg.Log.WarnContext(ctx, "the package cache cannot write", "err", err)
		f.give(nil, foreign)
		return
	}
	name := f.file.Name()
	f.decide(arriving)
	err = f.receive(resp, w.path, c.store)
	if err == nil {
		e := &entry{head: f.head, key: f.key, offset: f.offset, size: f.offset + f.got, fresh: time.Now().Add(fresh)}
		e.Final = e.Final || w.final && old != nil && c.store.holds(old, e, f.file)
		err = c.store.keep(name, e)
	}
	if err != nil {
		_ = os.Remove(name)
		c.cfg.Log.InfoContext(ctx, "a package did not arrive", "url", f.head.URL, "err", err)
	}
	c.fetched.Add(f.got)
	f.end(err)
}

// endsAnywhere reports whether nothing tells the end of a body from a
// connection that broke.
func endsAnywhere(resp *http.Response) bool {
	return resp.ContentLength < 0 && len(resp.TransferEncoding) == 0 && resp.ProtoMajor < 2
}

// give ends a flight that brings nothing new.
func (f *flight) give(old *entry, o outcome) {
	if o == unreachable && old != nil {
		o = stale
	}
	f.decide(o)
	f.end(nil)
}

// receive writes a body to the file, and checks that it is whole and the one
// that its path promises.
func (f *flight) receive(resp *http.Response, path string, s *store) error {
	sum, want := check(path)
	patience := time.AfterFunc(stallAfter, f.cancel)
	defer patience.Stop()
	buf := make([]byte, piece)
	for {
		n, err := resp.Body.Read(buf)
		patience.Reset(stallAfter)
		if n > 0 {
			if !f.roomFor(int64(n), s) {
				return errors.New("it is longer than there is room for")
			}
			if _, err := f.file.Write(buf[:n]); err != nil {
				return err
			}
			if sum != nil {
				sum.Write(buf[:n])
			}
			f.mu.Lock()
			f.got += int64(n)
			f.more.Broadcast()
			f.mu.Unlock()
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
	}
	if f.length >= 0 && f.got != f.length {
		return fmt.Errorf("%d of %d bytes came", f.got, f.length)
	}
	if sum != nil && hex.EncodeToString(sum.Sum(nil)) != want {
		return errors.New("its content is not the one that its path names")
	}
	return f.file.Sync() // after a power cut, a file with its final name is whole
}

// roomFor reports whether n more bytes have room, and takes more if need be.
func (f *flight) roomFor(n int64, s *store) bool {
	for f.got+n > f.room {
		if f.length >= 0 || f.room >= maxPage || !s.reserve(pageStep) {
			return false
		}
		f.room += pageStep
	}
	return true
}

// copyTo writes the body while it arrives. The last byte waits until the whole
// is known to be good: a client that has it believes that it has all.
func (f *flight) copyTo(ctx context.Context, w io.Writer) (sent int64, err error) {
	defer context.AfterFunc(ctx, func() {
		f.mu.Lock()
		f.more.Broadcast()
		f.mu.Unlock()
	})()
	buf := make([]byte, piece)
	for {
		f.mu.Lock()
		for !f.done && f.got-1 <= sent && ctx.Err() == nil {
			f.more.Wait()
		}
		ready, done, failed := f.got-1, f.done, f.err
		if done {
			ready = f.got
		}
		file := f.file
		f.mu.Unlock()
		switch {
		case ctx.Err() != nil:
			return sent, ctx.Err()
		case failed != nil:
			return sent, failed
		case done && sent == ready:
			return sent, nil
		}
		n, err := file.ReadAt(buf[:min(int64(len(buf)), ready-sent)], f.offset+sent)
		if err != nil {
			return sent, err
		}
		m, err := w.Write(buf[:n])
		sent += int64(m)
		if err != nil {
			return sent, err
		}
	}
}
