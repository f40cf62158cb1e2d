package node

import (
	"context"
	"sync"
	"time"

	"github.com/cay-run/cay"
)

// longTurn is how long an instance that is made or saved counts among those at
// work. One that takes longer waits, for a guest that does not answer or for a
// disk; without this limit a few of one team hold every turn of all teams until
// the restore's own limit.
const longTurn = 5 * time.Second

// turn waits until one more instance may be made or saved, as few are at once,
// and returns what ends its turn.
func (n *Node) turn(ctx context.Context) (end func(), err error) {
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
