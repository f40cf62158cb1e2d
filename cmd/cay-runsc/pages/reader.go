package main

import (
	"context"
	"io"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/sentry/memmap"
	"gvisor.dev/gvisor/pkg/sentry/state/stateio"
)

const (
	atOnce    = 4         // reads of one file
	maxRead   = 256 << 10 // bytes of one
	maxRanges = maxRead >> 12
)

// reader reads one file. It implements stateio.AsyncReader.
type reader struct {
	stateio.NoRegisterClientFD

	size   int64
	status *progress // nil for a file whose progress is not told

	reads  chan read
	done   chan stateio.Completion
	cancel context.CancelFunc
	lines  sync.WaitGroup
}

// read is a part of the file that the sentry wants.
type read struct {
	id    int
	off   int64
	total uint64
	into  [][]byte
}

// open opens a file by its first line to the server, so that one that is not
// there is an error.
func open(at place, name string) (*reader, error) {
	ctx, cancel := context.WithCancel(context.Background())
	first := &line{at: at, name: name}
	if err := first.await(ctx, 0, 0); err != nil {
		cancel()
		return nil, err
	}
	r := &reader{
		size: first.size, cancel: cancel,
		reads: make(chan read, atOnce), done: make(chan stateio.Completion, atOnce),
	}
	r.lines.Go(func() { r.work(ctx, first) })
	for range atOnce - 1 {
		r.lines.Go(func() { r.work(ctx, &line{at: at, name: name}) })
	}
	return r, nil
}

// Close implements stateio.AsyncReader.
func (r *reader) Close() error {
	r.cancel()
	close(r.reads)
	r.lines.Wait()
	if r.status != nil {
		r.status.end()
	}
	return nil
}

// MaxReadBytes implements stateio.AsyncReader.
func (r *reader) MaxReadBytes() uint64 { return maxRead }

// MaxRanges implements stateio.AsyncReader.
func (r *reader) MaxRanges() int { return maxRanges }

// MaxParallel implements stateio.AsyncReader.
func (r *reader) MaxParallel() int { return atOnce }

// AddRead implements stateio.AsyncReader.
func (r *reader) AddRead(id int, off int64, _ stateio.DestinationFile, _ memmap.FileRange, into []byte) {
	r.reads <- read{id: id, off: off, total: uint64(len(into)), into: [][]byte{into}}
}

// AddReadv implements stateio.AsyncReader.
func (r *reader) AddReadv(id int, off int64, total uint64, _ stateio.DestinationFile, _ []memmap.FileRange, into []unix.Iovec) {
	one := read{id: id, off: off, total: total}
	for _, v := range into {
		one.into = append(one.into, unsafe.Slice(v.Base, v.Len))
	}
	r.reads <- one
}

// Wait implements stateio.AsyncReader.
func (r *reader) Wait(cs []stateio.Completion, atLeast int) ([]stateio.Completion, error) {
	for ; atLeast > 0; atLeast-- {
		cs = append(cs, <-r.done)
	}
	for {
		select {
		case c := <-r.done:
			cs = append(cs, c)
		default:
			return cs, nil
		}
	}
}

// work carries out reads, one after another, until there are no more.
func (r *reader) work(ctx context.Context, l *line) {
	defer l.close()
	for one := range r.reads {
		n, err := l.read(ctx, one)
		if r.status != nil {
			r.status.add(int64(n), err != nil && ctx.Err() == nil)
		}
		r.done <- stateio.Completion{ID: one.id, N: n, Err: err}
	}
}

// fill reads from a file until all of into has bytes. It changes into.
func fill(fd int, into [][]byte, off int64) (done uint64, err error) {
	for len(into) > 0 {
		n, err := unix.Preadv(fd, into, off)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return done, err
		case n == 0:
			return done, io.EOF
		}
		done, off = done+uint64(n), off+int64(n)
		for len(into) > 0 && n >= len(into[0]) {
			n -= len(into[0])
			into = into[1:]
		}
		if len(into) > 0 {
			into[0] = into[0][n:]
		}
	}
	return done, nil
}
