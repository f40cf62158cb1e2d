// Package replica copies snapshots, root images and the builds of the engine that
// restore them to a bucket, and back to a data directory that lacks them.
//
//	owner                      whose the bucket is, and which machine writes it
//	snapshots/<id>/record      a snapshot: its record, and the pieces of its files; written after them
//	snapshots/<id>/<piece>     named by what is in it
//	images/<digest>/record     a root image: the images whose pieces it uses, and the name of its list
//	images/<digest>/<list>     of its pieces, here and below other images
//	images/<digest>/<piece>    cut where the content says so
//	engines/<hash>/record      a build of the engine, likewise
//	engines/<hash>/<piece>
//
// All is compressed, and encrypted with keys that are made of the data directory's
// sealing key: the bucket alone tells sizes and ids. A piece is opened for its place
// only, and is what its name says, or it is damaged.
package replica

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/blob"
	"github.com/cay-run/cay/internal/machine/disk"
	"github.com/cay-run/cay/internal/machine/engine"
	"github.com/cay-run/cay/internal/machine/snapshot"
)

const (
	format = 1 // of records; a change of keys or names raises it
	// A guest waits for a whole piece of its snapshot. Of images and engines each is read
	// whole, and fewer objects cost less.
	snapshotPiece = 1 << 20
	otherPiece    = 4 << 20
	inFlight      = 16 << 20 // bytes of pieces under way
	mostAtOnce    = 16       // pieces
	ownerName     = "owner"
	recordName    = "record"
	snapshots     = "snapshots/"
	images        = "images/"
	engines       = "engines/"
)

// atOnce is how many pieces of so many bytes are under way at once.
func atOnce(piece int64) int { return int(min(max(inFlight/piece, 1), mostAtOnce)) }

// Replica is the bucket of an installation. Its methods may be called at the same
// time; copies to the bucket and the removal of what is not needed take turns, and so do
// copies of one image or engine.
type Replica struct {
	bucket  *blob.Bucket
	dir     *snapshot.Dir
	engines string // the directory of engines, one below it for each hash
	keys    keys
	machine string
	room    func(bytes int64) error

	piece, otherPiece int64 // bytes
	cuts              bounds

	keepFor, condemnedFor, settle time.Duration

	patience time.Duration // with a bucket that does not answer
	awaits   time.Duration // another node's copy; 0 for a machine that has all that it made

	makers  Makers        // nil for a machine alone
	silence time.Duration // of a node that has what is asked for
	grace   time.Duration // for the second of a snapshot's node and the bucket
	serving serving
	log     *slog.Logger

	writing sync.RWMutex // for copies to the bucket, and whole for the removal of what is not needed

	ctx      context.Context // of what goes on without its caller
	stop     context.CancelFunc
	mu       sync.Mutex
	fetching map[cay.SnapshotID]*fetch
	last     map[cay.SnapshotID]found // by Record, for a start that follows
	early    map[cay.SnapshotID]*ahead
	fetched  atomic.Int64
	sharing  map[string]chan struct{} // names of images and engines that are being copied, until it is closed
	running  sync.WaitGroup

	kept   lately // root images that the bucket was seen to have
	needed lately // root images and engines that were noted to be needed
}

// lately is what was seen or done within a minute, by any name, and need not be again: many snapshots
// stand on one image. The zero value is ready.
type lately struct {
	mu sync.Mutex
	at map[string]time.Time
}

func (l *lately) has(name string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Since(l.at[name]) < time.Minute
}

func (l *lately) note(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	maps.DeleteFunc(l.at, func(_ string, at time.Time) bool { return time.Since(at) >= time.Minute })
	if l.at == nil {
		l.at = map[string]time.Time{}
	}
	l.at[name] = time.Now()
}

// fetch is a snapshot that is being copied from the bucket.
type fetch struct {
	begun   chan struct{}  // closed when a start may begin
	arrival engine.Arrival // from then on
	done    chan struct{}
	err     error // once it is done
}

