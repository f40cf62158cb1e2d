package replica

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/blob"
	"github.com/cay-run/cay/internal/machine/engine"
)

// arrival is a snapshot on its way from the node that made it, or the bucket, into a directory
// that becomes one of this machine's snapshots when all is there. Pieces that are waited for
// come first, then the others, file by file. It is an engine.Arrival.
type arrival struct {
	r     *Replica
	at    string // its place in the bucket
	s     cay.Snapshot
	tmp   string
	piece int64         // bytes
	turns chan struct{} // of the processors, for pieces that are not waited for
	from  found

	asking    sync.Mutex  // one asks for what the bucket has
	unchecked atomic.Bool // a piece came from the peer while the bucket had no record to compare it with

	mu      sync.Mutex
	files   []*arriving
	wanted  []want        // what is waited for, the latest last
	calls   chan struct{} // has a token where wanted may have something
	changed chan struct{} // closed when any of this has changed, and another one then
	next    int           // the first file of which pieces may not be under way
	dir     string        // once it is whole
	err     error         // why it never will be

	kept      bool      // the bucket has it, and files have the names of their pieces
	peer      *peer     // nil once it is of no use
	peerAfter time.Time // it is asked again
}

// arriving is one file of an arrival.
type arriving struct {
	from  file // its name and its size
	kept  file // as the bucket has it, once that is known
	f     *os.File
	state []pieceState
	ahead map[int]chan struct{} // pieces under way that nothing waits for; closed when something does
	next  int                   // the first piece that may not be under way
	left  int                   // pieces that are not there
}

type pieceState byte

const (
	elsewhere pieceState = iota
	underway
	there
)

// want is a piece that is waited for.
type want struct {
	of    *arriving
	piece int
}

// arrive begins to copy a snapshot. The caller runs it.
func (r *Replica) arrive(ctx context.Context, id cay.SnapshotID) (*arrival, error) {
	at := snapshots + string(id) + "/"
	where, err := r.find(ctx, id, 0)
	if err != nil {
		return nil, err
	}
	from := where.in
	s := *from.Snapshot
	if err := r.room(s.Size()); err != nil {
		return nil, err
	}
	tmp, err := r.dir.Begin()
	if err != nil {
		return nil, err
	}
	a := &arrival{r: r, at: at, s: s, tmp: tmp, piece: from.Piece, calls: make(chan struct{}, hurried), changed: make(chan struct{}), from: where, kept: where.kept, peer: where.peer}
	// The guest that starts meanwhile, and the pieces that it waits for, have the other half, and one
	// of the lines to another node at least.
	a.turns = make(chan struct{}, max(1, min(runtime.GOMAXPROCS(0)/2, lines-1)))
	for i, f := range from.Files {
		if f.Name != s.Files[i].Name || f.Size != s.Files[i].Size || !filepath.IsLocal(f.Name) {
			err = damaged(at + recordName)
			break
		}
		var one *arriving
		n := (f.Size + a.piece - 1) / a.piece
		if a.kept && n != int64(len(f.Pieces)) {
			err = damaged(at + recordName)
			break
		}
		if one, err = begin(f, int(n), filepath.Join(tmp, f.Name)); err != nil {
			break
		}
		one.kept = f
		a.files = append(a.files, one)
	}
	if err != nil {
		a.end("", err)
		return nil, err
	}
	// A start reads small files first, and whole; the guest's own files not at all.
	slices.SortStableFunc(a.files, func(x, y *arriving) int {
		return cmp.Or(cmp.Compare(x.turn(), y.turn()), cmp.Compare(x.from.Size, y.from.Size))
	})
	return a, nil
}

// Record is the record of a snapshot that this machine lacks. One that is nowhere yet is waited for
// where another node may have it soon (Await).
func (r *Replica) Record(ctx context.Context, id cay.SnapshotID) (cay.Snapshot, error) {
	where, err := r.find(ctx, id, r.awaits)
	switch {
	case err == nil:
		r.remember(id, where)
		return *where.in.Snapshot, nil
	case cay.KindOf(err) == cay.NotFound && r.awaits > 0:
		return cay.Snapshot{}, errAway(id, err, "no node that made it is known")
	}
	return cay.Snapshot{}, explain(err, id)
}

// turn puts what only a boot reads last.
func (f *arriving) turn() int {
	if strings.HasPrefix(f.from.Name, engine.FilesDir+"/") {
		return 1
	}
	return 0
}

// begin makes a file of the size that it will have, in n pieces.
func begin(from file, n int, path string) (*arriving, error) {
	f, err := create(path)
	if err == nil {
		err = f.Truncate(from.Size)
	}
	if err != nil {
		return nil, errors.Join(diskError(err, "write", path), closed(f))
	}
	return &arriving{from: from, f: f, state: make([]pieceState, n), ahead: map[int]chan struct{}{}, left: n}, nil
}

func closed(f *os.File) error {
	if f == nil {
		return nil
	}
	return f.Close()
}

