package replica

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"
	"golang.org/x/sys/unix"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/blob"
)

const (
	imageFormat = 2 // of records of images that are cut by content; before, they were as snapshots
	// mostRelatives is how many images one is compared with.
	mostRelatives = 8
	// leastUse is the part of another image's pieces that one that uses it must need: what the
	// bucket keeps for others has four times the size of what they need at most.
	leastUse = 4
)

// image is a root image in the bucket.
type image struct {
	Size int64 `json:"size"`
	// Uses are the digests of other images that have some of its pieces.
	Uses []string `json:"uses,omitempty"`
	// Index names the object that lists the pieces. The record is written anew whenever
	// the image is needed, and is small.
	Index string `json:"index"`
}

// piece is a run of blocks of an image.
type piece struct {
	ID     string `json:"id,omitempty"` // of what is in it, anywhere in this bucket; empty for zeros
	Blocks int64  `json:"n"`
	In     int    `json:"in,omitempty"` // the image that has it: 0 for the one itself, else 1 + its place in Uses
}

// valid reports whether pieces are those of an image.
func (i image) valid(pieces []piece) bool {
	blocks := (i.Size + blockSize - 1) / blockSize
	for _, p := range pieces {
		if p.Blocks < 1 || p.Blocks > mostCut || p.Blocks > blocks || p.In < 0 || p.In > len(i.Uses) || p.ID != "" && !hexadecimal(p.ID, nameLength) {
			return false
		}
		blocks -= p.Blocks
	}
	return blocks == 0
}

// sound reports whether a record may be that of an image.
func (i image) sound() bool {
	return i.Size >= 0 && hexadecimal(i.Index, nameLength) &&
		!slices.ContainsFunc(i.Uses, func(digest string) bool { return !hexadecimal(digest, digestLength) })
}

const (
	nameLength   = 48
	digestLength = 64
)

func hexadecimal(s string, length int) bool {
	return len(s) == length && strings.Trim(s, "0123456789abcdef") == ""
}

// prefix is the place of an image in the bucket.
func prefix(digest string) string { return images + digest + "/" }

// home is the place of the image that has a piece.
func (i image) home(at string, p piece) string {
	if p.In == 0 {
		return at
	}
	return prefix(i.Uses[p.In-1])
}

// pieces reads the index of an image.
func (r *Replica) pieces(ctx context.Context, at string, i image) ([]piece, error) {
	text, err := r.get(ctx, at+i.Index)
	if err != nil {
		return nil, err
	}
	out, ok := i.parse(text)
	if !ok {
		return nil, damaged(at + i.Index)
	}
	return out, nil
}

// parse reads the list of an image's pieces.
func (i image) parse(text []byte) (out []piece, ok bool) {
	err := json.Unmarshal(text, &out)
	return out, err == nil && i.valid(out)
}

// pushImage copies a root image for a team's snapshot, so many pieces at once, or notes that it is
// needed still.
func (r *Replica) pushImage(ctx context.Context, digest string, team cay.TeamID, path string, atOnce int) error {
	at := prefix(digest)
	return r.pushShared(ctx, at, func(has map[string]bool) (record, error) {
		homes, err := r.homes(ctx, digest, team)
		if err != nil {
			return record{}, err
		}
		p := imagePush{r: r, at: at, path: path, atOnce: atOnce, has: has, homes: homes}
		made, err := p.run(ctx)
		return record{Format: imageFormat, Image: &made}, err
	})
}

// homes says which images have which pieces that a new one may use: by a piece's id the
// digest. They are the newest images of the team's snapshots and of the templates
// that Cay brings, as far as this machine has both, and what those use themselves: what a team
// can read anyway. So no team finds out what another one's images hold.
//
// Each is noted to be needed, so that it stays until the new image's record names it.
func (r *Replica) homes(ctx context.Context, digest string, team cay.TeamID) (map[string]string, error) {
	out, found := map[string]string{}, 0
	for _, relative := range r.relatives(digest, team) {
		there, pieces, err := r.cut(ctx, relative)
		if err != nil {
			return nil, err
		}
		if pieces == nil || there.Condemned {
			continue
		}
		if err := r.putRecord(ctx, prefix(relative), there); err != nil {
			return nil, err
		}
		for _, p := range pieces {
			home := relative
			if p.In > 0 {
				home = there.Image.Uses[p.In-1]
			}
			if _, known := out[p.ID]; !known && home != digest {
				out[p.ID] = home
			}
		}
		if found++; found == mostRelatives {
			break
		}
	}
	delete(out, "") // zeros
	return out, nil
}

