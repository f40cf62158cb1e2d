package proc

import (
	"errors"
	"io"
	"os"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	pipeChunk = 32 << 10 // the most of a pipe that one event carries
	ttyChunk  = 16 << 10 // the same of a terminal
	// burst is how much is read at once of an output that has that much.
	burst = 128 << 10
	// drainMax bounds what is taken from an output after its process has
	// ended: a pipe's usual capacity is what the process can have left there.
	drainMax = 1 << 20
	// grace is how long the outputs of a process that ended are awaited when
	// something else, a daemon say, still holds them.
	grace = 150 * time.Millisecond
)

// output is one stream that a process writes.
type output struct {
	file  *os.File
	fd    int                 // of file: for reads that do not wait
	chunk int                 // the most of one event
	wide  bool                // the pipe was made bigger
	emit  func([]byte, *slab) // takes over the bytes, which may lie in a slab
	want  func() bool         // reports whether a subscriber listens
}

// ends is a pipe: one end for the agent, in its poller, one for the child.
type ends struct {
	file  *os.File
	fd    int
	child int
}

// newPipe makes a pipe; childReads says which end the child gets.
func newPipe(name string, childReads bool) (ends, error) {
	var fds [2]int
	if err := syscall.Pipe2(fds[:], syscall.O_CLOEXEC); err != nil {
		return ends{}, os.NewSyscallError("pipe2", err)
	}
	ours, theirs := fds[0], fds[1]
	if childReads {
		ours, theirs = theirs, ours
	}
	if err := syscall.SetNonblock(ours, true); err != nil {
		_ = syscall.Close(ours)
		_ = syscall.Close(theirs)
		return ends{}, os.NewSyscallError("fcntl", err)
	}
	return ends{file: os.NewFile(uintptr(ours), name), fd: ours, child: theirs}, nil
}

// forward emits what the process writes, until the end of the output (true) or
// until a read deadline says that the process is over and nothing more is
// there (false).
func (o *output) forward() (eof bool) {
	buf := newSlab(o.chunk)
	for {
		n, err := o.file.Read(buf.b)
		buf = o.pass(buf, n)
		switch {
		case err == nil:
		case errors.Is(err, os.ErrDeadlineExceeded):
			return o.drain(buf)
		default: // the end, which a terminal announces as EIO
			return true
		}
	}
}

// drain emits what lies in the output now. A deadline that has passed makes
// the file refuse to read, hence the plain system call.
func (o *output) drain(buf *slab) (eof bool) {
	for taken := 0; taken < drainMax; {
		n, err := syscall.Read(o.fd, buf.b)
		switch {
		case errors.Is(err, syscall.EINTR):
			continue
		case errors.Is(err, syscall.EAGAIN):
			return false
		case err != nil || n == 0:
			return true
		}
		taken += n
		buf = o.pass(buf, n)
	}
	return false
}

// discard reads on for as long as a daemon holds the output, so that writing
// there does not kill it, and closes the file.
func (o *output) discard() {
	defer o.file.Close()
	if err := o.file.SetReadDeadline(time.Time{}); err != nil {
		return
	}
	_, _ = io.Copy(io.Discard, o.file) // its error is its end
}

// pass emits the first n bytes and returns a slab to go on with. One that is
// full, or nearly so, is handed over, and a bigger one follows: a program that
// writes that much goes on, and is read in fewer calls. Of a mostly empty one the
// bytes are copied.
func (o *output) pass(buf *slab, n int) *slab {
	size := len(buf.b)
	switch {
	case n <= 0 || !o.want():
		return buf
	case n <= size/4 && n <= o.chunk:
		o.emit(slices.Clone(buf.b[:n]), nil)
		if size == o.chunk {
			return buf
		}
		size = o.chunk
	default:
		for part := range slices.Chunk(buf.b[:n:n], o.chunk) {
			o.emit(part, buf)
		}
		size = o.grow(n, size)
	}
	buf.release()
	return newSlab(size)
}

// grow returns the size of the slab that follows one of size bytes, n of
// which were filled.
func (o *output) grow(n, size int) int {
	if n < size || size >= burst {
		return size
	}
	if !o.wide {
		o.wide = true
		// Where this is refused, reads stay as short as the pipe.
		_, _ = unix.FcntlInt(uintptr(o.fd), unix.F_SETPIPE_SZ, 2*burst)
	}
	return min(2*size, burst)
}
