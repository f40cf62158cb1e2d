package replica

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/snapshot"
)

// Push copies a snapshot, its root image and its engine to the bucket, unless it is
// there as it is here. When it returns without an error, another machine can Fetch it.
func (r *Replica) Push(ctx context.Context, id cay.SnapshotID) error {
	if err := r.PushFiles(ctx, id); err != nil {
		return err
	}
	return r.PushImage(ctx, id)
}

// PushFiles is Push without the root image. Machines that have that can Fetch the snapshot then.
func (r *Replica) PushFiles(ctx context.Context, id cay.SnapshotID) error {
	r.writing.RLock()
	defer r.writing.RUnlock()
	defer r.dir.Keep(id)()
	at := snapshots + string(id) + "/"
	before, err := r.before(ctx, at)
	if err != nil {
		return err
	}
	dir, s, err := r.dir.Get(id)
	if err != nil || before.has(s) {
		return err
	}
	return r.pushFiles(ctx, at, dir, s, before)
}

// pushFiles copies the files of a snapshot that a copy of before lacks and its engine, and then its
// record. A machine that found no engine there would start from the files alone.
func (r *Replica) pushFiles(ctx context.Context, at, dir string, s cay.Snapshot, before record) error {
	out := record{Piece: r.piece, Snapshot: &s}
	all, sending := errgroup.WithContext(ctx)
	all.Go(func() error { return r.needEngine(sending, s) })
	all.Go(func() error { return r.sendFiles(sending, at, dir, s, before, &out) })
	if err := all.Wait(); err != nil {
		return err
	}
	return r.putRecord(ctx, at, out)
}

// PushImage copies to the bucket what a snapshot has in common with others, its root image and its
// engine, or notes that they are needed still: for a day, or while the bucket has the snapshot.
func (r *Replica) PushImage(ctx context.Context, id cay.SnapshotID) error {
	return r.pushCommon(ctx, id, mostAtOnce)
}

// Prepare is PushImage for what nothing waits for, with half of the processors: a snapshot of
// a template, so that those that are made from it have their images there.
func (r *Replica) Prepare(ctx context.Context, id cay.SnapshotID) error {
	return r.pushCommon(ctx, id, max(1, runtime.GOMAXPROCS(0)/2))
}

func (r *Replica) pushCommon(ctx context.Context, id cay.SnapshotID, atOnce int) error {
	r.writing.RLock()
	defer r.writing.RUnlock()
	defer r.dir.Keep(id)()
	_, s, err := r.dir.Get(id)
	if err != nil || r.needed.has(prefix(s.Root)) && r.needed.has(engines+s.EngineHash) {
		return err
	}
	if err := r.mine(ctx); err != nil {
		return err
	}
	return errors.Join(r.needImage(ctx, s, atOnce), r.needEngine(ctx, s))
}

func (r *Replica) needImage(ctx context.Context, s cay.Snapshot, atOnce int) error {
	at := prefix(s.Root)
	if r.needed.has(at) {
		return nil
	}
	path, err := r.dir.Image(s.Root)
	if err == nil {
		err = r.pushImage(ctx, s.Root, s.Team, path, atOnce)
	}
	if err == nil {
		r.needed.note(at)
	}
	return err
}

func (r *Replica) needEngine(ctx context.Context, s cay.Snapshot) error {
	at := engines + s.EngineHash
	if r.needed.has(at) {
		return nil
	}
	err := r.pushEngine(ctx, s.EngineHash)
	if err == nil {
		r.needed.note(at)
	}
	return err
}

// before is what the bucket, which is this machine's to write, has at a place.
func (r *Replica) before(ctx context.Context, at string) (there record, err error) {
	all, asking := errgroup.WithContext(ctx)
	all.Go(func() error { return r.mine(asking) })
	all.Go(func() (err error) {
		there, err = r.pushed(asking, at)
		return err
	})
	err = all.Wait()
	return there, err
}

