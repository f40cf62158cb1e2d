package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sync/atomic"
	"time"

	"github.com/pressly/goose/v3"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cay-run/cay"
)

// DB is a Store in an SQL database: SQLite in one file, or PostgreSQL, which
// several servers may share. The statements are the same for both.
type DB struct {
	engine   engine
	seal     Sealer
	observer Observer                    // nil tells none
	answers  Answers                     // nil but in tests
	priced   *atomic.Pointer[cay.Prices] // nil in it until they are read

	reader *sql.DB
	r      reader  // of the database, or the transaction that calls share
	joined *joined // nil outside Tx
}

// Sealer encrypts texts for a place in the records.
type Sealer interface {
	Seal(plain []byte, place string) string
	Open(text, place string) ([]byte, error)
}

var _ Store = (*DB)(nil)

// engine is what differs between the databases.
type engine interface {
	// begin begins a transaction that writes.
	begin(ctx context.Context) (*sql.Tx, error)
	// reads makes the queries outside of transactions.
	reads(db *sql.DB) reader
	// guard has transactions that begin from now on fail once another epoch has
	// begun.
	guard(g guard)
	// self is the node of the guard; empty before there is one.
	self() cay.NodeID
	// again reports whether a transaction that failed is to run once more, after
	// so many runs; it waits until then.
	again(ctx context.Context, err error, runs int) bool
	// committed is told of each transaction that writes.
	committed()
	// secure makes what is committed survive a power cut.
	secure() error
	// settled is Store's Settled.
	settled(ctx context.Context) error
	// many reports whether other servers may write at the same time. Only then
	// have hold and now work to do.
	many() bool
	backup(ctx context.Context, s *DB, path string) error
	check(ctx context.Context, s *DB) error
	close() error
}

// forUpdate ends a SELECT in a transaction whose rows are changed by what they
// say.
func (s *DB) forUpdate() string {
	if s.engine.many() {
		return " FOR UPDATE"
	}
	return ""
}

// skipLocked is forUpdate for a row that any of several takers may have: each
// finds another one.
func (s *DB) skipLocked() string {
	if s.engine.many() {
		return " FOR UPDATE SKIP LOCKED"
	}
	return ""
}

// keyShare keeps a row that is read from being removed until the end of the transaction.
func (s *DB) keyShare() string {
	if s.engine.many() {
		return " FOR KEY SHARE"
	}
	return ""
}

// hold runs a statement that keeps other servers' transactions away until the
// end of this one. In a database with one writer none is there.
func (s *DB) hold(ctx context.Context, tx writer, text string, args ...any) error {
	if !s.engine.many() {
		return nil
	}
	_, err := tx.ExecContext(ctx, text, args...)
	return err
}

// holdTeam keeps away what else changes a team until the end of the transaction,
// by the row that its events are numbered with: any event does the same.
func (s *DB) holdTeam(ctx context.Context, tx writer, team cay.TeamID) error {
	if !s.engine.many() {
		return nil
	}
	var last int64
	err := tx.QueryRowContext(ctx, `SELECT last FROM event_counters WHERE team = $1 FOR UPDATE`, team).Scan(&last)
	if errors.Is(err, sql.ErrNoRows) { // it never had an event
		_, err = tx.ExecContext(ctx, `INSERT INTO event_counters (team, last)
SELECT id, 0 FROM teams WHERE id = $1 ON CONFLICT (team) DO UPDATE SET last = event_counters.last`, team)
	}
	return err
}

// decide is holdTeam for a query of a shared transaction, which goes on by what
// the query finds. Outside of one nothing is held.
func (s *DB) decide(ctx context.Context, team cay.TeamID) error {
	if s.joined == nil {
		return nil
	}
	return dbError(s.holdTeam(ctx, s.joined.tx, team))
}

