package enginetest

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/engine"
)

// carrier is a snapshot that arrives: each part of a file is copied from one
// directory to another when it is asked for. It is an engine.Arrival.
type carrier struct {
	snap     cay.Snapshot
	from, to string
	waits    string        // parts in the second half of this file wait
	until    chan struct{} // for this

	mu    sync.Mutex
	lost  error
	asked int // parts
}

const carrierPart = 64 << 10

// carry begins an arrival with files of the right size and nothing in them.
func carry(t *testing.T, snap cay.Snapshot, from string) *carrier {
	t.Helper()
	c := &carrier{snap: snap, from: from, to: t.TempDir(), until: make(chan struct{})}
	for _, f := range snap.Files {
		path := filepath.Join(c.to, f.Name)
		must(t, os.MkdirAll(filepath.Dir(path), 0o700))
		must(t, os.WriteFile(path, nil, 0o600))
		must(t, os.Truncate(path, f.Size))
	}
	return c
}

func (c *carrier) Snapshot() cay.Snapshot { return c.snap }

func (c *carrier) Open(name string) (*os.File, error) {
	for _, f := range c.snap.Files {
		if f.Name == name {
			return os.Open(filepath.Join(c.to, name))
		}
	}
	return nil, cay.Errorf(cay.NotFound, "no file %q", name)
}

func (c *carrier) Await(ctx context.Context, name string, offset, length int64) (bool, error) {
	if length <= 0 {
		return false, nil
	}
	if name == c.waits && offset+length > c.size(name)/2 {
		select {
		case <-c.until:
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lost != nil {
		return false, c.lost
	}
	c.asked++
	begin := offset / carrierPart * carrierPart
	return false, copyPart(filepath.Join(c.to, name), filepath.Join(c.from, name), begin, offset+length+carrierPart)
}

func (c *carrier) size(name string) int64 {
	for _, f := range c.snap.Files {
		if f.Name == name {
			return f.Size
		}
	}
	return 0
}

func (c *carrier) Whole(context.Context) (string, error) { return c.from, nil }

func (c *carrier) lose(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lost = err
}

// copyPart copies the bytes of a file from begin to end, or to its own end.
func copyPart(to, from string, begin, end int64) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	buf := make([]byte, end-begin)
	n, err := in.ReadAt(buf, begin)
	if n == 0 {
		return err
	}
	out, err := os.OpenFile(to, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = out.WriteAt(buf[:n], begin)
	return errors.Join(err, out.Close())
}

// streamer is the engine as one, where it is.
func (s *suite) streamer(t *testing.T) engine.Streamer {
	t.Helper()
	e, ok := s.Engine.(engine.Streamer)
	if !ok {
		t.Skip("this engine needs whole snapshots")
	}
	return e
}

func stream(t *testing.T, e engine.Streamer, c *carrier) (stop func()) {
	t.Helper()
	stop, err := e.Stream(func(_ context.Context, id cay.SnapshotID) (engine.Arrival, error) {
		if id != c.snap.ID {
			return nil, cay.Errorf(cay.NotFound, "no snapshot %q", id)
		}
		return c, nil
	})
	must(t, err)
	stop = sync.OnceFunc(stop)
	t.Cleanup(stop)
	return stop
}

var arriving = way{"arriving", func(s *engine.RestoreSpec) { s.From, s.Arriving = "", true }}

// arrivingMemory restores from a snapshot whose memory is not there: the start
// does not wait for it, the guest gets what it touches, also from a
// server that starts anew, and has everything in the end.
func (s *suite) arrivingMemory(t *testing.T) {
	e, at := s.streamer(t), s.slots[0]
	snap, dir := s.withMemory(t, at)
	first := carry(t, snap, dir)
	first.waits = largest(t, dir)
	stop := stream(t, e, first)
	id := s.resumeBy(t, arriving, snap, "", at) // returns while half of the memory is away
	if pending := s.pending(t, id); pending < privateMB<<19 {
		t.Errorf("%d bytes are not loaded of memory that is not there", pending)
	}
	// The process that serves it ends, and the next one has it elsewhere.
	stop()
	must(t, os.RemoveAll(first.to))
	second := carry(t, snap, dir)
	stream(t, e, second)
	at.expect(t, "", "/check-memory")
	live(t, at)
	must(t, s.LoadAll(t.Context(), id))
	soon(t, "all is loaded", func() bool { return s.pending(t, id) == 0 })
	if second.asked == 0 {
		t.Error("nothing was asked of the second")
	}
	if err := s.RecordWorkingSet(t.Context(), id, new(discard)); cay.KindOf(err) != cay.Conflict {
		t.Errorf("the working set of memory that arrived: %v", err)
	}
	// A snapshot of it has the same memory.
	half, saved := s.snapshot(t, id, true)
	must(t, os.RemoveAll(second.to))
	live(t, at)
	must(t, s.Kill(t.Context(), id))
	for _, w := range []way{eager, shared} {
		id := s.resumeBy(t, w, half, saved, at)
		at.expect(t, "", "/check-memory")
		must(t, s.Kill(t.Context(), id))
	}
}

type discard struct{}

func (*discard) Write(p []byte) (int, error) { return len(p), nil }

// arrivalsThatFail: a snapshot that does not arrive is no start, and ends an
// instance that has begun, with its cause; one that is killed while it waits is gone.
func (s *suite) arrivalsThatFail(t *testing.T) {
	e, at := s.streamer(t), s.slots[0]
	snap, dir := s.withMemory(t, at)
	damaged := cay.Errorf(cay.Internal, "a part is damaged")

	c := carry(t, snap, dir)
	c.lose(damaged)
	stop := stream(t, e, c)
	spec := s.restoreSpec(snap, "", at)
	arriving.set(&spec)
	at.address(t)
	if err := s.Restore(t.Context(), spec); err == nil {
		t.Error("a snapshot that does not arrive is restored")
	}
	s.gone(t, spec.ID)
	stop()

	c = carry(t, snap, dir)
	c.waits = largest(t, dir)
	stop = stream(t, e, c)
	id := s.resumeBy(t, arriving, snap, "", at)
	death, err := s.Watch(id)
	must(t, err)
	c.lose(damaged)
	close(c.until)
	if d := receive(t, death); d.Cause != cay.CauseMemoryLost || d.Detail == "" {
		t.Errorf("it ended by %q (%s)", d.Cause, d.Detail)
	}
	must(t, s.Kill(t.Context(), id))
	s.gone(t, id)
	stop()

	c = carry(t, snap, dir)
	c.waits = largest(t, dir)
	stream(t, e, c)
	id = s.resumeBy(t, arriving, snap, "", at)
	must(t, s.Kill(t.Context(), id))
	s.gone(t, id)
}