// New returns the replica that a bucket has of a data directory's snapshots. Engines is
// the directory with a build of the engine below each hash; secret is the sealing key;
// machine is a name that no other data directory has; room refuses what the disk has no
// room for. Close must follow.
func New(bucket *blob.Bucket, dir *snapshot.Dir, engines string, secret []byte, machine string, room func(bytes int64) error) *Replica {
	r := &Replica{
		bucket: bucket, dir: dir, engines: engines, keys: keys(secret), machine: machine, room: room,
		keepFor: keepFor, condemnedFor: condemnedFor, settle: settle,
		piece: snapshotPiece, otherPiece: otherPiece, cuts: cuts,
		patience: patience, silence: silence, grace: grace, fetching: map[cay.SnapshotID]*fetch{}, last: map[cay.SnapshotID]found{}, early: map[cay.SnapshotID]*ahead{}, sharing: map[string]chan struct{}{},
		log: slog.New(slog.DiscardHandler),
	}
	r.ctx, r.stop = context.WithCancel(context.Background())
	return r
}

// Ask has snapshots that this machine lacks come from the nodes that made them, and from the bucket
// where those do not give them.
func (r *Replica) Ask(makers Makers, log *slog.Logger) { r.makers, r.log = makers, log }

// Await has Record wait for a snapshot that is nowhere: the node that made it may be about to
// answer, or to copy it to the bucket.
func (r *Replica) Await(copies time.Duration) { r.awaits = copies }

// Close ends what is being fetched.
func (r *Replica) Close() error {
	r.stop()
	r.running.Wait()
	return nil
}

// Take makes the bucket this machine's to write, once it is found good: Conflict where
// it is of another installation, which has other keys. A machine that had it before
// writes no more: a backup that is restored elsewhere has the copies go on there.
func (r *Replica) Take(ctx context.Context) error {
	if err := r.bucket.Probe(ctx); err != nil {
		return err
	}
	mine := r.keys.seal(ownerName, []byte(r.machine))
	if err := r.bucket.Create(ctx, ownerName, mine); !errors.Is(err, blob.ErrExists) {
		return err
	}
	owner, err := r.owner(ctx)
	if err != nil || owner == r.machine {
		return err
	}
	return r.bucket.Put(ctx, ownerName, mine)
}

func (r *Replica) owner(ctx context.Context) (string, error) {
	plain, err := r.get(ctx, ownerName)
	if errors.Is(err, blob.ErrDamaged) {
		return "", cay.Wrap(cay.Conflict, err, "the bucket is of another installation: its keys are others").
			WithHint("give each installation a bucket or a prefix of its own")
	}
	return string(plain), err
}

// mine refuses to write what another machine writes.
func (r *Replica) mine(ctx context.Context) error {
	owner, err := r.owner(ctx)
	if err == nil && owner != r.machine {
		err = cay.Errorf(cay.Conflict, "another machine of this installation writes the bucket").
			WithHint("stop its server, then start this one again")
	}
	return err
}

// file is a file that is in the bucket as pieces.
type file struct {
	Name   string   `json:"name,omitempty"` // empty for an image
	Size   int64    `json:"size"`
	Pieces []string `json:"pieces"`
	Sums   []uint32 `json:"sums,omitempty"` // of each piece; copies of older Cays have none
}

// record is what recordName holds.
type record struct {
	Format   int           `json:"format"`
	Piece    int64         `json:"piece,omitempty"`    // bytes of each piece but the last
	Snapshot *cay.Snapshot `json:"snapshot,omitempty"` // nil for an image
	Files    []file        `json:"files,omitempty"`
	Image    *image        `json:"image,omitempty"` // of one that is cut by content; it has no Files and no Piece
	// Condemned says that no snapshot needed this image or engine when it was looked at: what
	// it names may go, and a new copy counts on nothing of it.
	Condemned bool `json:"condemned,omitempty"`
}

// recordOrNone is record for what may not be there. A damaged one is written anew.
func (r *Replica) recordOrNone(ctx context.Context, at string) (record, error) {
	out, err := r.record(ctx, at)
	if errors.Is(err, blob.ErrMissing) || errors.Is(err, blob.ErrDamaged) {
		return record{}, nil
	}
	return out, err
}

