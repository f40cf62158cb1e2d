package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cay-run/cay/internal/store/pgtest"
	"github.com/cay-run/cay/internal/trail"
)

// TestStatementsWait has statements of a transaction wait for an answer that is needed, and
// do in the end what they would do one by one.
func TestStatementsWait(t *testing.T) {
	server := pgtest.Start(t)
	p, err := pool(PostgresConfig{URL: server.URL(server.Database(t, ""))})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = p.close() }()
	ctx := t.Context()
	if _, err := p.aside.ExecContext(ctx, `CREATE TABLE n (i BIGINT PRIMARY KEY, t TEXT, b BYTEA)`); err != nil {
		t.Fatal(err)
	}
	count := func(q reader) (n int) {
		t.Helper()
		if err := q.QueryRowContext(ctx, `SELECT COUNT(*) FROM n WHERE i >= $1`, 0).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	in := func(f func(*sql.Tx)) error {
		t.Helper()
		tx, err := p.aside.BeginTx(ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback() }()
		f(tx)
		return tx.Commit()
	}
	add := func(tx *sql.Tx, i int) sql.Result {
		t.Helper()
		res, err := tx.ExecContext(ctx, `INSERT INTO n VALUES ($1, $2, $3) ON CONFLICT DO NOTHING`, i, "zero \x00", []byte{0, 1})
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	// Nothing, statements alone, and those of which a query or their number ask.
	for i, f := range []func(*sql.Tx){
		func(*sql.Tx) {},
		func(tx *sql.Tx) { add(tx, 1); add(tx, 2) },
		func(tx *sql.Tx) {
			add(tx, 3)
			if n := count(tx); n != 3 {
				t.Errorf("a query after a statement that waits finds %d rows, not 3", n)
			}
		},
		func(tx *sql.Tx) {
			for res, want := range map[sql.Result]int64{add(tx, 3): 0, add(tx, 4): 1, add(tx, 5): 1} {
				if n, err := res.RowsAffected(); n != want || err != nil {
					t.Errorf("it changed %d rows, %v; want %d", n, err, want)
				}
			}
		},
		func(tx *sql.Tx) {
			for i := range 3 * mostWaiting {
				add(tx, 6+i)
			}
		},
	} {
		if err := in(f); err != nil {
			t.Errorf("transaction %d: %v", i, err)
		}
	}
	all := 5 + 3*mostWaiting
	var text string
	var raw []byte
	err = in(func(tx *sql.Tx) {
		if err := tx.QueryRowContext(ctx, `SELECT t, b FROM n WHERE i = $1`, 2).Scan(&text, &raw); err != nil {
			t.Fatal(err)
		}
	})
	if err != nil || text != "zero \x00" || string(raw) != "\x00\x01" {
		t.Errorf("a transaction reads %q and %x, %v", text, raw, err)
	}
	// One that fails takes all others along, whatever asks for its answer.
	var told *pgconn.PgError
	for name, ask := range map[string]func(*sql.Tx, sql.Result) error{
		"the commit":     func(*sql.Tx, sql.Result) error { return nil },
		"a query":        func(tx *sql.Tx, _ sql.Result) error { return tx.QueryRowContext(ctx, `SELECT 1`).Scan(new(int)) },
		"its number":     func(_ *sql.Tx, res sql.Result) error { _, err := res.RowsAffected(); return err },
		"one at once":    func(tx *sql.Tx, _ sql.Result) error { _, err := tx.ExecContext(ctx, `SELECT 1`); return err },
		"one after most": func(tx *sql.Tx, _ sql.Result) error { return many(ctx, tx) },
	} {
		var asked error
		err := in(func(tx *sql.Tx) {
			add(tx, 10_000)
			res, err := tx.ExecContext(ctx, `INSERT INTO n VALUES ($1)`, 1)
			if err != nil {
				t.Fatal(err)
			}
			add(tx, 10_001)
			asked = ask(tx, res)
		})
		if name != "the commit" && (!errors.As(asked, &told) || told.Code != "23505") {
			t.Errorf("%s says %v", name, asked)
		}
		if err == nil || name == "the commit" && !errors.As(err, &told) {
			t.Errorf("%s: the transaction ends with %v", name, err)
		}
		if n := count(p.aside); n != all {
			t.Errorf("%s: %d rows are there, not %d", name, n, all)
		}
	}
	if err := in(func(tx *sql.Tx) { add(tx, 20_000); _ = tx.Rollback() }); !errors.Is(err, sql.ErrTxDone) || count(p.aside) != all {
		t.Errorf("a transaction that is rolled back: %v", err)
	}
	if open := p.aside.Stats(); open.InUse != 0 {
		t.Errorf("%d connections are in use", open.InUse)
	}
}

// many executes as many statements as may wait.
func many(ctx context.Context, tx *sql.Tx) error {
	for i := range mostWaiting {
		if _, err := tx.ExecContext(ctx, `INSERT INTO n VALUES ($1)`, 30_000+i); err != nil {
			return fmt.Errorf("statement %d: %w", i, err)
		}
	}
	return nil
}

// TestRequestsKeepTheirConnection has the background ask beside the queries and transactions of
// a request: these go over one connection, which knows their statements.
func TestRequestsKeepTheirConnection(t *testing.T) {
	server := pgtest.Start(t)
	s, err := OpenPostgres(t.Context(), PostgresConfig{URL: server.URL(server.Database(t, ""))}, clearText{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	background, cancel := context.WithCancel(t.Context())
	var queries sync.WaitGroup
	for range 3 {
		queries.Go(func() {
			for background.Err() == nil {
				_, _ = s.EventCount(background)
			}
		})
	}
	used := map[int]bool{}
	note := func(ctx context.Context, q reader) error {
		var process int
		err := q.QueryRowContext(ctx, `SELECT pg_backend_pid()`).Scan(&process)
		used[process] = true
		return err
	}
	request := trail.With(t.Context(), &trail.Request{})
	for range 50 {
		err := errors.Join(note(request, s.r), s.tx(request, func(tx *sql.Tx) error { return note(request, tx) }))
		if err != nil {
			t.Error(err)
		}
	}
	cancel()
	queries.Wait()
	if len(used) != 1 {
		t.Errorf("a request came over %d connections", len(used))
	}
}
