package doors

import (
	"testing"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/guest"
)

func TestDoors(t *testing.T) {
	for port, want := range map[int]struct {
		kind   cay.Kind
		starts bool
	}{
		-1: {kind: cay.Invalid}, 0: {kind: cay.Invalid}, 65536: {kind: cay.Invalid}, 1: {}, 22: {}, 5900: {}, 65535: {},
		guest.AgentPort: {cay.Denied, true}, guest.InterpPort: {starts: true},
	} {
		var kind cay.Kind
		if err := Closed(port); err != nil {
			kind = cay.KindOf(err)
		}
		start, starts := Forward(port, "ann")
		if kind != want.kind || starts != want.starts || Is(port) != want.starts {
			t.Errorf("%d: closed by %q, starts %t, door %t", port, kind, starts, Is(port))
		}
		if starts && (!start.IsAsked([]string{"never"}) || start.User != "ann") {
			t.Errorf("%d: %+v is not asked about", port, start)
		}
	}
}
