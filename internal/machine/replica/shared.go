package replica

import (
	"context"
	"crypto/rand"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/cay-run/cay/internal/blob"
)

// Images and engines are shared by snapshots, and images use pieces of others. A copy
// that finds one there writes its record anew, and counts on it. So that no removal meets such
// a copy, an image that no snapshot needs is condemned a day after its last use, by a word in
// its record, and removed hours later. A copy counts on no condemned image: it stores
// that anew, and names none of its pieces. A condemned image stays as long as one that is not
// condemned uses it, but images that it uses itself go: there are no chains.

const (
	// condemnedFor is how long what is condemned stays. It is longer than from the reading of
	// a record until it is written anew, and than the copy of an image.
	condemnedFor = 2 * time.Hour
	// settle is how long a copy waits where a removal may have begun. That looks again, and
	// ends, within half of it.
	settle = 10 * time.Second

	claimName = "claim-"
)

// pushShared has an image or an engine in the bucket: it notes that one that is there is
// needed still, or has it stored. Store is told which objects are there and will stay.
func (r *Replica) pushShared(ctx context.Context, at string, store func(has map[string]bool) (record, error)) error {
	done, err := r.alone(ctx, at)
	if err != nil {
		return err
	}
	defer done()
	there, err := r.record(ctx, at)
	switch {
	case err == nil && !there.Condemned:
		return r.putRecord(ctx, at, there)
	case err != nil && !errors.Is(err, blob.ErrMissing) && !errors.Is(err, blob.ErrDamaged):
		return err
	}
	has, unclaim, err := r.claim(ctx, at)
	if err != nil {
		return err
	}
	defer unclaim()
	made, err := store(has)
	if err != nil {
		return err
	}
	return r.putRecord(ctx, at, made)
}

// alone waits until no other copy of a name is under way here: a second one finds it there, and
// need not make it once more.
func (r *Replica) alone(ctx context.Context, at string) (done func(), err error) {
	for {
		r.mu.Lock()
		other, busy := r.sharing[at]
		if !busy {
			mine := make(chan struct{})
			r.sharing[at] = mine
			r.mu.Unlock()
			return func() {
				r.mu.Lock()
				defer r.mu.Unlock()
				delete(r.sharing, at)
				close(mine)
			}, nil
		}
		r.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// claim has a removal that may have begun come to an end, and says which objects are there
// and will stay. Done takes the claim back.
func (r *Replica) claim(ctx context.Context, at string) (has map[string]bool, done func(), err error) {
	has, old, err := r.lasting(ctx, at)
	if err != nil || !old {
		return has, func() {}, err
	}
	name := at + claimName + strings.ToLower(rand.Text())
	if err := r.bucket.Put(ctx, name, r.keys.seal(name, nil)); err != nil {
		return nil, nil, err
	}
	done = func() { _ = r.bucket.Remove(context.WithoutCancel(ctx), name) } // one that stays goes with the rest
	select {
	case <-time.After(r.settle):
	case <-ctx.Done():
		done()
		return nil, nil, ctx.Err()
	}
	has, _, err = r.lasting(ctx, at)
	if err != nil {
		done()
	}
	return has, done, err
}

// lasting lists the objects below a name that no removal can have begun with, by what follows that
// name, and says whether there are others.
func (r *Replica) lasting(ctx context.Context, at string) (has map[string]bool, old bool, err error) {
	has = map[string]bool{}
	stays := time.Now().Add(-r.keepFor / 2)
	for o, err := range r.bucket.List(ctx, at) {
		if err != nil {
			return nil, false, err
		}
		if o.Changed.After(stays) {
			has[strings.TrimPrefix(o.Name, at)] = true
		} else {
			old = true
		}
	}
	return has, old, nil
}

// condemn writes into a record that nothing may count on it any more, unless it was written
// after a time.
func (r *Replica) condemn(ctx context.Context, at string, after time.Time) error {
	if names, err := r.unchanged(ctx, at, after); len(names) == 0 || err != nil {
		return err
	}
	there, err := r.record(ctx, at)
	if errors.Is(err, blob.ErrMissing) || err == nil && there.Condemned {
		return nil
	}
	if err != nil {
		return err
	}
	if err := r.mine(ctx); err != nil {
		return err
	}
	there.Condemned = true
	return r.putRecord(ctx, at, there)
}

// collectShared condemns images, or engines, that no snapshot has needed for a day, and removes
// those that have been condemned for long and whose pieces no other image needs.
func (r *Replica) collectShared(ctx context.Context, below string, needed map[string]bool) (removed int, err error) {
	owners, err := r.owners(ctx, below)
	if err != nil {
		return 0, err
	}
	old, condemnedLong := time.Now().Add(-r.keepFor), time.Now().Add(-r.condemnedFor)
	records, used := map[string]record{}, map[string]bool{}
	for owner, newest := range owners {
		there, err := r.record(ctx, below+owner+"/")
		if errors.Is(err, blob.ErrMissing) || errors.Is(err, blob.ErrDamaged) {
			continue
		}
		if err != nil { // of a newer Cay: what it uses is not known
			return 0, err
		}
		records[owner] = there
		if there.Image != nil && (needed[owner] || !there.Condemned || newest.After(condemnedLong)) {
			for _, digest := range there.Image.Uses {
				used[digest] = true
			}
		}
	}
	for _, owner := range slices.Sorted(maps.Keys(owners)) {
		at, newest := below+owner+"/", owners[owner]
		there, vouched := records[owner]
		since := old
		if there.Condemned {
			since = condemnedLong
		}
		more := 0
		switch {
		case needed[owner] || newest.After(since):
		case vouched && !there.Condemned:
			err = r.condemn(ctx, at, since)
		case !used[owner]:
			more, err = r.remove(ctx, at, since)
		}
		removed += more
		if err != nil {
			return removed, err
		}
	}
	return removed, nil
}