func (r *Replica) record(ctx context.Context, at string) (out record, err error) {
	plain, err := r.get(ctx, at+recordName)
	if err != nil {
		return out, err
	}
	err = json.Unmarshal(plain, &out)
	known := format
	switch {
	case strings.HasPrefix(at, images):
		known = imageFormat
	case strings.HasPrefix(at, snapshots):
		known = quickFormat
	}
	switch {
	case err == nil && (out.Format < format || out.Format > known):
		return out, cay.Errorf(cay.Unsupported, "the copy %s in the bucket has format %d; this Cay reads %d", strings.TrimSuffix(at, "/"), out.Format, known).
			WithHint("upgrade this server to the version of the one that wrote it")
	case err != nil || !out.sound():
		return out, damaged(at + recordName)
	}
	return out, nil
}

// sound reports whether a record may be one of its format.
func (r record) sound() bool {
	if r.Format == imageFormat {
		return r.Image != nil && r.Image.sound()
	}
	return r.Image == nil && r.Piece > 0 && r.Piece <= blob.MaxObject
}

func (r *Replica) putRecord(ctx context.Context, at string, out record) error {
	out.Format = max(out.Format, format)
	plain, err := json.Marshal(out)
	if err != nil {
		return cay.Wrap(cay.Internal, err, "encode a record of the bucket")
	}
	return r.bucket.Put(ctx, at+recordName, r.keys.seal(at+recordName, plain))
}

// Fetch copies what the data directory lacks of a snapshot, its root image and its
// engine from the bucket: each whole, or not at all. NotFound means that the bucket has
// no such snapshot; a bucket may lack the engine, as those of older Cays do. Of many
// callers one fetches; it goes on when they leave, so that a later one finds it.
func (r *Replica) Fetch(ctx context.Context, id cay.SnapshotID) error {
	under, err := r.under(id)
	if err != nil {
		return err
	}
	return under.wait(ctx, under.done, id)
}

// Arrive is Fetch for a start that needs no whole snapshot: it returns when the root
// image and the engine are there, and the snapshot's files arrive meanwhile.
func (r *Replica) Arrive(ctx context.Context, id cay.SnapshotID) (engine.Arrival, error) {
	under, err := r.under(id)
	if err != nil {
		return nil, err
	}
	if err := under.wait(ctx, under.begun, id); err != nil {
		return nil, err
	}
	return under.arrival, nil
}

