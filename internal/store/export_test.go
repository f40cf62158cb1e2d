package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
)

// Settle copies the log of an SQLite database back and waits until it has its
// room.
func Settle(s *DB) {
	f := s.engine.(*sqliteFile)
	_, _ = copyBack(context.Background(), f.log.db)
	f.log.close()
	f.room.keep()
	again, err := openCheckpoints(f.path, f.room)
	if err == nil {
		f.log = again
		f.log.start(f.writer)
	}
}

// Commits is how many transactions of an SQLite database were committed.
func Commits(s *DB) int64 { return s.engine.(*sqliteFile).commits.Load() }

// TooNew asks for a version of PostgreSQL that is not there yet.
func TooNew(url string) PostgresConfig { return PostgresConfig{URL: url, least: 99} }

// HurryCommits makes the bounds of commits short for a test.
func HurryCommits(t *testing.T) {
	commit, resolve := commitWithin, resolveWithin
	commitWithin, resolveWithin = 2*time.Second, time.Second
	t.Cleanup(func() { commitWithin, resolveWithin = commit, resolve })
}

// Pooler has connections to PostgreSQL that the stores of many servers share: each
// has one for a transaction, or for a statement outside of one, as with PgBouncer's
// pool_mode = transaction.
type Pooler struct {
	seal Sealer
	free chan *stdlib.Conn
}

// NewPooler opens n connections.
func NewPooler(ctx context.Context, url string, n int, seal Sealer) (*Pooler, error) {
	c, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	set(c)
	p := &Pooler{seal, make(chan *stdlib.Conn, n)}
	for range n {
		conn, err := stdlib.GetConnector(*c).Connect(ctx)
		if err != nil {
			return nil, err
		}
		p.free <- conn.(*stdlib.Conn)
	}
	return p, nil
}

// Store is that of one more server.
func (p *Pooler) Store() *DB {
	held := new(atomic.Pointer[guard])
	db := sql.OpenDB(&seat{p, held})
	db.SetMaxIdleConns(-1)
	return newDB(&postgres{db, db, held}, db, p.seal)
}

// Close closes the connections, which all stores have given back.
func (p *Pooler) Close() {
	for range cap(p.free) {
		_ = (<-p.free).Close()
	}
}

// seat is the place of a server at a pooler.
type seat struct {
	pooler *Pooler
	held   *atomic.Pointer[guard]
}

// Connect waits for a connection.
func (s *seat) Connect(ctx context.Context) (driver.Conn, error) {
	select {
	case conn := <-s.pooler.free:
		return &lent{&pgConn{Conn: conn, from: connector{s, s.held}}, s.pooler}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (*seat) Driver() driver.Driver { return stdlib.GetDefaultDriver() }

// lent is a connection that goes back when it is closed.
type lent struct {
	*pgConn
	pooler *Pooler
}

func (l *lent) Close() error {
	l.pooler.free <- l.pgConn.Conn
	return nil
}

// HasNews is hasNews.
var HasNews = hasNews
