package auth

import (
	"context"
	"slices"
	"sync"

	"github.com/cay-run/cay"
)

// uses are what goes on for long by means of a key: connections, streams.
type uses struct {
	mu  sync.Mutex
	all map[cay.KeyID]map[*context.CancelFunc]struct{}
}

// While returns a context that ends when the key is removed. The returned
// function must be called when the use of it is over.
func (a *Auth) While(ctx context.Context, team cay.TeamID, key cay.KeyID) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	if key == "" { // a part of the server itself
		return ctx, cancel
	}
	a.uses.add(key, &cancel)
	// It may have been removed since it was verified.
	keys, err := a.store.Keys(ctx, team)
	if err == nil && !slices.ContainsFunc(keys, func(k cay.APIKey) bool { return k.ID == key }) {
		cancel()
	}
	return ctx, func() {
		cancel()
		a.uses.remove(key, &cancel)
	}
}

func (u *uses) add(key cay.KeyID, cancel *context.CancelFunc) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.all == nil {
		u.all = make(map[cay.KeyID]map[*context.CancelFunc]struct{})
	}
	if u.all[key] == nil {
		u.all[key] = make(map[*context.CancelFunc]struct{})
	}
	u.all[key][cancel] = struct{}{}
}

func (u *uses) remove(key cay.KeyID, cancel *context.CancelFunc) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if delete(u.all[key], cancel); len(u.all[key]) == 0 {
		delete(u.all, key)
	}
}

// end ends all uses of a key.
func (u *uses) end(key cay.KeyID) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for cancel := range u.all[key] {
		(*cancel)()
	}
}
