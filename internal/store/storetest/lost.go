package storetest

import (
	"context"
	"database/sql"
	"sync"
	"time"

	"github.com/cay-run/cay"
)

// Lost loses the answers of commits, as PostgreSQL does whose standby is away.
type Lost struct {
	mu   sync.Mutex
	plan Loss
	open chan struct{} // closed when a commit counts that none sees before; nil for none
}

// Loss says which answers are lost, and what becomes of their commits.
type Loss struct {
	Skip  int           // commits that are answered before
	Lost  int           // commits without an answer after them
	Count bool          // whether they count
	Later time.Duration // when, for the last of them; until then other changes wait
	Away  int           // changes and reads that fail after that
}

// lockTimeout is how long a change waits for another one.
const lockTimeout = 10 * time.Second

// Plan loses answers from now on.
func (l *Lost) Plan(p Loss) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.plan = p
}

// Left is what was planned and has not come to pass.
func (l *Lost) Left() Loss {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.plan
}

// Begin implements store.Answers.
func (l *Lost) Begin(ctx context.Context) error {
	l.mu.Lock()
	open := l.open
	l.mu.Unlock()
	if open != nil {
		late := time.NewTimer(lockTimeout)
		defer late.Stop()
		select {
		case <-open:
		case <-late.C:
			return cay.Errorf(cay.Unavailable, "the database is busy")
		case <-ctx.Done():
			return cay.Wrap(cay.Unavailable, ctx.Err(), "the request ended before the database answered")
		}
	}
	return l.Read()
}

// Read is an error while the database is away.
func (l *Lost) Read() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.plan.Lost > 0 || l.plan.Away == 0 {
		return nil
	}
	l.plan.Away--
	return cay.Errorf(cay.Unavailable, "PostgreSQL does not answer")
}

// Commit implements store.Answers.
func (l *Lost) Commit(tx *sql.Tx) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch p := &l.plan; {
	case p.Lost > 0 && p.Skip > 0:
		p.Skip--
		return tx.Commit()
	case p.Lost == 0:
		return tx.Commit()
	case !p.Count:
		p.Lost--
		_ = tx.Rollback()
	case p.Lost == 1 && p.Later > 0:
		p.Lost--
		l.late(tx, p.Later)
	default:
		p.Lost--
		if err := tx.Commit(); err != nil {
			return err
		}
	}
	return cay.Errorf(cay.Unavailable, "PostgreSQL has not confirmed a change, which may count or not")
}

// late commits later. The caller holds the lock.
func (l *Lost) late(tx *sql.Tx, after time.Duration) {
	open := make(chan struct{})
	l.open = open
	go func() {
		time.Sleep(after)
		_ = tx.Commit()
		l.mu.Lock()
		defer l.mu.Unlock()
		l.open = nil
		close(open)
	}()
}

// Settled implements store.Answers.
func (l *Lost) Settled() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open != nil {
		return cay.Errorf(cay.Unavailable, "a change is not confirmed yet")
	}
	return nil
}
