package store

import (
	"context"
	"database/sql"
	"time"

	"github.com/cay-run/cay"
)

// reader is a database, which is written in transactions alone, or one of those.
type reader interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// writer is a transaction.
type writer interface {
	reader
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// guard is the epoch of a node that a server's transactions are of.
type guard struct {
	node  cay.NodeID
	epoch int64
}

// joined is a transaction that several calls share.
type joined struct {
	tx     *sql.Tx
	secure bool // a call wants the transaction to survive a power cut
}

// Tx runs f with a store whose calls are one transaction. f may run more than
// once, on a full disk or when other servers are in its way; only the last run
// counts. f returns the error of a call that failed: the transaction is over
// with it.
func (s *DB) Tx(ctx context.Context, f func(Store) error) error {
	if s.joined != nil {
		return f(s)
	}
	inner := *s
	err := s.tx(ctx, func(tx *sql.Tx) error {
		inner.joined = &joined{tx: tx}
		inner.r = tx
		return f(&inner)
	})
	if err == nil && inner.joined.secure {
		err = s.sync()
	}
	return err
}

// tx runs f in one write transaction: the shared one, if there is one, else one
// that is tried again as often as it may help.
func (s *DB) tx(ctx context.Context, f func(*sql.Tx) error) error {
	if s.joined != nil {
		return dbError(f(s.joined.tx))
	}
	for runs := 1; ; runs++ {
		err := s.try(ctx, f)
		if err == nil || !s.engine.again(ctx, err, runs) {
			return dbError(err)
		}
	}
}

func (s *DB) try(ctx context.Context, f func(*sql.Tx) error) error {
	asked := time.Now()
	if s.answers != nil {
		if err := s.answers.Begin(ctx); err != nil {
			return err
		}
		ctx = context.WithoutCancel(ctx)
	}
	tx, err := s.engine.begin(ctx)
	if err != nil {
		return dbError(err)
	}
	if s.observer != nil {
		began := time.Now()
		defer func() { s.observer.Took(operation(), began.Sub(asked), time.Since(began)) }()
	}
	over := tx.Rollback // does nothing after Commit
	defer func() { _ = over() }()
	if err := f(tx); err != nil {
		return dbError(err)
	}
	if s.answers != nil {
		over = func() error { return nil }
		err = s.answers.Commit(tx)
	} else {
		err = tx.Commit()
	}
	s.engine.committed()
	return dbError(err)
}

// Answers is between commits and those who wait for them. A test has it lose their answers.
type Answers interface {
	// Begin is called before a transaction that writes.
	Begin(ctx context.Context) error
	// Commit ends a transaction, at once or later, and answers.
	Commit(tx *sql.Tx) error
	// Settled is Store's Settled.
	Settled() error
}

// Answer has a test's answers be given. It is called before any other goroutine uses the records.
func (s *DB) Answer(a Answers) { s.answers = a }

// Settled is an error while a change may still come to count that no reader sees.
func (s *DB) Settled(ctx context.Context) error {
	if s.answers != nil {
		if err := s.answers.Settled(); err != nil {
			return err
		}
	}
	return s.engine.settled(ctx)
}

// sync makes what is committed survive a power cut as well, which is a write to
// the disk that not every commit of SQLite waits for.
func (s *DB) sync() error {
	if s.joined != nil { // it is not committed yet
		s.joined.secure = true
		return nil
	}
	return s.engine.secure()
}

// pruneBatch is how many rows one transaction forgets: all others wait for it.
const pruneBatch = 500

// inBatches repeats a deletion that is bounded by pruneBatch until nothing is
// left to delete. Other writes get their turn between two batches.
func (s *DB) inBatches(ctx context.Context, text string, args ...any) (int, error) {
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
