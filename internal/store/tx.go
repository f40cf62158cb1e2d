package store

import (
	"context"
	"database/sql"
	"time"

	"github.com/cay-run/cay"
)

// querier is a database or a transaction in it.
type querier interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// joined is a transaction that several calls share.
type joined struct {
	tx     *sql.Tx
	secure bool // a call wants the transaction to survive a power cut
}

// Tx runs f with a store whose calls are one transaction. On a full disk f may
// run twice; only the last run counts.
func (s *SQLite) Tx(ctx context.Context, f func(Store) error) error {
	if s.joined != nil {
		return f(s)
	}
	inner := *s
	err := s.tx(ctx, func(tx *sql.Tx) error {
		inner.joined = &joined{tx: tx}
		inner.w, inner.r = tx, tx
		return f(&inner)
	})
	if err == nil && inner.joined.secure {
		err = s.sync()
	}
	return err
}

// tx runs f in one write transaction: the shared one, if there is one. On a
// full disk it copies the log back, so that the log begins anew in the room
// that it has, and runs f once more.
func (s *SQLite) tx(ctx context.Context, f func(*sql.Tx) error) error {
	if s.joined != nil {
		return dbError(f(s.joined.tx))
	}
	err := s.try(ctx, f)
	if cay.KindOf(err) != cay.NoSpace || s.log.restart(ctx, s.writer) != nil {
		return err
	}
	return s.try(ctx, f)
}

func (s *SQLite) try(ctx context.Context, f func(*sql.Tx) error) error {
	asked := time.Now()
	tx, err := s.writer.BeginTx(ctx, nil)
	if err != nil {
		return dbError(err)
	}
	if s.observer != nil {
		began := time.Now()
		defer func() { s.observer.Took(operation(), began.Sub(asked), time.Since(began)) }()
	}
	defer func() { _ = tx.Rollback() }() // does nothing after Commit
	if err := f(tx); err != nil {
		return dbError(err)
	}
	err = tx.Commit()
	if s.commits.Add(1)%checkpointEvery == 0 {
		s.log.ask()
	}
	return dbError(err)
}

// pruneBatch is how many rows one transaction forgets: all others wait for it.
const pruneBatch = 500

// inBatches repeats a deletion that is bounded by pruneBatch until nothing is
// left to delete. Other writes get their turn between two batches.
func (s *SQLite) inBatches(ctx context.Context, text string, args ...any) (int, error) {
	sum := 0
	for {
		var n int64
		err := s.tx(ctx, func(tx *sql.Tx) error {
			res, err := tx.ExecContext(ctx, text, append(args, pruneBatch)...)
			if err == nil {
				n, err = res.RowsAffected()
			}
			return err
		})
		sum += int(n)
		if err != nil || n < pruneBatch {
			return sum, err
		}
	}
}