// now is the time of the database in milliseconds: servers agree on it.
func (s *DB) now(ctx context.Context, q reader) (ms int64, err error) {
	if !s.engine.many() {
		return millis(time.Now()), nil
	}
	err = q.QueryRowContext(ctx, `SELECT `+nowInPostgres).Scan(&ms)
	return ms, err
}

// nowIn is now as an expression of a statement, whose first argument it needs.
func (s *DB) nowIn() (text string, first any) {
	if s.engine.many() {
		return `COALESCE(CAST($1 AS BIGINT), ` + nowInPostgres + `)`, nil
	}
	return `CAST($1 AS BIGINT)`, millis(time.Now())
}

const nowInPostgres = `CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT)`

// migrate brings a schema up to date.
func migrate(ctx context.Context, dialect goose.Dialect, db *sql.DB, files fs.FS) error {
	// Parts add their migrations under numbers of their own: a database may have a
	// higher one already.
	p, err := goose.NewProvider(dialect, db, files, goose.WithAllowOutofOrder(true))
	if err != nil {
		return cay.Wrap(cay.Internal, err, "cannot read the database's schema")
	}
	if err := knows(ctx, p, db); err != nil {
		return err
	}
	if _, err := p.Up(ctx); err != nil {
		return cay.Wrap(cay.Internal, err, "cannot bring the database up to date").
			WithHint("it may be damaged: cay snapshot verify looks through it")
	}
	return nil
}

// compatibleSince is the migration that made the table of compatible ones.
const compatibleSince = 211

// knows refuses a database with migrations of a newer version of Cay, but for those that it says
// this one can work with.
func knows(ctx context.Context, p *goose.Provider, db *sql.DB) error {
	if _, err := p.GetDBVersion(ctx); err != nil { // which makes its table where there is none
		return cay.Wrap(cay.Internal, dbError(err), "cannot read the database's schema")
	}
	rows, err := db.QueryContext(ctx, `SELECT DISTINCT version_id FROM goose_db_version WHERE version_id > 0 ORDER BY version_id`)
	has, err := collect(rows, err, scanVersion)
	if err != nil {
		return err
	}
	var compatible []int64
	if slices.Contains(has, compatibleSince) {
		rows, err := db.QueryContext(ctx, `SELECT version FROM compatible_migrations`)
		if compatible, err = collect(rows, err, scanVersion); err != nil {
			return err
		}
	}
	for _, one := range p.ListSources() {
		compatible = append(compatible, one.Version)
	}
	newer := slices.DeleteFunc(has, func(version int64) bool { return slices.Contains(compatible, version) })
	if len(newer) > 0 {
		return cay.Errorf(cay.Unsupported, "the database is of a newer version of Cay, which this one does not know (migrations %v)", newer).
			WithHint("start the newer version; to go back, restore a backup of before it was started")
	}
	return nil
}

func scanVersion(row scanner) (version int64, err error) { return version, row.Scan(&version) }

// Close lets go of the database.
func (s *DB) Close() error { return s.engine.close() }

// exec is one statement as a transaction of its own.
func (s *DB) exec(ctx context.Context, text string, args ...any) (res sql.Result, err error) {
	err = s.tx(ctx, func(tx *sql.Tx) error {
		res, err = tx.ExecContext(ctx, text, args...)
		return err
	})
	return res, err
}

// dbError turns an error of the database into one of ours.
func dbError(err error) error {
	var ours *cay.Error
	var lite *sqlite.Error
	var pg *pgconn.PgError
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
			return taken(err)
		case sqlite3.SQLITE_FULL:
			return cay.Wrap(cay.NoSpace, err, "no space left for the database")
		case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED:
			return cay.Wrap(cay.Unavailable, err, "the database is busy")
		}
	case errors.As(err, &pg):
		return postgresError(pg)
	case broken(err):
		return cay.Wrap(cay.Unavailable, err, "PostgreSQL does not answer")
	}
	return cay.Wrap(cay.Internal, err, "the database failed")
}

func taken(err error) error {
	return cay.Wrap(cay.Conflict, err, "a record of that name or id is there already")
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
