package storetest

import (
	"testing"

	"github.com/cay-run/cay/internal/keys/seal"
	"github.com/cay-run/cay/internal/store"
)

// Open opens a database for a test, with a sealing key that every test has.
func Open(t testing.TB, path string) *store.SQLite {
	t.Helper()
	key, err := seal.NewKey(make([]byte, 32))
	if err != nil {
		t.Fatal(err)
	}
	s, err := store.Open(t.Context(), path, key)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}
