package store

import (
	"context"
	"database/sql"
	"errors"
	"net/url"
	"path/filepath"
	"strings"

	"modernc.org/sqlite"

	"github.com/cay-run/cay"
)

// Backup writes a copy of the records, as they are at one moment, into a new
// file at path, an SQLite database, while others read and write.
func (s *DB) Backup(ctx context.Context, path string) error { return s.engine.backup(ctx, s, path) }

func (f *sqliteFile) backup(ctx context.Context, _ *DB, path string) error {
	f.log.mu.Lock() // one connection does both, and a reader keeps the log long anyhow
	defer f.log.mu.Unlock()
	if _, err := f.log.db.ExecContext(ctx, `VACUUM INTO ?`, path); err != nil {
		return dbError(err)
	}
	return syncFile(path)
}

// Check looks through the whole database for damage.
func (s *DB) Check(ctx context.Context) error { return s.engine.check(ctx, s) }

// check finds pages that are not in order, and indexes that say something else
// than their tables. It does not see a byte that was flipped in a value that no
// index holds.
func (f *sqliteFile) check(ctx context.Context, s *DB) error { return checkFile(ctx, s.reader) }

// CheckFile looks through the SQLite database at path as Open does, and changes
// nothing: neither its schema nor its log.
func CheckFile(ctx context.Context, path string) error {
	path, err := filepath.Abs(path)
	if err != nil {
		return cay.Wrap(cay.Internal, err, "the database's path is unusable")
	}
	u := url.URL{Scheme: "file", Path: path, RawQuery: url.Values{"mode": {"ro"}, "_pragma": {"busy_timeout(10000)"}}.Encode()}
	c, err := sqlite.NewConnector(u.String())
	if err != nil {
		return dbError(err)
	}
	db := sql.OpenDB(c)
	defer db.Close()
	return checkFile(ctx, db)
}

func checkFile(ctx context.Context, db *sql.DB) error {
	rows, err := db.QueryContext(ctx, `PRAGMA integrity_check(5)`)
	found, err := collect(rows, err, func(row scanner) (text string, err error) {
		return text, row.Scan(&text)
	})
	if err == nil && (len(found) != 1 || found[0] != "ok") {
		err = errors.New(strings.Join(found, "; "))
	}
	if err != nil && ctx.Err() == nil {
		return cay.Wrap(cay.Internal, err, "the database is damaged").
			WithHint("restore it from a backup (cay restore), or see what `sqlite3 cay.db .recover` saves")
	}
	return err
}
