package auth

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/cay-run/cay"
)

const (
	// usedEvery is how exact the time of a key's last use is.
	usedEvery = time.Minute
	// usedFlush is how long it takes until the record has it.
	usedFlush = 15 * time.Second
	usedBatch = 500 // keys of one transaction
)

// used notes the keys whose record is to say that they were used. Requests do
// not wait for the record.
type used struct {
	mu sync.Mutex
	at map[cay.KeyID]time.Time
}

func (u *used) note(k cay.APIKey, now time.Time) {
	if now.Sub(k.LastUsed) < usedEvery {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.at == nil {
		u.at = make(map[cay.KeyID]time.Time)
	}
	if _, noted := u.at[k.ID]; !noted {
		u.at[k.ID] = now.UTC().Truncate(time.Millisecond)
	}
}

// take returns some of what is noted, and forgets it.
func (u *used) take(most int) map[cay.KeyID]time.Time {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.at) <= most {
		out := u.at
		u.at = nil
		return out
	}
	out := make(map[cay.KeyID]time.Time, most)
	for id, at := range maps.All(u.at) {
		if len(out) == most {
			break
		}
		out[id] = at
		delete(u.at, id)
	}
	return out
}

// Run records when keys were used, until ctx ends.
func (a *Auth) Run(ctx context.Context) {
	tick := time.NewTicker(usedFlush)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			a.flush(context.WithoutCancel(ctx))
			return
		case <-tick.C:
			a.flush(ctx)
		}
	}
}

// flush records all uses that are noted. A use that a failure loses is noted
// again by the next one.
func (a *Auth) flush(ctx context.Context) {
	for {
		some := a.used.take(usedBatch)
		if len(some) == 0 || a.store.KeysUsed(ctx, some) != nil {
			return
		}
	}
}
