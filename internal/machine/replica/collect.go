package replica

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/blob"
)

// keepFor is how long what nothing needs stays in the bucket.
const keepFor = 24 * time.Hour

// batch is how many objects are removed without another look.
const batch = 512

// Collect removes what is not needed from the bucket: snapshots that used denies,
// images and engines that no snapshot there needs, pieces without a record. Objects of
// the last day stay. It returns how many objects it removed.
//
// A copy that finds an image or an engine there counts on it, and writes its record anew. So
// these are condemned first, and go hours later: a copy counts on nothing that is condemned.
func (r *Replica) Collect(ctx context.Context, used func(cay.SnapshotID) (bool, error)) (removed int, err error) {
	r.writing.Lock()
	defer r.writing.Unlock()
	roots, builds := map[string]bool{}, map[string]bool{}
	owners, err := r.owners(ctx, snapshots)
	if err != nil {
		return 0, err
	}
	old := time.Now().Add(-r.keepFor)
	for _, id := range slices.Sorted(maps.Keys(owners)) {
		needed := owners[id].After(old)
		if !needed {
			if needed, err = used(cay.SnapshotID(id)); err != nil {
				return removed, err
			}
		}
		at := snapshots + id + "/"
		if !needed {
			more, err := r.remove(ctx, at, old)
			removed += more
			if err != nil {
				return removed, err
			}
			continue
		}
		there, err := r.record(ctx, at)
		switch {
		case err == nil && there.Snapshot != nil:
			roots[there.Snapshot.Root], builds[there.Snapshot.EngineHash] = true, true
		case err != nil && !errors.Is(err, blob.ErrMissing): // without one it is being copied, or a crash broke that off
			return removed, err
		}
	}
	for below, needed := range map[string]map[string]bool{images: roots, engines: builds} {
		more, err := r.collectShared(ctx, below, needed)
		removed += more
		if err != nil {
			return removed, err
		}
	}
	return removed, nil
}

// owners are those that have objects below a name, with the time of the newest of each.
func (r *Replica) owners(ctx context.Context, below string) (map[string]time.Time, error) {
	out := map[string]time.Time{}
	for o, err := range r.bucket.List(ctx, below) {
		if err != nil {
			return nil, err
		}
		owner, _, _ := strings.Cut(strings.TrimPrefix(o.Name, below), "/")
		if o.Changed.After(out[owner]) {
			out[owner] = o.Changed
		}
	}
	return out, nil
}

// unchanged lists the objects below a name; none where one of them was written after a time.
func (r *Replica) unchanged(ctx context.Context, at string, after time.Time) (names []string, err error) {
	for o, err := range r.bucket.List(ctx, at) {
		if err != nil || o.Changed.After(after) {
			return nil, err
		}
		names = append(names, o.Name)
	}
	return names, nil
}

// remove removes all below a name, unless a copy of another node begins to need it: then there
// is an object that was written after a time. The record goes first: without it, the
// rest does not count.
func (r *Replica) remove(ctx context.Context, at string, after time.Time) (removed int, err error) {
	for {
		names, err := r.unchanged(ctx, at, after)
		if len(names) == 0 || err != nil {
			return removed, err
		}
		if err := r.mine(ctx); err != nil {
			return removed, err
		}
		doomed := names[:min(len(names), batch)]
		if i := slices.Index(names, at+recordName); i >= 0 {
			doomed = names[i : i+1]
		}
		if err := r.removeAll(ctx, doomed); err != nil {
			return removed, err
		}
		removed += len(doomed)
	}
}

// removeAll removes objects in the time that a look at them holds for.
func (r *Replica) removeAll(ctx context.Context, names []string) error {
	ctx, cancel := context.WithTimeout(ctx, r.settle/2)
	defer cancel()
	all, ctx := errgroup.WithContext(ctx)
	all.SetLimit(mostAtOnce)
	for _, name := range names {
		all.Go(func() error { return r.bucket.Remove(ctx, name) })
	}
	return all.Wait()
}
