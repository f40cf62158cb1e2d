package storetest

import (
	"testing"

	"github.com/cay-run/cay/internal/store"
)

func testNodes(t *testing.T, s store.Store) {
	for _, on := range []bool{false, true, true, false} {
		noError(t, s.SetDraining(t.Context(), "a", on))
		got, err := s.Draining(t.Context(), "a")
		noError(t, err)
		same(t, "the machine", got, on)
		other, err := s.Draining(t.Context(), "b")
		noError(t, err)
		same(t, "another machine", other, false)
	}
}
