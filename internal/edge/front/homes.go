package front

import (
	"context"
	"sync"
	"time"

	"github.com/cay-run/cay"
)

const (
	homesMost = 200_000 // ways that a front knows: 20 MB
	homeLasts = time.Minute
)

// home is the node that has a sandbox, as the records had it.
type home struct {
	cay.Home
	until time.Time
}

// homes are the ways that a front knows. One that is stale costs a round trip.
type homes struct {
	mu sync.Mutex
	of map[cay.SandboxID]home
}

func (h *homes) get(id cay.SandboxID) (home, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	one, ok := h.of[id]
	return one, ok && time.Now().Before(one.until)
}

func (h *homes) put(id cay.SandboxID, one home) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.of == nil {
		h.of = map[cay.SandboxID]home{}
	}
	if len(h.of) >= homesMost {
		for old := range h.of { // any one: a map has no order
			delete(h.of, old)
			break
		}
	}
	h.of[id] = one
}

func (h *homes) forget(id cay.SandboxID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.of, id)
}

// home finds the node of a sandbox in what is known, else in the records.
func (f *Front) home(ctx context.Context, id cay.SandboxID, fresh bool) (home, error) {
	if !fresh {
		if one, ok := f.homes.get(id); ok {
			return one, nil
		}
	}
	found, err := f.cfg.Homes.SandboxHome(ctx, id)
	if err != nil {
		f.homes.forget(id)
		return home{}, err
	}
	one := home{found, time.Now().Add(homeLasts)}
	f.homes.put(id, one)
	return one, nil
}
