package storetest

import (
	"testing"

	"github.com/cay-run/cay/internal/keys/seal"
	"github.com/cay-run/cay/internal/store"
)

// Key is a sealing key that every test has.
func Key(t testing.TB) *seal.Key {
	t.Helper()
	key, err := seal.NewKey(make([]byte, 32))
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// Open opens an SQLite database for a test.
func Open(t testing.TB, path string) *store.DB {
	t.Helper()
	return opened(t)(store.Open(t.Context(), path, Key(t)))
}

// OpenPostgres opens records in PostgreSQL for a test.
func OpenPostgres(t testing.TB, url string) *store.DB {
	t.Helper()
	return opened(t)(store.OpenPostgres(t.Context(), store.PostgresConfig{URL: url}, Key(t)))
}

func opened(t testing.TB) func(*store.DB, error) *store.DB {
	return func(s *store.DB, err error) *store.DB {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		return s
	}
}
