package node

import (
	"context"
	"sync"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/trail"
)

// longTurn is how long an instance that is made or saved counts among those at
// work. One that takes longer waits, for a guest that does not answer or for a
// disk; without this limit a few of one team hold every turn of all teams until
// the restore's own limit.
const longTurn = 5 * time.Second

// Waiting is how many wait for their turn.
func (n *Node) Waiting() int { return int(n.waiting.Load()) }

// Room is what this machine has, and has left.
func (n *Node) Room() (Room, error) { return n.cfg.Room() }

// turn waits until one more instance may be made or saved, as few are at once,
// and returns what ends its turn.
func (n *Node) turn(ctx context.Context) (end func(), err error) {
	_, done := trail.Begin(ctx, trail.NodeTurn)
	defer func() { done(err) }()
	n.waiting.Add(1)
	defer n.waiting.Add(-1)
	select {
	case n.restores <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-n.ctx.Done():
		return nil, cay.Errorf(cay.Unavailable, "the server is stopping")
	}
	var once sync.Once
	give := func() { once.Do(func() { <-n.restores }) }
	limit := time.AfterFunc(longTurn, give)
	return func() { limit.Stop(); give() }, nil
}
