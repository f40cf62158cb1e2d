package egress

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cay-run/cay"
)

// The same refusal is told once a minute, and one that cannot be told keeps no
// guest waiting.
func TestDenialsAreToldOnceAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		told := map[string]int{}
		d := newDenials()
		ctx, stop := context.WithCancel(t.Context())
		go d.run(ctx, func(_ context.Context, id cay.SandboxID, c cay.Connection) { told[string(id)+c.Name]++ })
		refuse := func(id cay.SandboxID, name string) { d.add(id, cay.Connection{Rule: "r", Name: name}) }
		for range 100 {
			refuse("a", "x")
			refuse("a", "y")
			refuse("b", "x")
		}
		synctest.Wait()
		time.Sleep(deniedAgain)
		refuse("a", "x")
		synctest.Wait()
		if fmt.Sprint(told) != "map[ax:1 ay:1 bx:1]" {
			t.Errorf("within a minute: %v", told)
		}
		time.Sleep(time.Nanosecond)
		refuse("a", "x")
		synctest.Wait()
		if fmt.Sprint(told) != "map[ax:2 ay:1 bx:1]" {
			t.Errorf("after a minute: %v", told)
		}
		stop()
		synctest.Wait()
		for i := range 2 * deniedMost { // none is told any more
			refuse("c", fmt.Sprint(i))
		}
		if len(d.queue) != deniedQueued || len(d.told) > deniedMost {
			t.Errorf("%d wait, %d are remembered", len(d.queue), len(d.told))
		}
	})
}
