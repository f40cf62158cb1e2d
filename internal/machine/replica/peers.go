package replica

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/blob"
)

// Maker is a node that made a snapshot, and has it on its disk unless it was removed there.
type Maker struct {
	Node cay.NodeID
	// Ask sends it a question (ServeHTTP); nil for a node that is gone.
	Ask func(ctx context.Context, path string) (*http.Response, error)
	// Maybe says that the records do not tell who made it, and that this one may have it.
	Maybe bool
}

// Makers tells which nodes made a snapshot, or, where the records do not know, all that may have it;
// none is no error.
type Makers func(context.Context, cay.SnapshotID) ([]Maker, error)

const (
	// silence is how long a node that has what is asked for may send nothing.
	silence = 3 * time.Second
	// grace is how long what has not answered is waited for once either of a snapshot's
	// node and the bucket has.
	grace = 200 * time.Millisecond
	// foundFor is how long an answer is good for a start that follows.
	foundFor = 10 * time.Second
	maxList  = 4 << 20 // bytes of a record
	// lines is how many parts come from a node at once: each has a connection, which costs as
	// much to make as a part.
	lines = 4
)

var (
	errNotHere = errors.New("the node has it not")
	errStalled = errors.New("the node sends nothing")
	errDamaged = errors.New("the bytes are not those that were saved")
)

// peer is a node that has what this machine lacks.
type peer struct {
	node    cay.NodeID
	ask     func(ctx context.Context, path string) (*http.Response, error)
	silence time.Duration
	lines   chan struct{}
	pace    pace
}

// get asks a question, and has read take the answer, of a size and an encoding; it is not called
// for a part that is all zero, which has no body.
func (p *peer) get(ctx context.Context, path string, read func(body io.Reader, size int64, as string) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stalled := time.AfterFunc(p.silence, func() { cancel(errStalled) })
	defer stalled.Stop()
	resp, err := p.ask(ctx, path)
	if err != nil {
		return errors.Join(err, context.Cause(ctx))
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusOK:
		err = read(heard{resp.Body, stalled, p.silence}, resp.ContentLength, resp.Header.Get("Content-Encoding"))
		if err != nil {
			err = errors.Join(err, context.Cause(ctx))
		}
		return err
	case http.StatusNoContent:
		return nil
	case http.StatusNotFound:
		return errNotHere
	}
	text, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
	return fmt.Errorf("the node answers %d: %s", resp.StatusCode, text)
}

// heard puts off the end of the wait for a node with each bytes that come.
type heard struct {
	io.Reader
	stalled *time.Timer
	silence time.Duration
}

func (h heard) Read(b []byte) (int, error) {
	n, err := h.Reader.Read(b)
	if n > 0 {
		h.stalled.Reset(h.silence)
	}
	return n, err
}

// list asks what there is below a path.
func (p *peer) list(ctx context.Context, at string) (out record, err error) {
	err = p.get(ctx, "/"+at, func(body io.Reader, _ int64, _ string) error {
		return json.NewDecoder(io.LimitReader(body, maxList)).Decode(&out)
	})
	if err == nil && (out.Piece <= 0 || out.Piece > servedMost || len(out.Files) == 0) {
		err = errors.New("the node's record is none")
	}
	for _, f := range out.Files {
		if err == nil && f.Size < 0 {
			err = errors.New("the node's record has a file of no size")
		}
	}
	return out, err
}

// part reads a part of a file.
func (p *peer) part(ctx context.Context, at, name string, from int64, into []byte) error {
	select {
	case p.lines <- struct{}{}:
		defer func() { <-p.lines }()
	case <-ctx.Done():
		return ctx.Err()
	}
	asked := url.Values{"from": {strconv.FormatInt(from, 10)}, "size": {strconv.Itoa(len(into))}}
	packs, begun := p.pace.packs(), time.Now()
	if packs {
		asked.Set(asParam, packing)
	}
	if name != "" {
		asked.Set("file", name)
	}
	sent := false
	err := p.get(ctx, "/"+at+"?"+asked.Encode(), func(body io.Reader, size int64, as string) error {
		sent = true
		return readPart(into, body, size, as)
	})
	switch {
	case err == nil && !sent:
		clear(into)
	case err == nil && len(into) >= paced:
		p.pace.took(packs, len(into), time.Since(begun))
	}
	return err
}

