package storetest

import (
	"testing"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/store"
)

func testUsedTokens(t *testing.T, s store.Store) {
	one, other := [32]byte{1}, [32]byte{2}
	noError(t, s.UseToken(t.Context(), one, at(1), at(10)))
	wantKind(t, s.UseToken(t.Context(), one, at(2), at(10)), cay.Conflict)
	noError(t, s.UseToken(t.Context(), other, at(9), at(20)))
	wantKind(t, s.UseToken(t.Context(), one, at(10), at(20)), cay.Conflict)
	noError(t, s.UseToken(t.Context(), one, at(11), at(20))) // forgotten: it is over by itself
	wantKind(t, s.UseToken(t.Context(), other, at(12), at(20)), cay.Conflict)
}