// run copies all pieces, and gives the snapshot its name.
func (a *arrival) run(ctx context.Context) error {
	err := a.bringAll(ctx)
	for _, f := range a.files {
		err = errors.Join(err, diskError(f.f.Close(), "write", f.from.Name))
	}
	if err == nil && a.unchecked.Load() {
		err = a.r.dir.CheckBegun(ctx, a.tmp, a.s)
	}
	if err == nil {
		err = a.r.dir.Commit(a.tmp, a.s)
	}
	dir := ""
	if err == nil {
		dir, _, err = a.r.dir.Get(a.s.ID)
	}
	a.end(dir, err)
	return err
}

// hurried is how many pieces that are waited for are under way beside atOnce others: those may all be
// waiting for the bucket, or for their turn.
const hurried = 4

// bringAll copies all pieces: some workers take any, and some only those that are waited for.
func (a *arrival) bringAll(ctx context.Context) error {
	all, ctx := errgroup.WithContext(ctx)
	var some sync.WaitGroup
	for range atOnce(a.piece) {
		some.Add(1)
		all.Go(func() error {
			defer some.Done()
			for ctx.Err() == nil {
				of, i, wanted := a.take()
				if of == nil {
					return nil
				}
				if err := a.bring(ctx, of, i, wanted); err != nil {
					return err
				}
			}
			return ctx.Err()
		})
	}
	taken := make(chan struct{}) // closed when all is there, or on its way by those who hurry
	all.Go(func() error {
		defer close(taken)
		some.Wait()
		return nil
	})
	for range hurried {
		all.Go(func() error { return a.hurryUntil(ctx, taken) })
	}
	return all.Wait()
}

