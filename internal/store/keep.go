package store

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"

	"modernc.org/sqlite"
)

// keepStatements bounds what one connection keeps parsed. The texts that this
// package has are fewer; those of lists are made of parts.
const keepStatements = 128

// keeper opens connections that keep the statements they have parsed: of what
// the records of a sandbox's life cost, parsing was a third.
type keeper struct{ driver.Connector }

// Connect implements driver.Connector.
func (k keeper) Connect(ctx context.Context) (driver.Conn, error) {
	opened, err := k.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	inner, ok := opened.(plainConn)
	if !ok {
		return nil, errors.Join(fmt.Errorf("a connection is a %T", opened), opened.Close())
	}
	// The log stays when the database is closed, with its room on the disk: a
	// server starts on a disk that is full, too.
	if log, ok := opened.(sqlite.FileControl); ok {
		if _, err := log.FileControlPersistWAL("main", 1); err != nil {
			return nil, errors.Join(err, opened.Close())
		}
	}
	return &keepingConn{inner, make(map[string]keptStmt)}, nil
}

// plainConn is what is used of the driver's connections.
type plainConn interface {
	driver.Conn
	driver.ConnBeginTx
	driver.ConnPrepareContext
	driver.ExecerContext
	driver.QueryerContext
	driver.Pinger
	driver.SessionResetter
	driver.Validator
}

type keptStmt interface {
	driver.Stmt
	driver.StmtExecContext
	driver.StmtQueryContext
}

// keepingConn is a connection with the statements that are kept and not at
// work. As with all connections, one goroutine uses it at a time, and its rows.
type keepingConn struct {
	plainConn
	idle map[string]keptStmt
}

// ExecContext implements driver.ExecerContext.
func (c *keepingConn) ExecContext(ctx context.Context, text string, args []driver.NamedValue) (driver.Result, error) {
	stmt, err := c.take(ctx, text)
	if err != nil {
		return nil, err
	}
	result, err := stmt.ExecContext(ctx, args)
	if err != nil {
		return nil, errors.Join(err, stmt.Close())
	}
	return result, c.give(text, stmt)
}

// QueryContext implements driver.QueryerContext.
func (c *keepingConn) QueryContext(ctx context.Context, text string, args []driver.NamedValue) (driver.Rows, error) {
	stmt, err := c.take(ctx, text)
	if err != nil {
		return nil, err
	}
	rows, err := stmt.QueryContext(ctx, args)
	if err != nil {
		return nil, errors.Join(err, stmt.Close())
	}
	return &keptRows{rows, c, text, stmt}, nil
}

// take returns a statement that no other caller has until it is given back.
func (c *keepingConn) take(ctx context.Context, text string) (keptStmt, error) {
	if stmt, ok := c.idle[text]; ok {
		delete(c.idle, text)
		return stmt, nil
	}
	parsed, err := c.PrepareContext(ctx, text)
	if err != nil {
		return nil, err
	}
	stmt, ok := parsed.(keptStmt)
	if !ok {
		return nil, errors.Join(fmt.Errorf("a statement is a %T", parsed), parsed.Close())
	}
	return stmt, nil
}

// give keeps a statement, in place of any other when there are too many.
func (c *keepingConn) give(text string, stmt keptStmt) (err error) {
	if _, ok := c.idle[text]; ok { // two were at work at once
		return stmt.Close()
	}
	if len(c.idle) >= keepStatements {
		for other, old := range c.idle {
			delete(c.idle, other)
			err = old.Close()
			break
		}
	}
	c.idle[text] = stmt
	return err
}

// Close implements driver.Conn.
func (c *keepingConn) Close() error {
	var errs []error
	for _, stmt := range c.idle {
		errs = append(errs, stmt.Close())
	}
	clear(c.idle)
	return errors.Join(append(errs, c.plainConn.Close())...)
}

// keptRows are rows of a statement that is kept once they are closed.
type keptRows struct {
	driver.Rows
	conn *keepingConn
	text string
	stmt keptStmt // nil when closed
}

// Close implements driver.Rows.
func (r *keptRows) Close() error {
	if r.stmt == nil {
		return nil
	}
	stmt := r.stmt
	r.stmt = nil
	if err := r.Rows.Close(); err != nil {
		return errors.Join(err, stmt.Close())
	}
	return r.conn.give(r.text, stmt)
}
