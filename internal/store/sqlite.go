package store

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/pressly/goose/v3"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/cay-run/cay"
)

//go:embed migrations/*.sql
var migrations embed.FS

// SQLite is a Store in one file. Writes go through one connection, so they
// never wait for each other inside SQLite; reads have a pool of their own and
// never wait for a write.
type SQLite struct {
	path           string
	writer, reader *sql.DB
	log            *checkpoints
	seal           Sealer
	room           *space
	commits        *atomic.Int64
	observer       Observer                    // nil tells none
	priced         *atomic.Pointer[cay.Prices] // nil in it until they are read

	w, r   querier // writer and reader, or the transaction that calls share
	joined *joined // nil outside Tx
}

// Sealer encrypts texts for a place in the records.
type Sealer interface {
	Seal(plain []byte, place string) string
	Open(text, place string) ([]byte, error)
}

var _ Store = (*SQLite)(nil)

// Open opens the database at path, makes it when it is not there and brings
// its schema up to date. The sealer is that of the data directory: records
// whose environment or network it sealed cannot be read without it, so there
// is no way to open the database that leaves it out. Only the process that
// holds the data directory's lock may call Open, because a newer program would
// bring the schema up to date under an older server that runs.
func Open(ctx context.Context, path string, seal Sealer) (*SQLite, error) {
	if seal == nil {
		return nil, cay.Errorf(cay.Internal, "the database is opened without the sealing key")
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, cay.Wrap(cay.Internal, err, "the database's path is unusable")
	}
	// SQLite gives its side files the mode of the main one. Rows hold
	// environment variables of sandboxes, which hold secrets.
	room, err := openSpace(path)
	if err != nil {
		return nil, cay.Wrap(cay.Unavailable, err, "cannot open the database %s", path).
			WithHint("check that the data directory is there and writable")
	}
	s, err := openIn(ctx, path, seal, room)
	if err != nil {
		return nil, errors.Join(err, room.close())
	}
	return s, nil
}

func openIn(ctx context.Context, path string, seal Sealer, room *space) (s *SQLite, err error) {
	s = &SQLite{path: path, seal: seal, room: room, commits: new(atomic.Int64), priced: new(atomic.Pointer[cay.Prices])}
	if s.writer, err = open(path, "immediate", 1, "journal_mode(WAL)", "wal_autocheckpoint(0)"); err != nil {
		return nil, dbError(err)
	}
	err = check(ctx, s.writer)
	if err == nil {
		err = s.migrate(ctx)
	}
	if err != nil {
		s.writer.Close()
		return nil, err
	}
	s.reader, err = open(path, "deferred", max(4, runtime.GOMAXPROCS(0)), "query_only(1)")
	if err == nil {
		s.log, err = openCheckpoints(path, room)
	}
	if err != nil {
		s.writer.Close()
		return nil, dbError(err)
	}
	s.w, s.r = s.writer, s.reader
	s.log.start(s.writer)
	return s, nil
}

// open makes a pool. With synchronous NORMAL in WAL mode a killed process
// loses nothing; a power cut may lose the last commits, and with them goes
// everything that ran. A record that must outlive that, of saved state, calls sync.
func open(path, lock string, conns int, pragmas ...string) (*sql.DB, error) {
	q := url.Values{
		"_pragma": append([]string{"busy_timeout(10000)", "synchronous(NORMAL)", "foreign_keys(1)"}, pragmas...),
		"_txlock": {lock},
	}
	u := url.URL{Scheme: "file", Path: path, RawQuery: q.Encode()}
	c, err := sqlite.NewConnector(u.String())
	if err != nil {
		return nil, err
	}
	db := sql.OpenDB(keeper{c})
	db.SetMaxOpenConns(conns)
	db.SetMaxIdleConns(conns)
	return db, nil
}

func (s *SQLite) migrate(ctx context.Context) error {
	dir, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return cay.Wrap(cay.Internal, err, "the database's schema is missing from this build")
	}
	// Parts add their migrations under numbers of their own: a database may have a
	// higher one already.
	p, err := goose.NewProvider(goose.DialectSQLite3, s.writer, dir, goose.WithAllowOutofOrder(true))
	if err != nil {
		return cay.Wrap(cay.Internal, err, "cannot read the database's schema")
	}
	if _, err := p.Up(ctx); err != nil {
		return cay.Wrap(cay.Internal, err, "cannot bring the database up to date").
			WithHint("it may have been made by a newer version, or be damaged")
	}
	return nil
}

// Close lets go of the database.
func (s *SQLite) Close() error {
	return errors.Join(s.log.close(), s.reader.Close(), s.writer.Close(), s.room.close())
}

// dbError turns an error of the database into one of ours.
func dbError(err error) error {
	var ours *cay.Error
	var lite *sqlite.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &ours):
		return err
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return cay.Wrap(cay.Unavailable, err, "the request ended before the database answered")
	case errors.As(err, &lite):
		switch lite.Code() {
		case sqlite3.SQLITE_CONSTRAINT_UNIQUE, sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY:
			return cay.Wrap(cay.Conflict, err, "a record of that name or id is there already")
		case sqlite3.SQLITE_FULL:
			return cay.Wrap(cay.NoSpace, err, "no space left for the database")
		case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED:
			return cay.Wrap(cay.Unavailable, err, "the database is busy")
		}
	}
	return cay.Wrap(cay.Internal, err, "the database failed")
}

// notFound is the error for a record that is not there.
func notFound(what string, id any) error {
	return cay.Errorf(cay.NotFound, "%s %q not found", what, fmt.Sprint(id))
}

// millis is how a time is stored; zero is 0.
func millis(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

func fromMillis(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms).UTC()
}

func flag(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// scanner is a row or rows.
type scanner interface{ Scan(dest ...any) error }

// collect reads all rows of a query.
func collect[T any](rows *sql.Rows, err error, scan func(scanner) (T, error)) ([]T, error) {
	if err != nil {
		return nil, dbError(err)
	}
	defer rows.Close()
	var out []T
	for rows.Next() {
		v, err := scan(rows)
		if err != nil {
			return nil, dbError(err)
		}
		out = append(out, v)
	}
	return out, dbError(rows.Err())
}

// one reads the one row of a query, or says that it is not there.
func one[T any](row *sql.Row, scan func(scanner) (T, error), what string, id any) (T, error) {
	v, err := scan(row)
	if errors.Is(err, sql.ErrNoRows) {
		return v, notFound(what, id)
	}
	return v, dbError(err)
}