// hurryUntil brings pieces that are waited for, and no others.
func (a *arrival) hurryUntil(ctx context.Context, taken <-chan struct{}) error {
	for {
		select {
		case <-a.calls:
		case <-taken:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
		for {
			a.mu.Lock()
			of, i := a.takeWanted()
			a.mu.Unlock()
			if of == nil {
				break
			}
			if err := a.bring(ctx, of, i, asked); err != nil {
				return err
			}
		}
	}
}

// end says that the snapshot is whole, or never will be.
func (a *arrival) end(dir string, err error) {
	if err != nil {
		for _, f := range a.files {
			_ = f.f.Close() // it may be closed
		}
		_ = a.r.dir.Abort(a.tmp)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.dir, a.err = dir, err
	a.tell()
}

// tell wakes all that wait. The caller holds a.mu.
func (a *arrival) tell() {
	close(a.changed)
	a.changed = make(chan struct{})
}

// take chooses the next piece: the one that was asked for last, because a guest
// waits for it, or else the next one in order, and a channel that is closed when a guest
// waits for it.
func (a *arrival) take() (of *arriving, i int, wanted <-chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if of, i := a.takeWanted(); of != nil {
		return of, i, asked
	}
	for ; a.next < len(a.files); a.next++ {
		for of := a.files[a.next]; of.next < len(of.state); of.next++ {
			if of.state[of.next] == elsewhere {
				of.state[of.next] = underway
				waits := make(chan struct{})
				of.ahead[of.next] = waits
				return of, of.next, waits
			}
		}
	}
	return nil, 0, nil
}

// takeWanted chooses the piece that was asked for last. The caller holds a.mu.
func (a *arrival) takeWanted() (of *arriving, i int) {
	for n := len(a.wanted); n > 0; n = len(a.wanted) {
		w := a.wanted[n-1]
		a.wanted = a.wanted[:n-1]
		if w.of.state[w.piece] == elsewhere {
			w.of.state[w.piece] = underway
			return w.of, w.piece
		}
	}
	return nil, 0
}

// asked is closed.
var asked = func() chan struct{} {
	out := make(chan struct{})
	close(out)
	return out
}()

// How long a bucket that does not answer is asked again for a piece that a guest
// may wait for, beyond what the bucket's client does by itself.
const (
	patience = 2 * time.Minute
	pause    = time.Second
)

// bring copies one piece: from the node that made the snapshot, or from the bucket.
func (a *arrival) bring(ctx context.Context, of *arriving, i int, wanted <-chan struct{}) error {
	for begun := time.Now(); ; {
		if sent, err := a.fromPeer(ctx, of, i, wanted); sent {
			return err
		}
		sealed, err := a.sealed(ctx, of, i)
		if err == nil {
			return a.open(of, i, sealed, wanted)
		}
		waits := errors.Is(err, blob.ErrUnreachable) || errors.Is(err, errNotYet)
		if !waits || time.Since(begun) >= a.r.patience || ctx.Err() != nil {
			return err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

// sealed gets what the bucket has of a piece.
func (a *arrival) sealed(ctx context.Context, of *arriving, i int) ([]byte, error) {
	if err := a.inBucket(ctx); err != nil {
		return nil, err
	}
	return a.r.bucket.Get(ctx, a.at+a.keptFile(of).Pieces[i])
}

// open writes what the bucket has of a piece.
func (a *arrival) open(of *arriving, i int, sealed []byte, wanted <-chan struct{}) error {
	defer a.turn(wanted)()
	plain, err := a.r.openPiece(a.at, a.keptFile(of), a.piece, i, sealed)
	if err != nil {
		return err
	}
	return a.put(of, i, plain)
}

// turn waits for a turn of the processors, for a piece that nothing waits for.
func (a *arrival) turn(wanted <-chan struct{}) (end func()) {
	select {
	case <-wanted:
	default:
		select {
		case <-wanted:
		case a.turns <- struct{}{}:
			return func() { <-a.turns }
		}
	}
	return func() {}
}

// put writes a piece.
func (a *arrival) put(of *arriving, i int, plain []byte) error {
	if !zero(plain) {
		if _, err := of.f.WriteAt(plain, int64(i)*a.piece); err != nil {
			return diskError(err, "write", of.from.Name)
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	of.state[i] = there
	delete(of.ahead, i)
	of.left--
	a.tell()
	return nil
}

// Snapshot implements engine.Arrival.
func (a *arrival) Snapshot() cay.Snapshot { return a.s }

func (a *arrival) find(name string) *arriving {
	for _, f := range a.files {
		if f.from.Name == name {
			return f
		}
	}
	return nil
}

func (a *arrival) noFile(name string) error {
	return cay.Errorf(cay.NotFound, "snapshot %s has no file %q", a.s.ID, name)
}

// Open implements engine.Arrival.
func (a *arrival) Open(name string) (*os.File, error) {
	if a.find(name) == nil {
		return nil, a.noFile(name)
	}
	f, err := os.Open(filepath.Join(a.tmp, name))
	if !errors.Is(err, fs.ErrNotExist) {
		return f, err
	}
	dir, _, err := a.r.dir.Get(a.s.ID) // it has got its name
	if err != nil {
		return nil, err
	}
	return os.Open(filepath.Join(dir, name))
}

// Await implements engine.Arrival.
func (a *arrival) Await(ctx context.Context, name string, offset, length int64) (all bool, err error) {
	of := a.find(name)
	if of == nil {
		return false, a.noFile(name)
	}
	first, end := a.pieces(of, offset, length)
	for asked := false; ; asked = true {
		a.mu.Lock()
		missing := slices.ContainsFunc(of.state[first:end], func(s pieceState) bool { return s != there })
		all, err, changed := of.left == 0, a.err, a.changed
		if missing && !asked {
			a.hurry(of, first, end)
		}
		a.mu.Unlock()
		switch {
		case !missing:
			return all, nil
		case err != nil:
			return false, explain(err, a.s.ID)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
}

// hurry has pieces come before others. The caller holds a.mu.
func (a *arrival) hurry(of *arriving, first, end int) {
	for i := end - 1; i >= first; i-- {
		if of.state[i] == elsewhere {
			a.wanted = append(a.wanted, want{of, i})
			select {
			case a.calls <- struct{}{}:
			default: // as many will look as there are
			}
		}
		if waits := of.ahead[i]; waits != nil {
			close(waits)
			delete(of.ahead, i)
		}
	}
}

// pieces are those of a part of a file, as far as it has them.
func (a *arrival) pieces(of *arriving, offset, length int64) (first, end int) {
	size := of.from.Size
	if offset < 0 || length <= 0 || offset >= size {
		return 0, 0
	}
	last := offset + min(length, size-offset) - 1
	return int(offset / a.piece), int(last/a.piece) + 1
}

// Whole implements engine.Arrival.
func (a *arrival) Whole(ctx context.Context) (string, error) {
	for {
		a.mu.Lock()
		dir, err, changed := a.dir, a.err, a.changed
		a.mu.Unlock()
		switch {
		case err != nil:
			return "", explain(err, a.s.ID)
		case dir != "":
			return dir, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return "", cay.Wrap(cay.Unavailable, ctx.Err(), "snapshot %s is still being copied from the bucket", a.s.ID).WithHint("try again")
		}
	}
}

// local is a snapshot that has arrived. It is an engine.Arrival.
type local struct {
	dir string
	s   cay.Snapshot
}

// Snapshot implements engine.Arrival.
func (l local) Snapshot() cay.Snapshot { return l.s }

// Open implements engine.Arrival.
func (l local) Open(name string) (*os.File, error) {
	if !slices.ContainsFunc(l.s.Files, func(f cay.SnapFile) bool { return f.Name == name }) {
		return nil, cay.Errorf(cay.NotFound, "snapshot %s has no file %q", l.s.ID, name)
	}
	return os.Open(filepath.Join(l.dir, name))
}

// Await implements engine.Arrival.
func (local) Await(context.Context, string, int64, int64) (bool, error) { return true, nil }

// Whole implements engine.Arrival.
func (l local) Whole(context.Context) (string, error) { return l.dir, nil }
