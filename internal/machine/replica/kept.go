package replica

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/blob"
	"github.com/cay-run/cay/internal/machine/engine"
)

// has reports whether a copy has all that a start needs of a snapshot: what was learnt of
// it may lack.
func (c record) has(s cay.Snapshot) bool {
	for _, f := range s.Files {
		if _, ok := c.file(f); !ok && !strings.HasPrefix(f.Name, engine.LoadDir+"/") {
			return false
		}
	}
	return c.Snapshot != nil
}

// file is where a copy has a file of a snapshot.
func (c record) file(f cay.SnapFile) (file, bool) {
	if c.Snapshot == nil || len(c.Files) != len(c.Snapshot.Files) {
		return file{}, false
	}
	for i, there := range c.Snapshot.Files {
		if there == f && c.Files[i].Name == f.Name {
			return c.Files[i], true
		}
	}
	return file{}, false
}

// Kept reports whether the bucket has a snapshot as this machine has it, with its root image,
// and all pieces of both.
func (r *Replica) Kept(ctx context.Context, id cay.SnapshotID) (bool, error) {
	if err := r.mine(ctx); err != nil {
		return false, err
	}
	s, err := r.dir.Record(id)
	if err != nil {
		return false, err
	}
	at := snapshots + string(id) + "/"
	there, err := r.pushed(ctx, at)
	if err != nil || !there.has(s) {
		return false, err
	}
	return r.keptLately(ctx, s.Root)
}

// keptLately is KeptImage, asked once in a minute: many snapshots stand on one image.
func (r *Replica) keptLately(ctx context.Context, digest string) (bool, error) {
	if r.kept.has(digest) {
		return true, nil
	}
	kept, err := r.KeptImage(ctx, digest)
	if kept && err == nil {
		r.kept.note(digest)
	}
	return kept, err
}

// pushed is what the bucket has of something: its record, or none where that or a piece lacks.
func (r *Replica) pushed(ctx context.Context, at string) (record, error) {
	there, err := r.recordOrNone(ctx, at)
	if err != nil || len(there.Files) == 0 {
		return record{}, err
	}
	whole, err := r.whole(ctx, at, there)
	if err != nil || !whole {
		return record{}, err
	}
	return there, nil
}

// evicted reports whether this machine has no more than the record of a snapshot.
func (r *Replica) evicted(id cay.SnapshotID) bool {
	_, err := r.dir.Record(id)
	return err == nil
}

// gone is the error of a snapshot that was evicted on a machine alone, and that the bucket lacks:
// it is another one now, a directory that is not mounted, or has lost it.
func (r *Replica) gone(ctx context.Context, id cay.SnapshotID) error {
	if _, err := r.owner(ctx); errors.Is(err, blob.ErrMissing) {
		return cay.Errorf(cay.Unavailable, "snapshot %s is in the bucket, which cannot be read now: it lacks the name of its owner", id).
			WithHint("see that the bucket is the one that it was, and its directory mounted")
	} else if err != nil {
		return err
	}
	return cay.Errorf(cay.Internal, "snapshot %s is lost: the bucket has no copy of it any more, and its files are not on this machine", id).
		WithCode(cay.CodeLost).WithHint("restore the bucket's objects below snapshots/%s", id)
}

// KeptImage reports whether the bucket has a root image with all its pieces.
func (r *Replica) KeptImage(ctx context.Context, digest string) (bool, error) {
	at := prefix(digest)
	there, err := r.recordOrNone(ctx, at)
	if err != nil || there.Condemned {
		return false, err
	}
	if there.Image != nil {
		return r.wholeImage(ctx, at, *there.Image)
	}
	there, err = r.pushed(ctx, at)
	return len(there.Files) == 1, err
}

// whole reports whether all pieces of a copy are there. Readers check their content.
func (r *Replica) whole(ctx context.Context, at string, of record) (bool, error) {
	lacks := map[string]bool{}
	for _, f := range of.Files {
		for _, piece := range f.Pieces {
			lacks[at+piece] = true
		}
	}
	return r.found(ctx, lacks, at)
}

// wholeImage is whole for an image that is cut by content.
func (r *Replica) wholeImage(ctx context.Context, at string, i image) (bool, error) {
	pieces, err := r.pieces(ctx, at, i)
	if errors.Is(err, blob.ErrMissing) || errors.Is(err, blob.ErrDamaged) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	lacks, homes := map[string]bool{}, map[string]bool{}
	for _, p := range pieces {
		if p.ID != "" {
			home := i.home(at, p)
			lacks[home+r.keys.name(home, []byte(p.ID))], homes[home] = true, true
		}
	}
	return r.found(ctx, lacks, slices.Collect(maps.Keys(homes))...)
}

// found reports whether all objects are there that lack, below some names.
func (r *Replica) found(ctx context.Context, lacks map[string]bool, below ...string) (bool, error) {
	for _, at := range below {
		for o, err := range r.bucket.List(ctx, at) {
			if err != nil {
				return false, err
			}
			delete(lacks, o.Name)
		}
	}
	return len(lacks) == 0, nil
}
