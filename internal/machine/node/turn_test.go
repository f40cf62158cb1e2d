package node

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cay-run/cay"
)

func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stopping, stop := context.WithCancel(t.Context())
		n := &Node{restores: make(chan struct{}, 1), ctx: stopping}
		begun := time.Now()
		first, err := n.turn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		second, err := n.turn(t.Context())
		if waited := time.Since(begun); err != nil || waited != longTurn {
			t.Fatalf("the second turn came after %v, %v", waited, err)
		}
		first() // its turn is over already, and the second's goes on
		if len(n.restores) != 1 {
			t.Errorf("%d turns are taken", len(n.restores))
		}
		second()
		second()
		if len(n.restores) != 0 {
			t.Errorf("%d turns are left", len(n.restores))
		}

		third, err := n.turn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer third()
		gone, leave := context.WithCancel(t.Context())
		leave()
		if _, err := n.turn(gone); err != context.Canceled {
			t.Errorf("a caller that left: %v", err)
		}
		stop()
		if _, err := n.turn(t.Context()); cay.KindOf(err) != cay.Unavailable {
			t.Errorf("a server that stops: %v", err)
		}
	})
}
