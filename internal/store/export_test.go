package store

import (
	"context"
	"testing"
	"time"
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
