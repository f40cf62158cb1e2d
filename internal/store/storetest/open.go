package storetest

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
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

// empty is an SQLite database without records, made once: with the race detector
// its migrations take longer than most tests.
var empty = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "cay-empty-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "cay.db")
	key, err := seal.NewKey(make([]byte, 32))
	if err != nil {
		return nil, err
	}
	s, err := store.Open(context.Background(), path, key)
	if err != nil {
		return nil, err
	}
	if err := s.Close(); err != nil {
		return nil, err
	}
	return os.ReadFile(path)
})

// Place puts an SQLite database without records at path, unless one is there.
func Place(t testing.TB, path string) {
	t.Helper()
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		return
	}
	text, err := empty()
	if err == nil {
		err = os.WriteFile(path, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Open opens an SQLite database for a test.
func Open(t testing.TB, path string) *store.DB {
	t.Helper()
	return OpenSealed(t, path, Key(t))
}

// OpenSealed is Open with a sealer of the test's own.
func OpenSealed(t testing.TB, path string, sealer store.Sealer) *store.DB {
	t.Helper()
	Place(t, path)
	return opened(t)(store.Open(t.Context(), path, sealer))
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