// cut reads what the bucket has of an image that is cut by content; no pieces where it has
// none such, or one that is damaged.
func (r *Replica) cut(ctx context.Context, digest string) (record, []piece, error) {
	there, err := r.record(ctx, prefix(digest))
	var pieces []piece
	if err == nil && there.Image != nil {
		pieces, err = r.pieces(ctx, prefix(digest), *there.Image)
	}
	if errors.Is(err, blob.ErrMissing) || errors.Is(err, blob.ErrDamaged) || cay.KindOf(err) == cay.Unsupported {
		return record{}, nil, nil
	}
	return there, pieces, err
}

// relatives are the digests of images that a team's new one may have something in common
// with, the likeliest first.
func (r *Replica) relatives(digest string, team cay.TeamID) (out []string) {
	here, _ := r.dir.List() // a snapshot that cannot be read is no relative
	evicted, _ := r.dir.Evicted()
	var near []cay.Snapshot
	for _, s := range slices.Concat(here, evicted) {
		if s.Root != digest && (s.Team == team || s.Team == "" && s.Sandbox == "") {
			near = append(near, s)
		}
	}
	slices.SortFunc(near, func(a, b cay.Snapshot) int { return b.CreatedAt.Compare(a.CreatedAt) })
	for _, s := range near {
		if !slices.Contains(out, s.Root) {
			out = append(out, s.Root)
		}
	}
	return out
}

// imagePush is a root image on its way to the bucket.
type imagePush struct {
	r      *Replica
	at     string
	path   string
	atOnce int
	has    map[string]bool   // objects that are there
	homes  map[string]string // of pieces that other images have

	mu   sync.Mutex
	sent map[string]bool // ids
}

// placed is a piece of an image that is being copied.
type placed struct {
	piece
	offset, size int64
	home         string // the digest of the image that has it; empty for the one itself
}

func (p *imagePush) run(ctx context.Context) (out image, err error) {
	f, err := os.Open(p.path)
	if errors.Is(err, fs.ErrNotExist) {
		return out, cay.Errorf(cay.NotFound, "%s was removed while it was copied", p.path)
	}
	if err != nil {
		return out, diskError(err, "read", p.path)
	}
	defer f.Close()
	p.sent = map[string]bool{}
	all, err := p.send(ctx, f)
	if err != nil {
		return out, err
	}
	if out.Uses, err = p.uses(ctx, all); err != nil {
		return out, err
	}
	if err := p.sendOthers(ctx, f, all, out.Uses); err != nil {
		return out, err
	}
	list := make([]piece, len(all))
	for i, one := range all {
		one.In = 1 + slices.Index(out.Uses, one.home)
		list[i], out.Size = one.piece, out.Size+one.size
	}
	text, err := json.Marshal(list)
	if err != nil {
		return out, cay.Wrap(cay.Internal, err, "encode the list of an image's pieces")
	}
	out.Index = p.r.keys.name(p.at, text)
	return out, p.r.bucket.Put(ctx, p.at+out.Index, p.r.keys.seal(p.at+out.Index, text))
}

// send cuts the image, and sends the pieces that no other image has.
func (p *imagePush) send(ctx context.Context, f *os.File) (out []*placed, err error) {
	lane, offset := newLane(ctx, p.atOnce), int64(0)
	err = p.r.keys.cutter(p.r.cuts).cut(bufio.NewReaderSize(reading{f}, 1<<20), func(plain []byte) error {
		one := &placed{offset: offset, size: int64(len(plain))}
		one.Blocks = (one.size + blockSize - 1) / blockSize
		out, offset = append(out, one), offset+one.size
		return lane.do(one.size, func(ctx context.Context) error {
			if zero(plain) {
				return nil
			}
			one.ID = p.r.keys.content(plain)
			if one.home = p.homes[one.ID]; one.home != "" {
				return nil
			}
			return p.put(ctx, one.ID, plain)
		})
	})
	return out, lane.wait(err)
}

