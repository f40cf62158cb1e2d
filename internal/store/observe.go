package store

import (
	"context"
	"database/sql"
	"runtime"
	"strings"
	"sync"
	"time"
)

// Observer is told of each operation of the records by name, which is that of
// the method here or of the use case that shares a transaction: a closed set.
// waited is how long a change waited for its turn to write, negative for a
// query; a query took as long as its first row.
type Observer interface {
	Took(operation string, waited, took time.Duration)
}

// Observe has an observer be told from now on. It is called before any other
// goroutine uses the records.
func (s *DB) Observe(o Observer) {
	s.observer = o
	s.r = observed{s.r, o}
}

// EventCount is how many events there ever were, of all teams.
func (s *DB) EventCount(ctx context.Context) (n int64, err error) {
	err = s.r.QueryRowContext(ctx, `SELECT COALESCE(SUM(last), 0) FROM event_counters`).Scan(&n)
	return n, dbError(err)
}

// Waiting is how many runs of triggers wait to be started, and how many approvals wait
// for a decision at that time, of all teams.
func (s *DB) Waiting(ctx context.Context, now time.Time) (runs, approvals int, err error) {
	err = s.r.QueryRowContext(ctx, `SELECT (SELECT COUNT(*) FROM runs WHERE state = 'waiting'),
(SELECT COUNT(*) FROM approvals WHERE state = 'pending' AND expires_at > $1)`, millis(now)).Scan(&runs, &approvals)
	return runs, approvals, dbError(err)
}

// observed is a database whose single statements are told of.
type observed struct {
	db reader
	to Observer
}

func (o observed) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	defer o.took(time.Now())
	return o.db.QueryContext(ctx, query, args...)
}

func (o observed) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	defer o.took(time.Now())
	return o.db.QueryRowContext(ctx, query, args...)
}

func (o observed) took(began time.Time) { o.to.Took(operation(), -1, time.Since(began)) }

// names are operations by the calls that lead to them.
var names sync.Map // of [callers]uintptr

const callers = 8

// operation is the exported method of the records that is at work, or the use
// case that shares a transaction.
func operation() string {
	var at [callers]uintptr
	n := runtime.Callers(2, at[:])
	if name, ok := names.Load(at); ok {
		return name.(string)
	}
	name := nameOf(at[:n])
	names.Store(at, name)
	return name
}

func nameOf(at []uintptr) string {
	const pkg = "github.com/cay-run/cay/internal/store."
	frames := runtime.CallersFrames(at)
	for {
		f, more := frames.Next()
		rest, ours := strings.CutPrefix(f.Function, pkg)
		if ours {
			rest, ours = strings.CutPrefix(rest, "(*DB).")
			if name, _, _ := strings.Cut(rest, "."); ours && name != "Tx" && name[0] >= 'A' && name[0] <= 'Z' {
				return name
			}
		} else if name := plain(f.Function); name != "" {
			return name
		}
		if !more {
			return "other"
		}
	}
}

// plain is the name of a function or method without its package and type, and
// without the closures in it.
func plain(function string) string {
	function = function[strings.LastIndexByte(function, '/')+1:]
	parts := strings.Split(function, ".")
	for len(parts) > 1 && (strings.HasPrefix(parts[len(parts)-1], "func") || strings.Trim(parts[len(parts)-1], "0123456789") == "") {
		parts = parts[:len(parts)-1]
	}
	return parts[len(parts)-1]
}
