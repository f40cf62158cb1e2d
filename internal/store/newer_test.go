package store_test

import (
	"database/sql"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/store"
	"github.com/cay-run/cay/internal/store/pgtest"
	"github.com/cay-run/cay/internal/store/storetest"
)

// A database of a newer version is refused, and left as it is, unless that version has
// recorded that this one can work with it.
func TestNewerDatabases(t *testing.T) {
	t.Run("SQLite", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "cay.db")
		if err := storetest.Open(t, path).Close(); err != nil {
			t.Fatal(err)
		}
		db, err := sql.Open("sqlite", path)
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		newer(t, func(text string) error {
			_, err := db.ExecContext(t.Context(), text)
			return err
		}, "1", func() (*store.DB, error) { return store.Open(t.Context(), path, storetest.Key(t)) })
	})
	t.Run("PostgreSQL", func(t *testing.T) {
		server := pgtest.Start(t)
		name := server.Database(t, "")
		if err := storetest.OpenPostgres(t, server.URL(name)).Close(); err != nil {
			t.Fatal(err)
		}
		newer(t, func(text string) error {
			server.Exec(t, name, text)
			return nil
		}, "true", func() (*store.DB, error) {
			return store.OpenPostgres(t.Context(), store.PostgresConfig{URL: server.URL(name)}, storetest.Key(t))
		})
	})
}

func newer(t *testing.T, exec func(text string) error, applied string, open func() (*store.DB, error)) {
	t.Helper()
	if err := exec(`INSERT INTO goose_db_version (version_id, is_applied) VALUES (99001, ` + applied + `), (99002, ` + applied + `)`); err != nil {
		t.Fatal(err)
	}
	for _, compatible := range []string{"", "99001"} {
		if compatible != "" {
			if err := exec(`INSERT INTO compatible_migrations (version) VALUES (` + compatible + `)`); err != nil {
				t.Fatal(err)
			}
		}
		_, err := open()
		if cay.KindOf(err) != cay.Unsupported || !strings.Contains(err.Error(), "99002") || strings.Contains(err.Error(), "99001") != (compatible == "") {
			t.Fatalf("with %q as compatible it was opened with %v", compatible, err)
		}
	}
	if err := exec(`INSERT INTO compatible_migrations (version) VALUES (99002)`); err != nil {
		t.Fatal(err)
	}
	s, err := open()
	if err != nil {
		t.Fatalf("one that is compatible: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