// file writes a file that the node has below a path.
func (p *peer) file(ctx context.Context, at string, from file, piece int64, path string) error {
	f, err := create(path)
	if err != nil {
		return diskError(err, "write", path)
	}
	all, ctx := errgroup.WithContext(ctx)
	all.SetLimit(atOnce(piece))
	for off := int64(0); off < from.Size; off += piece {
		all.Go(func() error {
			part := partOf(min(piece, from.Size-off))
			defer parts.Put(part)
			err := p.part(ctx, at, from.Name, off, *part)
			if err == nil && !zero(*part) {
				_, err = f.WriteAt(*part, off)
				err = diskError(err, "write", path)
			}
			return err
		})
	}
	err = all.Wait()
	if err == nil {
		err = diskError(f.Truncate(from.Size), "write", path)
	}
	return errors.Join(err, diskError(f.Close(), "write", path))
}

// found is a snapshot that this machine lacks, and where it is.
type found struct {
	in   record // without names of pieces where kept is false
	kept bool   // the bucket has it
	peer *peer  // nil where no node has it
	at   time.Time
}

// find looks for a snapshot in the bucket and on the node that made it, again for a while where
// it is nowhere yet.
func (r *Replica) find(ctx context.Context, id cay.SnapshotID, patience time.Duration) (found, error) {
	r.mu.Lock()
	last := r.last[id]
	delete(r.last, id)
	r.mu.Unlock()
	if time.Since(last.at) < foundFor {
		return last, nil
	}
	for begun := time.Now(); ; {
		out, err := r.look(ctx, id)
		if ctx.Err() != nil {
			return out, cay.Wrap(cay.Unavailable, ctx.Err(), "snapshot %s is not in the bucket yet", id).WithHint("try again")
		}
		if !errors.Is(err, errNotYet) || time.Since(begun) >= patience {
			return out, err
		}
		select {
		case <-time.After(min(patience, pause/4)):
		case <-ctx.Done():
		}
	}
}

// remember keeps what was found for the start that follows.
func (r *Replica) remember(id cay.SnapshotID, f found) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for old, l := range r.last {
		if time.Since(l.at) >= foundFor {
			delete(r.last, old)
		}
	}
	f.at = time.Now()
	r.last[id] = f
}

// errNotYet means that a snapshot may be found a little later.
var errNotYet = errors.New("it is nowhere yet")

// answer is a record of a snapshot from one place.
type answer struct {
	in   record
	from *peer
	err  error
}

// look asks the bucket and the node that made a snapshot at the same time.
func (r *Replica) look(ctx context.Context, id cay.SnapshotID) (found, error) {
	asking, done := context.WithCancel(ctx)
	defer done()
	kept, made := make(chan answer, 1), make(chan answer, 1)
	go func() {
		in, err := r.keptRecord(asking, id)
		kept <- answer{in: in, err: err}
	}()
	go func() { made <- r.askMakers(asking, id) }()
	var bucket, node *answer
	var late <-chan time.Time
	for waits := true; waits && (bucket == nil || node == nil); {
		select {
		case a := <-kept:
			bucket = &a
		case a := <-made:
			node = &a
		case <-late:
			waits = false
		}
		if late == nil && (bucket != nil && bucket.err == nil || node != nil && node.err == nil) {
			late = time.After(r.grace)
		}
	}
	switch {
	case bucket != nil && bucket.err == nil:
		out := found{in: bucket.in, kept: true}
		if node != nil && node.err == nil && sameFiles(*bucket.in.Snapshot, *node.in.Snapshot) {
			out.peer = node.from
		}
		return out, nil
	case node.err == nil:
		return found{in: node.in, peer: node.from}, nil
	case !errors.Is(bucket.err, blob.ErrMissing):
		return found{}, bucket.err
	case r.makers == nil && r.evicted(id):
		return found{}, r.gone(ctx, id)
	case cay.CodeOf(node.err) != cay.CodeLost:
		return found{}, node.err
	}
	// The node may have copied it, and removed it from its disk, since the bucket was asked.
	in, err := r.keptRecord(ctx, id)
	if errors.Is(err, blob.ErrMissing) {
		// A directory that is not mounted lacks everything.
		if _, away := r.owner(ctx); away != nil {
			return found{}, cay.Errorf(cay.Unavailable, "snapshot %s may be in the bucket, which cannot be read now: it lacks the name of its owner", id)
		}
		err = node.err
	}
	return found{in: in, kept: true}, err
}

