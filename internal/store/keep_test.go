package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"path/filepath"
	"testing"

	"modernc.org/sqlite"
)

// counter counts what its connections parse.
type counter struct {
	driver.Connector
	parsed map[string]int
}

func (c counter) Connect(ctx context.Context) (driver.Conn, error) {
	opened, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return &countingConn{opened.(plainConn), c.parsed}, nil
}

type countingConn struct {
	plainConn
	parsed map[string]int
}

func (c *countingConn) PrepareContext(ctx context.Context, text string) (driver.Stmt, error) {
	c.parsed[text]++
	return c.plainConn.PrepareContext(ctx, text)
}

// openKept opens a database of one connection that keeps statements.
func openKept(t *testing.T) (*sql.DB, map[string]int) {
	t.Helper()
	inner, err := sqlite.NewConnector(filepath.Join(t.TempDir(), "a.db"))
	if err != nil {
		t.Fatal(err)
	}
	parsed := make(map[string]int)
	db := sql.OpenDB(keeper{counter{inner, parsed}})
	db.SetMaxOpenConns(1)
	exec(t, db, `PRAGMA synchronous = OFF`)
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	exec(t, db, `CREATE TABLE a (n INTEGER PRIMARY KEY, text TEXT)`)
	return db, parsed
}

type execer interface {
	ExecContext(ctx context.Context, text string, args ...any) (sql.Result, error)
}

func exec(t *testing.T, db execer, text string, args ...any) {
	t.Helper()
	if _, err := db.ExecContext(t.Context(), text, args...); err != nil {
		t.Fatal(err)
	}
}

const (
	insertA = `INSERT INTO a (n, text) VALUES ($1, $2)`
	selectA = `SELECT text FROM a WHERE n = $1`
)

func TestStatementsAreParsedOnce(t *testing.T) {
	db, parsed := openKept(t)
	for n := range 5 {
		want := fmt.Sprint("text ", n)
		exec(t, db, insertA, n, want)
		var got string
		if err := db.QueryRowContext(t.Context(), selectA, n).Scan(&got); err != nil || got != want {
			t.Errorf("found %q, %v; want %q", got, err, want)
		}
	}
	if parsed[insertA] != 1 || parsed[selectA] != 1 {
		t.Errorf("parsed %v", parsed)
	}
}

// A statement that failed, or a row that was not read to the end, leaves
// nothing behind that the next one would see, nor a lock.
func TestStatementAfterAFailure(t *testing.T) {
	db, parsed := openKept(t)
	exec(t, db, insertA, 1, "one")
	if _, err := db.ExecContext(t.Context(), insertA, 1, "again"); err == nil {
		t.Fatal("a key was inserted twice")
	}
	exec(t, db, insertA, 2, nil)
	var text sql.NullString
	if err := db.QueryRowContext(t.Context(), selectA, 2).Scan(&text); err != nil || text.Valid {
		t.Errorf("found %v, %v; want none", text, err)
	}
	if parsed[insertA] != 2 {
		t.Errorf("a statement that failed was parsed %d times; want it dropped", parsed[insertA])
	}

	rows, err := db.QueryContext(t.Context(), `SELECT n FROM a ORDER BY n`)
	if err != nil || !rows.Next() {
		t.Fatalf("no row: %v", err)
	}
	if err := errors.Join(rows.Close(), rows.Close()); err != nil {
		t.Fatal(err)
	}
	exec(t, db, `DROP TABLE a`) // which cannot be while a reader is at it
	exec(t, db, `CREATE TABLE a (other TEXT, n INTEGER, text TEXT)`)
	exec(t, db, insertA, 3, "three") // parsed for the other table
	var got string
	if err := db.QueryRowContext(t.Context(), selectA, 3).Scan(&got); err != nil || got != "three" {
		t.Errorf("found %q, %v", got, err)
	}
}

// Two readers of one text in one transaction have a statement each.
func TestSameStatementTwiceAtOnce(t *testing.T) {
	db, _ := openKept(t)
	for n := range 3 {
		exec(t, db, insertA, n, fmt.Sprint(n))
	}
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	list := func() *sql.Rows {
		rows, err := tx.QueryContext(t.Context(), `SELECT n FROM a ORDER BY n`)
		if err != nil {
			t.Fatal(err)
		}
		return rows
	}
	outer := list()
	for want := 0; outer.Next(); want++ {
		var got, inner int
		if err := outer.Scan(&got); err != nil || got != want {
			t.Errorf("read %d, %v; want %d", got, err, want)
		}
		rows := list()
		for rows.Next() {
			inner++
		}
		if err := errors.Join(rows.Err(), rows.Close()); err != nil || inner != 3 {
			t.Errorf("inside: %d rows, %v", inner, err)
		}
	}
	if err := errors.Join(outer.Err(), outer.Close(), tx.Commit()); err != nil {
		t.Error(err)
	}
}

func TestStatementsKeptAreBounded(t *testing.T) {
	db, _ := openKept(t)
	for n := range 2 * keepStatements {
		exec(t, db, fmt.Sprintf(`DELETE FROM a WHERE n = %d`, n))
	}
	c, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	err = c.Raw(func(c any) error {
		if kept := len(c.(*keepingConn).idle); kept > keepStatements {
			t.Errorf("%d statements are kept", kept)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
