package store

import (
	"context"
	"database/sql"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/cay-run/cay"
)

const (
	// checkpointEvery is after how many commits the log is copied back.
	checkpointEvery = 64
	// longLog is how many pages the log may have. SQLite starts it anew when all
	// of it is copied back, which never is so while commits go on beside that.
	longLog = 2048
)

// checkpoints copies the write-ahead log back into the database, beside the
// commits. SQLite would do that within every so many, and wait for the disk
// there: a caller waits for each commit.
type checkpoints struct {
	db   *sql.DB // one connection of its own
	room *space
	mu   sync.Mutex    // held while the log is copied: SQLite refuses a second copy
	due  chan struct{} // holds a value when there is something to do
	stop context.CancelFunc
	over chan struct{} // closed when it has stopped
}

func openCheckpoints(path string, room *space) (*checkpoints, error) {
	db, err := open(path, "deferred", 1, "wal_autocheckpoint(0)")
	if err != nil {
		return nil, err
	}
	return &checkpoints{db: db, room: room, due: make(chan struct{}, 1), over: make(chan struct{})}, nil
}

// start begins, with what an earlier process may have left. Writer is the one
// connection that commits.
func (c *checkpoints) start(writer *sql.DB) {
	var ctx context.Context
	ctx, c.stop = context.WithCancel(context.Background())
	c.ask()
	go func() {
		defer close(c.over)
		for {
			select {
			case <-ctx.Done():
				return
			case <-c.due:
			}
			// A failure is repaired the next time; the records are safe in the log.
			c.mu.Lock()
			if pages, err := copyBack(ctx, c.db); err == nil && pages > longLog {
				_, _ = copyBack(ctx, writer) // little is left of it, and no commit comes between
			}
			c.room.keep()
			c.mu.Unlock()
		}
	}()
}

// restart copies all of the log back and has the next commit begin it anew. It
// waits for readers, and for a copy that is under way.
func (c *checkpoints) restart(ctx context.Context, writer *sql.DB) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var busy, pages, done int
	err := writer.QueryRowContext(ctx, `PRAGMA wal_checkpoint(RESTART)`).Scan(&busy, &pages, &done)
	if err == nil && busy != 0 {
		err = errors.New("a reader keeps the log from its beginning")
	}
	return err
}

func (c *checkpoints) ask() {
	select {
	case c.due <- struct{}{}:
	default:
	}
}

func (c *checkpoints) close() error {
	c.stop()
	<-c.over
	return c.db.Close()
}

// copyBack copies as many pages as it can without making a reader or writer wait,
// and returns how many pages the log has.
func copyBack(ctx context.Context, db *sql.DB) (pages int, err error) {
	var busy, done int
	err = db.QueryRowContext(ctx, `PRAGMA wal_checkpoint(PASSIVE)`).Scan(&busy, &pages, &done)
	return pages, err
}

// secure writes the log to the disk: or the log is gone because all of it is in
// the database, safely.
func (f *sqliteFile) secure() error {
	for _, name := range []string{f.path + "-wal", filepath.Dir(f.path)} {
		if err := syncFile(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return cay.Wrap(cay.Unavailable, err, "the database's log cannot be written to the disk")
		}
	}
	return nil
}

func syncFile(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