// keptRecord is the record that the bucket has of a snapshot. In a cluster it may be about to get
// the root image: until then a copy is of use to nodes that have that.
func (r *Replica) keptRecord(ctx context.Context, id cay.SnapshotID) (record, error) {
	at := snapshots + string(id) + "/"
	in, err := r.record(ctx, at)
	if err == nil && (in.Snapshot == nil || in.Snapshot.ID != id || len(in.Files) != len(in.Snapshot.Files)) {
		err = damaged(at + recordName)
	}
	if err == nil && r.makers != nil {
		if _, here := r.dir.Image(in.Snapshot.Root); here != nil {
			_, err = r.record(ctx, prefix(in.Snapshot.Root))
		}
		if errors.Is(err, blob.ErrMissing) {
			err = errAway(id, errNotYet, "its root image is neither there nor on this machine")
		}
	}
	return in, err
}

// sameFiles reports whether one record has the files of the other. Files that were attached to a
// snapshot after its copy do not count.
func sameFiles(s, as cay.Snapshot) bool {
	return len(s.Files) <= len(as.Files) && slices.Equal(s.Files, as.Files[:len(s.Files)])
}

// askMakers asks the nodes that made a snapshot for its record, one after the other.
func (r *Replica) askMakers(ctx context.Context, id cay.SnapshotID) answer {
	nowhere := cay.Wrap(cay.NotFound, errNotYet, "no snapshot %q", id)
	if r.makers == nil {
		return answer{err: nowhere}
	}
	makers, err := r.makers(ctx, id)
	if err != nil {
		return answer{err: errAway(id, errors.Join(errNotYet, err), "the records that tell its node cannot be read")}
	}
	out := answer{err: nowhere}
	for _, m := range makers {
		var why string
		switch {
		case m.Ask == nil && m.Maybe:
			why = "no node has it that is left"
		case m.Ask == nil:
			why = fmt.Sprintf("node %s, which made it, is gone", m.Node)
		default:
			p := &peer{node: m.Node, ask: m.Ask, silence: r.silence, lines: make(chan struct{}, lines)}
			in, err := p.list(ctx, snapshots+string(id))
			switch {
			case err == nil && (in.Snapshot == nil || in.Snapshot.ID != id || !slices.EqualFunc(in.Files, filesOf(*in.Snapshot), sameFile)):
				err = errors.New("its record is that of another")
			case err == nil:
				return answer{in: in, from: p}
			}
			if !errors.Is(err, errNotHere) {
				which := ", which made it, does not give it now"
				if m.Maybe {
					which = ", which may have it, does not answer now"
				}
				out.err = errAway(id, errors.Join(errNotYet, err), "node "+string(m.Node)+which)
				continue
			}
			why = fmt.Sprintf("node %s, which made it, has it no more", m.Node)
			if m.Maybe {
				why = "no node has it that is left"
			}
		}
		if cay.CodeOf(out.err) != cay.CodeNotReplicated { // another one may come back
			var cause error
			if m.Maybe { // the records may tell its maker a moment later
				cause = errNotYet
			}
			out.err = cay.Wrap(cay.Internal, cause, "snapshot %s is lost: the bucket has no copy of it, and %s", id, why).
				WithCode(cay.CodeLost).WithHint("if that node's server comes back with its disk, so does the snapshot")
		}
	}
	return out
}

func sameFile(a, b file) bool { return a.Name == b.Name && a.Size == b.Size }

// errAway says that a snapshot is where it cannot be read now.
func errAway(id cay.SnapshotID, cause error, why string) error {
	return cay.Wrap(cay.Unavailable, cause, "the bucket has no whole copy of snapshot %s yet, and %s", id, why).
		WithCode(cay.CodeNotReplicated).WithHint("try again in some seconds; `cay cluster status` tells whether all nodes are there")
}

// fetchFound copies what a start needs whole: from the bucket, or from the node that made the
// snapshot where the bucket has not got it yet, or does not answer.
func (r *Replica) fetchFound(ctx context.Context, s cay.Snapshot, f found) error {
	p := f.peer
	if p == nil || f.kept {
		err := r.fetchBelow(ctx, s)
		if err == nil || p == nil || ctx.Err() != nil || !(errors.Is(err, blob.ErrMissing) || errors.Is(err, blob.ErrUnreachable)) {
			return err
		}
	}
	if err := errors.Join(r.imageFrom(ctx, p, s.Root), r.engineFrom(ctx, p, s.EngineHash)); err == nil || ctx.Err() != nil {
		return err
	}
	return r.fetchBelow(ctx, s)
}

