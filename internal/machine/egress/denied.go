package egress

import (
	"context"
	"sync"
	"time"

	"github.com/cay-run/cay"
)

const (
	deniedAgain  = time.Minute // within it the same refusal is not told again
	deniedMost   = 4096        // refusals that are remembered
	deniedQueued = 256
)

// denied is a refusal of a guest's connection.
type denied struct {
	sandbox cay.SandboxID
	conn    cay.Connection
}

type deniedKey struct {
	sandbox             cay.SandboxID
	rule, name, address string
}

// denials passes refusals on, each once a minute, and never makes a guest wait.
type denials struct {
	queue chan denied

	mu   sync.Mutex
	told map[deniedKey]time.Time
}

func newDenials() *denials {
	return &denials{queue: make(chan denied, deniedQueued), told: map[deniedKey]time.Time{}}
}

func (d *denials) add(id cay.SandboxID, c cay.Connection) {
	if !d.fresh(deniedKey{id, c.Rule, c.Name, c.Address}) {
		return
	}
	select {
	case d.queue <- denied{id, c}:
	default: // the list of connections has it
	}
}

// fresh reports whether a refusal was not told lately.
func (d *denials) fresh(key deniedKey) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if at, ok := d.told[key]; ok && time.Since(at) <= deniedAgain {
		return false
	}
	if len(d.told) >= deniedMost {
		clear(d.told)
	}
	d.told[key] = time.Now()
	return true
}

// run tells the refusals until ctx ends.
func (d *denials) run(ctx context.Context, tell func(context.Context, cay.SandboxID, cay.Connection)) {
	for {
		select {
		case x := <-d.queue:
			tell(ctx, x.sandbox, x.conn)
		case <-ctx.Done():
			return
		}
	}
}
