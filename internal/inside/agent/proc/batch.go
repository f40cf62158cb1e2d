package proc

import (
	"context"
	"net/http"
	"sync"
)

// batchMax is how much of a stream is put together at most.
const batchMax = 128 << 10

// batch puts the messages of a stream together while more of them wait. Each
// write to a connection is a system call in the guest and a packet's way
// through its network, and a busy process makes many messages; one that is
// quiet has each sent at once, for nothing then waits.
//
// Only the handler's goroutine uses it.
type batch struct {
	http.ResponseWriter
	more bool    // another message follows at once
	held *[]byte // what was written since the last flush; nil for nothing
	err  error   // why nothing can be written any more
}

// batches keeps the memory of batches while their streams are quiet.
var batches = sync.Pool{New: func() any { return new([]byte) }}

// batchKey is the context's key of a stream's batch.
type batchKey struct{}

// batched lets the streams of next be written in batches.
func batched(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b := &batch{ResponseWriter: w}
		next.ServeHTTP(b, r.WithContext(context.WithValue(r.Context(), batchKey{}, b)))
		b.emit() // a client that is gone misses nothing
	})
}

// expect says whether another message follows at once.
func expect(ctx context.Context, more bool) {
	if b, ok := ctx.Value(batchKey{}).(*batch); ok {
		b.more = more
	}
}

// Write keeps p for the next flush. It fails where an earlier one turns out to
// have failed.
func (b *batch) Write(p []byte) (int, error) {
	if b.err != nil {
		return 0, b.err
	}
	if b.held == nil {
		b.held = batches.Get().(*[]byte)
	}
	*b.held = append(*b.held, p...)
	if len(*b.held) >= batchMax {
		b.emit()
	}
	return len(p), b.err
}

// Flush sends what is held, unless more follows at once.
func (b *batch) Flush() {
	if b.more {
		return
	}
	if b.emit(); b.err == nil {
		b.err = http.NewResponseController(b.ResponseWriter).Flush()
	}
}

// Unwrap lets http.ResponseController reach the connection.
func (b *batch) Unwrap() http.ResponseWriter { return b.ResponseWriter }

// emit writes what is held.
func (b *batch) emit() {
	if b.held == nil {
		return
	}
	if b.err == nil {
		_, b.err = b.ResponseWriter.Write(*b.held)
	}
	*b.held = (*b.held)[:0]
	if cap(*b.held) <= 2*batchMax { // one huge message is no reason to keep as much
		batches.Put(b.held)
	}
	b.held = nil
}