// put sends a piece, unless it is there.
func (p *imagePush) put(ctx context.Context, id string, plain []byte) error {
	name := p.r.keys.name(p.at, []byte(id))
	p.mu.Lock()
	there := p.sent[id] || p.has[name]
	p.sent[id] = true
	p.mu.Unlock()
	if there {
		return nil
	}
	return p.r.bucket.Put(ctx, p.at+name, p.r.keys.seal(p.at+name, plain))
}

// uses chooses the images that the new one will use: those of which it needs enough.
func (p *imagePush) uses(ctx context.Context, all []*placed) (out []string, err error) {
	needed, counted := map[string]int64{}, map[string]bool{}
	for _, one := range all {
		if one.home != "" && !counted[one.ID] {
			counted[one.ID] = true
			needed[one.home] += one.size
		}
	}
	for _, home := range slices.Sorted(maps.Keys(needed)) {
		_, pieces, err := p.r.cut(ctx, home)
		if err != nil {
			return nil, err
		}
		own, counted := int64(0), map[string]bool{}
		for _, one := range pieces {
			if one.In == 0 && one.ID != "" && !counted[one.ID] {
				counted[one.ID] = true
				own += one.Blocks * blockSize
			}
		}
		if pieces != nil && needed[home]*leastUse >= own {
			out = append(out, home)
		}
	}
	return out, nil
}

// sendOthers sends the pieces of images that are not used after all.
func (p *imagePush) sendOthers(ctx context.Context, f *os.File, all []*placed, uses []string) error {
	lane := newLane(ctx, p.atOnce)
	var err error
	for _, one := range all {
		if one.home == "" || slices.Contains(uses, one.home) {
			continue
		}
		one.home = ""
		err = lane.do(one.size, func(ctx context.Context) error {
			plain := make([]byte, one.size)
			if _, err := f.ReadAt(plain, one.offset); err != nil {
				return diskError(err, "read", p.path)
			}
			if p.r.keys.content(plain) != one.ID {
				return cay.Errorf(cay.Internal, "%s changes while it is copied", p.path)
			}
			return p.put(ctx, one.ID, plain)
		})
		if err != nil {
			break
		}
	}
	return lane.wait(err)
}

// reading tells errors of the disk from others.
type reading struct{ *os.File }

func (r reading) Read(b []byte) (int, error) {
	n, err := r.File.Read(b)
	if err != nil && err != io.EOF {
		err = diskError(err, "read", r.Name())
	}
	return n, err
}

// lane does things with pieces, as many at once as may be under way.
type lane struct {
	all   *errgroup.Group
	ctx   context.Context
	bytes *semaphore.Weighted
}

func newLane(ctx context.Context, atOnce int) lane {
	out := lane{bytes: semaphore.NewWeighted(inFlight)}
	out.all, out.ctx = errgroup.WithContext(ctx)
	out.all.SetLimit(atOnce)
	return out
}

// do begins a thing with a piece of a size; an error means that one before it failed.
func (l lane) do(size int64, thing func(context.Context) error) error {
	if err := l.bytes.Acquire(l.ctx, size); err != nil {
		return err
	}
	l.all.Go(func() error {
		defer l.bytes.Release(size)
		return thing(l.ctx)
	})
	return nil
}

// wait waits for all that was begun; err is why no more was.
func (l lane) wait(err error) error {
	if first := l.all.Wait(); first != nil {
		return first
	}
	return err
}

// fetchImage copies a root image that the data directory lacks.
func (r *Replica) fetchImage(ctx context.Context, digest string) error {
	if _, err := r.dir.Image(digest); cay.KindOf(err) != cay.NotFound {
		return err
	}
	at := prefix(digest)
	there, err := r.record(ctx, at)
	if err != nil {
		return err
	}
	size := int64(0)
	switch {
	case there.Image != nil:
		size = there.Image.Size
	case len(there.Files) == 1: // of an older Cay
		size = there.Files[0].Size
	default:
		return damaged(at + recordName)
	}
	if err := r.room(size); err != nil {
		return err
	}
	tmp, err := r.dir.Begin()
	if err != nil {
		return err
	}
	defer func() { _ = r.dir.Abort(tmp) }()
	path := filepath.Join(tmp, "image")
	if there.Image != nil {
		err = r.fetchPieces(ctx, at, *there.Image, path)
	} else {
		err = r.fetchFile(ctx, at, there.Files[0], there.Piece, path)
	}
	if err != nil {
		return err
	}
	return r.dir.AddNamed(path, digest)
}

