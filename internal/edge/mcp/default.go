package mcp

import (
	"context"
	"sync"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/client"
	"github.com/cay-run/cay/internal/control/fleet"
)

const (
	// mark is the metadata by which a default sandbox is found again. Its value
	// names the caller and its client.
	mark = "cay.mcp"
	// idle is how long a default sandbox runs after a call; then it is paused.
	idle = 10 * time.Minute
	// maxName bounds the name of a client.
	maxName = 100
)

// making has one call at a time make the default sandbox of a caller.
type making struct {
	mu   sync.Mutex
	busy map[string]chan struct{}
}

// turn waits for the others of the same key, and returns what ends the turn.
func (m *making) turn(ctx context.Context, key string) (done func(), err error) {
	for {
		m.mu.Lock()
		other := m.busy[key]
		if other == nil {
			mine := make(chan struct{})
			if m.busy == nil {
				m.busy = map[string]chan struct{}{}
			}
			m.busy[key] = mine
			m.mu.Unlock()
			return func() {
				m.mu.Lock()
				delete(m.busy, key)
				m.mu.Unlock()
				close(mine)
			}, nil
		}
		m.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// markOf names a caller and its client.
func markOf(who cay.Caller, name string) string {
	actor := who.Actor()
	return string(actor.Kind) + "/" + actor.ID + "/" + name
}

// found returns the default sandbox of a caller and a client; empty when there is
// none. The mark alone would not do: any key of the team that may create sandboxes
// can set it. The sandbox is also the caller's own: its key made it, or no key did.
func (f *Face) found(ctx context.Context, who cay.Caller, name string) (string, error) {
	page, err := f.cfg.Fleet.List(ctx, who, fleet.Query{
		States:   []cay.State{cay.Running, cay.Pausing, cay.Paused, cay.Resuming},
		Metadata: map[string]string{mark: markOf(who, name)}, Ascending: true,
	})
	if err != nil {
		return "", err
	}
	for _, box := range page.Sandboxes {
		if box.Key == who.Key {
			return string(box.ID), nil
		}
	}
	return "", nil
}

// template is that of a sandbox which a caller has not chosen itself.
func (f *Face) template(who cay.Caller) string {
	if b := who.Bounds; b != nil && len(b.Templates) > 0 {
		return b.Templates[0] // the key may use no other
	}
	return f.cfg.Template
}

// ensure returns the default sandbox of a caller and a client, which it makes at
// the first use and after its end.
func (v *visit) ensure(ctx context.Context, api *client.Client, name string) (string, error) {
	id, err := v.face.found(ctx, v.who, name)
	if err != nil || id != "" {
		return id, err
	}
	done, err := v.face.making.turn(ctx, string(v.who.Team)+"/"+markOf(v.who, name))
	if err != nil {
		return "", err
	}
	defer done()
	if id, err := v.face.found(ctx, v.who, name); err != nil || id != "" {
		return id, err
	}
	box, err := api.Create(ctx, client.CreateOptions{
		Template: v.face.template(v.who), Timeout: idle, AutoPause: true, Metadata: map[string]string{mark: markOf(v.who, name)},
	})
	if err != nil {
		return "", err
	}
	return box.ID, nil
}