// sendFiles copies the files of a snapshot that are not there, and compares them with their
// checksums: they may have been damaged on the disk, and such a copy helps no machine. It says in a
// record where they are.
func (r *Replica) sendFiles(ctx context.Context, at, dir string, s cay.Snapshot, before record, out *record) error {
	sent, err := r.sentAhead(ctx, s.ID)
	if err != nil {
		return err
	}
	p := r.newPush(ctx, at, r.piece)
	out.Files = make([]file, len(s.Files))
	for i, f := range s.Files {
		if there, ok := before.file(f); ok && before.Piece == r.piece {
			out.Files[i], out.Format = there, max(out.Format, before.Format)
			continue
		}
		if there, ok := sent[f.Name]; ok && there.is(f) {
			out.Files[i], out.Format = there.file, quickFormat
			continue
		}
		whole := snapshot.NewComparison(s.ID, f)
		to := &out.Files[i]
		*to, err = p.named(filepath.Join(dir, f.Name), whole)
		if err == nil && to.Size != f.Size {
			err = cay.Errorf(cay.Internal, "snapshot %s is damaged: %s has %d bytes, its record says %d", s.ID, f.Name, to.Size, f.Size).WithCode(cay.CodeDamaged)
		}
		if err == nil {
			err = whole.Err()
		}
		if err != nil {
			break
		}
		to.Name = f.Name
	}
	return p.lane.wait(err)
}

// pushFile copies a file.
func (r *Replica) pushFile(ctx context.Context, at, path string, piece int64) (file, error) {
	p := r.newPush(ctx, at, piece)
	out, err := p.named(path, io.Discard)
	return out, p.lane.wait(err)
}

// push copies files to one place of the bucket, many pieces at once.
type push struct {
	r     *Replica
	at    string
	piece int64
	lane  lane
	// effort chooses how pieces are packed; nil has them small.
	effort *effort

	mu   sync.Mutex
	sent map[string]bool // names
}

func (r *Replica) newPush(ctx context.Context, at string, piece int64) *push {
	return &push{r: r, at: at, piece: piece, lane: newLane(ctx, mostAtOnce), sent: map[string]bool{}}
}

// named is file for one that is at a path.
func (p *push) named(path string, also io.Writer) (out file, err error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return out, cay.Errorf(cay.NotFound, "%s was removed while it was copied", path)
	}
	if err != nil {
		return out, diskError(err, "read", path)
	}
	defer f.Close()
	return p.file(f, also)
}

// file copies a file, and writes it to also. Its pieces have their names, and are there, once the
// lane was waited for without an error.
func (p *push) file(f *os.File, also io.Writer) (out file, err error) {
	info, err := f.Stat()
	if err != nil {
		return out, diskError(err, "read", f.Name())
	}
	out.Size = info.Size()
	n := (out.Size + p.piece - 1) / p.piece
	out.Pieces, out.Sums = make([]string, n), make([]uint32, n)
	for i := range n {
		plain := partOf(min(p.piece, out.Size-i*p.piece))
		if _, err := io.ReadFull(f, *plain); err != nil {
			return out, diskError(err, "read", f.Name())
		}
		_, _ = also.Write(*plain) // a hash, or nothing
		err := p.lane.do(int64(len(*plain)), func(ctx context.Context) (err error) {
			defer parts.Put(plain)
			out.Sums[i] = sum(*plain)
			out.Pieces[i], err = p.send(ctx, *plain)
			return err
		})
		if err != nil {
			return out, err
		}
	}
	return out, nil
}

// send has a piece in the bucket, and returns its name.
func (p *push) send(ctx context.Context, plain []byte) (name string, err error) {
	name = p.r.keys.name(p.at, plain)
	p.mu.Lock()
	there := p.sent[name]
	p.sent[name] = true
	p.mu.Unlock()
	if there {
		return name, nil
	}
	sealed, sent := p.seal(p.at+name, plain)
	defer sent()
	return name, p.r.bucket.Put(ctx, p.at+name, sealed)
}

// seal seals a piece; the caller says when the bucket has it.
func (p *push) seal(name string, plain []byte) (sealed []byte, sent func()) {
	if p.effort == nil {
		return p.r.keys.seal(name, plain), func() {}
	}
	pack, begun := p.effort.codec(), time.Now()
	sealed = p.r.keys.sealAs(name, plain, pack)
	packed := time.Now()
	return sealed, func() { p.effort.took(pack, packed.Sub(begun), time.Since(packed)) }
}