// fetchPieces writes an image. Pieces that this machine has in other images come from
// there; those of zeros take no room.
func (r *Replica) fetchPieces(ctx context.Context, at string, from image, path string) (err error) {
	pieces, err := r.pieces(ctx, at, from)
	if err != nil {
		return err
	}
	here, err := r.here(ctx, from)
	if err != nil {
		return err
	}
	defer here.close()
	f, err := create(path)
	if err != nil {
		return diskError(err, "write", path)
	}
	defer func() { err = errors.Join(err, diskError(f.Close(), "write", path)) }()
	if err := f.Truncate(from.Size); err != nil {
		return diskError(err, "write", path)
	}
	lane, offset := newLane(ctx, mostAtOnce), int64(0)
	for _, p := range pieces {
		to, size := offset, min(p.Blocks*blockSize, from.Size-offset)
		offset += size
		if p.ID == "" {
			continue
		}
		err = lane.do(size, func(ctx context.Context) error {
			plain, there := here.read(r.keys, p.ID, size)
			if plain != nil && there.share(f, to, size) {
				return nil
			}
			if plain == nil {
				home := from.home(at, p)
				name := home + r.keys.name(home, []byte(p.ID))
				var err error
				if plain, err = r.get(ctx, name); err != nil {
					return err
				}
				if int64(len(plain)) != size {
					return damaged(name)
				}
			}
			_, err := f.WriteAt(plain, to)
			return diskError(err, "write", path)
		})
		if err != nil {
			break
		}
	}
	return lane.wait(err)
}

// around is where this machine has pieces, in other images.
type around struct {
	files []*os.File
	at    map[string]spot // by their ids
}

type spot struct {
	file   *os.File
	offset int64
}

// here finds the images on this machine that an image may have something in common with:
// those that it uses, and the newest others.
func (r *Replica) here(ctx context.Context, from image) (out around, err error) {
	digests, err := r.dir.Images()
	if err != nil {
		return out, err
	}
	type local struct {
		digest, path string
		used         bool
		made         int64
	}
	var all []local
	for _, digest := range digests {
		path, err := r.dir.Image(digest)
		if err != nil {
			continue // it has just gone
		}
		if info, err := os.Stat(path); err == nil {
			all = append(all, local{digest, path, slices.Contains(from.Uses, digest), info.ModTime().UnixNano()})
		}
	}
	slices.SortFunc(all, func(a, b local) int {
		if a.used != b.used {
			return cmp.Compare(map[bool]int{true: 0, false: 1}[a.used], map[bool]int{true: 0, false: 1}[b.used])
		}
		return cmp.Compare(b.made, a.made)
	})
	out.at = map[string]spot{}
	for _, one := range all[:min(len(all), mostRelatives)] {
		_, pieces, err := r.cut(ctx, one.digest)
		if err != nil {
			out.close()
			return out, err
		}
		f, err := os.Open(one.path)
		if err != nil {
			continue
		}
		out.files = append(out.files, f)
		offset := int64(0)
		for _, p := range pieces {
			if p.ID != "" {
				out.at[p.ID] = spot{f, offset}
			}
			offset += p.Blocks * blockSize
		}
	}
	return out, nil
}

func (a around) close() {
	for _, f := range a.files {
		_ = f.Close() // it was read only
	}
}

// read returns a piece and where it is, or nil where this machine has none. An image of the
// same digest may have its files at other places here, so the piece is compared with its id.
func (a around) read(k keys, id string, size int64) ([]byte, spot) {
	there, known := a.at[id]
	if !known {
		return nil, there
	}
	plain := make([]byte, size)
	if _, err := there.file.ReadAt(plain, there.offset); err != nil || k.content(plain) != id {
		return nil, there
	}
	return plain, there
}

// share has a file take a piece inside the kernel, and its room too where the file system can. It
// reports whether all of it is there; images do not change.
func (s spot) share(f *os.File, to, size int64) bool {
	from, end := s.offset, to+size
	for to < end {
		n, err := unix.CopyFileRange(int(s.file.Fd()), &from, int(f.Fd()), &to, int(end-to), 0)
		if err != nil && !errors.Is(err, unix.EINTR) || err == nil && n == 0 {
			return false
		}
	}
	return true
}
