package store

import (
	"context"
	"database/sql"
	"errors"
	"net/url"
	"path/filepath"
	"runtime"
	"sync/atomic"

	"github.com/pressly/goose/v3"
	"modernc.org/sqlite"

	"github.com/cay-run/cay"
)

// sqliteFile is a database in one file. Writes go through one connection, so
// they never wait for each other inside SQLite; reads have a pool of their own
// and never wait for a write.
type sqliteFile struct {
	path           string
	writer, reader *sql.DB
	log            *checkpoints
	room           *space
	commits        atomic.Int64
}

// Open opens the SQLite database at path, makes it when it is not there and
// brings its schema up to date. The sealer is that of the data directory:
// records whose environment or network it sealed cannot be read without it, so
// there is no way to open the database that leaves it out. Only the process that
// holds the data directory's lock may call Open, because a newer program would
// bring the schema up to date under an older server that runs.
func Open(ctx context.Context, path string, seal Sealer) (*DB, error) {
	if seal == nil {
		return nil, errNoSealer()
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, cay.Wrap(cay.Internal, err, "the database's path is unusable")
	}
	// SQLite gives its side files the mode of the main one. Rows hold
	// environment variables of sandboxes, which hold secrets.
	room, err := openSpace(path)
	if err != nil {
		return nil, cay.Wrap(cay.Unavailable, err, "cannot open the database %s", path).
			WithHint("check that the data directory is there and writable")
	}
	f, err := openFile(ctx, path, room)
	if err != nil {
		return nil, errors.Join(err, room.close())
	}
	return newDB(f, f.reader, seal), nil
}

func errNoSealer() error {
	return cay.Errorf(cay.Internal, "the database is opened without the sealing key")
}

func newDB(e engine, reader *sql.DB, seal Sealer) *DB {
	return &DB{
		engine: e, seal: seal, priced: new(atomic.Pointer[cay.Prices]),
		reader: reader, r: e.reads(reader),
	}
}

func openFile(ctx context.Context, path string, room *space) (f *sqliteFile, err error) {
	f = &sqliteFile{path: path, room: room}
	if f.writer, err = open(path, "immediate", 1, "journal_mode(WAL)", "wal_autocheckpoint(0)"); err != nil {
		return nil, dbError(err)
	}
	err = checkFile(ctx, f.writer)
	if err == nil {
		err = migrate(ctx, goose.DialectSQLite3, f.writer, migrationsFor(inSQLite))
	}
	if err != nil {
		f.writer.Close()
		return nil, err
	}
	f.reader, err = open(path, "deferred", max(4, runtime.GOMAXPROCS(0)), "query_only(1)")
	if err == nil {
		f.log, err = openCheckpoints(path, room)
	}
	if err != nil {
		f.writer.Close()
		return nil, dbError(err)
	}
	f.log.start(f.writer)
	return f, nil
}

// open makes a pool. With synchronous NORMAL in WAL mode a killed process
// loses nothing; a power cut may lose the last commits, and with them goes
// everything that ran. A record that must outlive that, of saved state, calls sync.
func open(path, lock string, conns int, pragmas ...string) (*sql.DB, error) {
	q := url.Values{
		"_pragma": append([]string{"busy_timeout(10000)", "synchronous(NORMAL)", "foreign_keys(1)"}, pragmas...),
		"_txlock": {lock},
	}
	u := url.URL{Scheme: "file", Path: path, RawQuery: q.Encode()}
	c, err := sqlite.NewConnector(u.String())
	if err != nil {
		return nil, err
	}
	db := sql.OpenDB(keeper{c})
	db.SetMaxOpenConns(conns)
	db.SetMaxIdleConns(conns)
	return db, nil
}

func (f *sqliteFile) begin(ctx context.Context) (*sql.Tx, error) { return f.writer.BeginTx(ctx, nil) }

func (*sqliteFile) reads(db *sql.DB) reader { return db }

// guard has nothing to do: the lock of the directory keeps other servers away.
func (*sqliteFile) guard(guard) {}

// settled always returns nil: a commit is answered when it is in the file, or has failed.
func (*sqliteFile) settled(context.Context) error { return nil }

func (*sqliteFile) self() cay.NodeID { return "" }

func (*sqliteFile) many() bool { return false }

// again has a transaction run once more on a full disk: it copies the log back,
// so that the log begins anew in the room that it has.
func (f *sqliteFile) again(ctx context.Context, err error, runs int) bool {
	return runs == 1 && cay.KindOf(err) == cay.NoSpace && f.log.restart(ctx, f.writer) == nil
}

func (f *sqliteFile) committed() {
	if f.commits.Add(1)%checkpointEvery == 0 {
		f.log.ask()
	}
}

func (f *sqliteFile) close() error {
	return errors.Join(f.log.close(), f.reader.Close(), f.writer.Close(), f.room.close())
}
