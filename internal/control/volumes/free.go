package volumes

import (
	"context"
	"time"

	"github.com/cay-run/cay"
)

// An instance gives its volumes back a moment after its sandbox is over.
const (
	freeWithin = 5 * time.Second
	lookAgain  = 50 * time.Millisecond
)

// whenFree does what needs a volume that no instance has, which no sandbox of the
// records has any more.
func whenFree(ctx context.Context, do func() error) error {
	for begun := time.Now(); ; {
		err := do()
		if cay.KindOf(err) != cay.Conflict || time.Since(begun) > freeWithin {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(lookAgain):
		}
	}
}