// under is the fetch of a snapshot that is under way, or begins.
func (r *Replica) under(id cay.SnapshotID) (*fetch, error) {
	if !cay.ValidID(string(id)) {
		return nil, cay.Errorf(cay.NotFound, "no snapshot %q", id)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if under := r.fetching[id]; under != nil {
		return under, nil
	}
	under := &fetch{begun: make(chan struct{}), done: make(chan struct{})}
	r.fetching[id] = under
	r.running.Go(func() {
		defer r.dir.Use(id)()
		under.err = r.fetch(r.ctx, id, func(a engine.Arrival) {
			under.arrival = a
			close(under.begun)
		})
		r.mu.Lock()
		delete(r.fetching, id)
		r.mu.Unlock()
		close(under.done)
	})
	return under, nil
}

// wait waits for a moment of a fetch, or its end.
func (f *fetch) wait(ctx context.Context, moment chan struct{}, id cay.SnapshotID) error {
	select {
	case <-moment:
	case <-f.done:
	case <-ctx.Done():
		return cay.Wrap(cay.Unavailable, ctx.Err(), "snapshot %s is still being copied from the bucket", id).WithHint("try again")
	}
	select {
	case <-f.done:
		return explain(f.err, id)
	default: // it goes on
		return nil
	}
}

// fetch copies what lacks. It says when a start may begin.
func (r *Replica) fetch(ctx context.Context, id cay.SnapshotID, begun func(engine.Arrival)) error {
	dir, s, err := r.dir.Get(id)
	if err == nil {
		if err = r.fetchBelow(ctx, s); err == nil {
			begun(local{dir, s})
		}
		return err
	}
	if cay.KindOf(err) != cay.NotFound {
		return err
	}
	a, err := r.arrive(ctx, id)
	if err != nil {
		return err
	}
	if err := r.fetchFound(ctx, a.s, a.from); err != nil {
		a.end("", err)
		return err
	}
	begun(a)
	r.fetched.Add(1)
	return a.run(ctx)
}

// Fetched is how many snapshots were copied back, or are being.
func (r *Replica) Fetched() int64 { return r.fetched.Load() }

// fetchBelow copies what any start from a snapshot needs whole.
func (r *Replica) fetchBelow(ctx context.Context, s cay.Snapshot) error {
	if err := r.fetchImage(ctx, s.Root); err != nil {
		return err
	}
	return r.fetchEngine(ctx, s.EngineHash)
}

// fetchFile writes a file. Pieces of zeros take no room.
func (r *Replica) fetchFile(ctx context.Context, at string, from file, piece int64, path string) error {
	if (from.Size+piece-1)/piece != int64(len(from.Pieces)) {
		return damaged(at + recordName)
	}
	f, err := create(path)
	if err != nil {
		return diskError(err, "write", path)
	}
	all, ctx := errgroup.WithContext(ctx)
	all.SetLimit(atOnce(piece))
	for i := range from.Pieces {
		all.Go(func() error {
			plain, err := r.pieceOf(ctx, at, from, piece, i)
			if err != nil {
				return err
			}
			if zero(plain) {
				return nil
			}
			_, err = f.WriteAt(plain, int64(i)*piece)
			return diskError(err, "write", path)
		})
	}
	err = all.Wait()
	if err == nil {
		err = diskError(f.Truncate(from.Size), "write", path)
	}
	return errors.Join(err, diskError(f.Close(), "write", path))
}

// pieceOf gets a piece of a file.
func (r *Replica) pieceOf(ctx context.Context, at string, from file, piece int64, i int) ([]byte, error) {
	sealed, err := r.bucket.Get(ctx, at+from.Pieces[i])
	if err != nil {
		return nil, err
	}
	return r.openPiece(at, from, piece, i, sealed)
}

// openPiece opens what the bucket has of a piece. Bytes that open under a piece's name were sealed
// under it, when the name was made of it: it is not made once more, which would cost half as
// much as the rest.
func (r *Replica) openPiece(at string, from file, piece int64, i int, sealed []byte) ([]byte, error) {
	name := from.Pieces[i]
	plain, err := r.keys.open(at+name, sealed)
	if err == nil && int64(len(plain)) != min(piece, from.Size-int64(i)*piece) {
		err = damaged(at + name)
	}
	return plain, err
}

func diskError(err error, what, path string) error {
	if err == nil {
		return nil
	}
	return disk.Error(err, "%s %s", what, path)
}

func create(path string) (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	return os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
}

func (r *Replica) get(ctx context.Context, name string) ([]byte, error) {
	sealed, err := r.bucket.Get(ctx, name)
	if err != nil {
		return nil, err
	}
	return r.keys.open(name, sealed)
}

func damaged(name string) error {
	return cay.Wrap(cay.Internal, blob.ErrDamaged, "the object %s of the bucket is damaged, or of another installation", name)
}

// explain says what an error of a copy means for a snapshot.
func explain(err error, id cay.SnapshotID) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, blob.ErrDamaged), errors.Is(err, blob.ErrMissing):
		return cay.Wrap(cay.Internal, err, "the copy of snapshot %s in the bucket is damaged", id).WithCode(cay.CodeDamaged)
	case errors.Is(err, blob.ErrUnreachable), errors.Is(err, blob.ErrCredentials), errors.Is(err, blob.ErrClock), errors.Is(err, blob.ErrNoBucket):
		return cay.Wrap(cay.Unavailable, err, "snapshot %s is in the bucket, which cannot be read now", id)
	}
	return err
}