// imageFrom copies a root image that this machine lacks from another node. It is what a start there
// reads: its digest is not always of its bytes.
func (r *Replica) imageFrom(ctx context.Context, p *peer, digest string) error {
	if _, err := r.dir.Image(digest); cay.KindOf(err) != cay.NotFound {
		return err
	}
	at := images + digest
	in, err := p.list(ctx, at)
	if err != nil {
		return err
	}
	if err := r.room(in.Files[0].Size); err != nil {
		return err
	}
	tmp, err := r.dir.Begin()
	if err != nil {
		return err
	}
	defer func() { _ = r.dir.Abort(tmp) }()
	path := filepath.Join(tmp, "image")
	if err := p.file(ctx, at, in.Files[0], in.Piece, path); err != nil {
		return err
	}
	return r.dir.AddNamed(path, digest)
}

// engineFrom copies a build of the engine that this machine lacks from another node, unless it has
// none: then snapshots are of use for their files alone there, too.
func (r *Replica) engineFrom(ctx context.Context, p *peer, hash string) error {
	dir, ok := r.engineDir(hash)
	if _, err := os.Stat(dir); !ok || err == nil {
		return nil
	}
	at := engines + hash
	in, err := p.list(ctx, at)
	if errors.Is(err, errNotHere) {
		return nil
	}
	if err != nil {
		return err
	}
	return r.placeEngine(dir, in.Files, func(f file, path string) error { return p.file(ctx, at, f, in.Piece, path) })
}

// fromPeer brings a piece from the node that made the snapshot. It takes its turn of the
// processors before it begins: most of its work is to read it.
// It reports whether the node sent it.
func (a *arrival) fromPeer(ctx context.Context, of *arriving, i int, wanted <-chan struct{}) (sent bool, err error) {
	a.mu.Lock()
	p, kept, after := a.peer, a.kept, a.peerAfter
	a.mu.Unlock()
	if p == nil || time.Now().Before(after) {
		return false, nil
	}
	defer a.turn(wanted)()
	off := int64(i) * a.piece
	part := partOf(min(a.piece, of.from.Size-off))
	defer parts.Put(part)
	err = p.part(ctx, strings.TrimSuffix(a.at, "/"), of.from.Name, off, *part)
	if err == nil && kept && !a.r.right(a.at, a.keptFile(of), i, *part) {
		err = errDamaged
	}
	if err != nil {
		a.leave(ctx, p, err)
		return false, nil
	}
	if !kept {
		a.unchecked.Store(true)
	}
	return true, a.put(of, i, *part)
}

// leave has the other pieces come from the bucket. A node that may be the only one that has them is
// asked again a little later.
func (a *arrival) leave(ctx context.Context, p *peer, why error) {
	if ctx.Err() != nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.peer != p {
		return
	}
	a.peerAfter = time.Now().Add(pause)
	if a.kept || errors.Is(why, errNotHere) {
		a.peer = nil
	}
	a.r.log.WarnContext(ctx, "the node that made a snapshot does not give a part of it; the bucket is asked", "node", p.node, "snapshot", a.s.ID, "err", why)
}

func (a *arrival) keptFile(of *arriving) file {
	a.mu.Lock()
	defer a.mu.Unlock()
	return of.kept
}

// right reports whether a piece has the bytes that the bucket's record says. Copies of older Cays
// have no sums, and names that are made of the bytes.
func (r *Replica) right(at string, from file, i int, plain []byte) bool {
	if len(from.Sums) == len(from.Pieces) {
		return from.Sums[i] == sum(plain)
	}
	return from.Pieces[i] == r.keys.name(at, plain)
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// sum tells damage of a disk, at a twentieth of the cost of a name. Bytes that a node sends are
// authentic by its connection.
func sum(plain []byte) uint32 { return crc32.Checksum(plain, castagnoli) }

// inBucket finds out what the bucket has of a snapshot that began to arrive from its node alone.
func (a *arrival) inBucket(ctx context.Context) error {
	a.asking.Lock()
	defer a.asking.Unlock()
	a.mu.Lock()
	kept := a.kept
	a.mu.Unlock()
	if kept {
		return nil
	}
	in, err := a.r.keptRecord(ctx, a.s.ID)
	switch {
	case errors.Is(err, blob.ErrMissing):
		return errAway(a.s.ID, errNotYet, "the node that made it does not give it now")
	case err != nil:
		return err
	case in.Piece != a.piece || !sameFiles(*in.Snapshot, a.s) || len(in.Files) != len(a.files):
		return damaged(a.at + recordName)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, f := range in.Files {
		of := a.find(f.Name)
		if len(f.Pieces) != len(of.state) {
			return damaged(a.at + recordName)
		}
		of.kept = f
	}
	a.kept = true
	return nil
}
