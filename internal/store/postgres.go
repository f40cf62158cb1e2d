package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/trail"
)

const (
	// leastPostgres is the oldest PostgreSQL that is supported; pg_xact_status is
	// as old, and older ones get no fixes any more.
	leastPostgres = 14
	// patience is how long a statement or a transaction is tried again while the
	// database is away: a restart takes seconds, and a request waits as long.
	patience = 10 * time.Second
	// conflicts is how often a transaction is tried again that others were in the
	// way of.
	conflicts = 10
	// mostConns and mostAside are how many connections a server has at most, for what
	// clients wait for and for all else. PostgreSQL takes a hundred unless told otherwise.
	mostConns, mostAside = 12, 8
	// openLock is the advisory lock of a server that opens the records: one at a
	// time looks at the schema.
	openLock = 0x636179_01
	// lockTimeout is PostgreSQL's code of a lock that was not got in time.
	lockTimeout = "55P03"
)

// PostgresConfig says where the records are, and what they need.
type PostgresConfig struct {
	URL string
	// Standby refuses a database that commits without a synchronous standby.
	Standby bool

	least int // in the stead of leastPostgres, in tests
}

// postgres is a database that other servers write as well.
//
// Requests have connections of their own. A connection reads and plans each
// statement anew; the one that was used last is used next, and queries of the background
// would have requests come to another one each time.
type postgres struct {
	db    *sql.DB                // for requests
	aside *sql.DB                // for all else
	held  *atomic.Pointer[guard] // nil in it before there is one
}

// conns are the connections for what is done for a context.
func (p *postgres) conns(ctx context.Context) *sql.DB {
	if trail.Of(ctx) != nil {
		return p.db
	}
	return p.aside
}

func (p *postgres) begin(ctx context.Context) (*sql.Tx, error) { return p.conns(ctx).BeginTx(ctx, nil) }

// OpenPostgres opens the records in PostgreSQL and brings their schema up to
// date. Several servers may have them open. Errors say nothing of the password.
func OpenPostgres(ctx context.Context, cfg PostgresConfig, seal Sealer) (*DB, error) {
	if seal == nil {
		return nil, errNoSealer()
	}
	p, err := pool(cfg)
	if err != nil {
		return nil, err
	}
	if err := prepare(ctx, p.aside, cfg); err != nil {
		_ = p.close()
		return nil, err
	}
	return newDB(p, p.aside, seal), nil
}

// ProbePostgres reports whether records could be kept there, and how far the clock of this machine
// is ahead of its. It changes nothing.
func ProbePostgres(ctx context.Context, cfg PostgresConfig) (ahead time.Duration, err error) {
	p, err := pool(cfg)
	if err != nil {
		return 0, err
	}
	defer func() { _ = p.close() }()
	conn, err := p.aside.Conn(ctx)
	if err != nil {
		return 0, connectError(err)
	}
	defer conn.Close()
	if err := look(ctx, conn, cfg); err != nil {
		return 0, err
	}
	var told int64
	asked := time.Now()
	if err := conn.QueryRowContext(ctx, `SELECT `+nowInPostgres).Scan(&told); err != nil {
		return 0, connectError(err)
	}
	return cay.ClockAhead(asked, time.UnixMilli(told), time.Now()), nil
}

// pool makes the connections to a database as they are needed.
func pool(cfg PostgresConfig) (*postgres, error) {
	c, err := pgx.ParseConfig(cfg.URL)
	if err != nil {
		return nil, cay.Errorf(cay.Invalid, "the database's address cannot be read: %s", withoutPassword(err.Error(), cfg.URL)).
			WithHint("it looks like postgres://user:password@host:5432/name?sslmode=verify-full")
	}
	set(c)
	held := new(atomic.Pointer[guard])
	conns := func(most int) *sql.DB {
		db := sql.OpenDB(connector{stdlib.GetConnector(*c, stdlib.OptionShouldPing(shouldPing)), held})
		db.SetMaxOpenConns(most)
		db.SetMaxIdleConns(most)
		db.SetConnMaxIdleTime(5 * time.Minute)
		db.SetConnMaxLifetime(time.Hour) // an operator who moves the database has all moved in an hour
		return db
	}
	return &postgres{conns(mostConns), conns(mostAside), held}, nil
}

// set adds what each connection needs to what the address says.
func set(c *pgx.ConnConfig) {
	for name, value := range map[string]string{
		"application_name":                    "cay",
		"lock_timeout":                        "10s",
		"idle_in_transaction_session_timeout": "60s", // a server that is cut off holds no team for longer
	} {
		if _, asked := c.RuntimeParams[name]; !asked {
			c.RuntimeParams[name] = value
		}
	}
	if c.ConnectTimeout == 0 {
		c.ConnectTimeout = 5 * time.Second
	}
	if c.ValidateConnect == nil { // of several hosts the one that can be written
		c.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite
	}
}

// withoutPassword is a text in which the password of an address is masked.
func withoutPassword(text, address string) string {
	if u, err := url.Parse(address); err == nil && u.User != nil {
		if password, has := u.User.Password(); has && password != "" {
			text = strings.ReplaceAll(text, password, "xxxxx")
			text = strings.ReplaceAll(text, url.QueryEscape(password), "xxxxx")
		}
		return strings.ReplaceAll(text, address, u.Redacted())
	}
	return strings.ReplaceAll(text, address, "the address") // it may hold one in any form
}

// prepare looks the database over and brings its schema up to date, while no
// other server does.
func prepare(ctx context.Context, db *sql.DB, cfg PostgresConfig) error {
	var conn *sql.Conn
	err := patiently(ctx, func() (err error) {
		conn, err = db.Conn(ctx)
		return err
	})
	if err != nil {
		return connectError(err)
	}
	defer conn.Close()
	if err := look(ctx, conn, cfg); err != nil {
		return err
	}
	// The lock is of a transaction, which a pooler gives one connection for. lock_timeout bounds
	// the wait for another server that migrates.
	defer func() { _, _ = conn.ExecContext(context.WithoutCancel(ctx), `ROLLBACK`) }()
	if _, err := conn.ExecContext(ctx, `BEGIN; SET LOCAL lock_timeout = '5min'; SET LOCAL idle_in_transaction_session_timeout = 0;
SELECT pg_advisory_xact_lock(`+fmt.Sprint(openLock)+`)`); err != nil {
		return cay.Wrap(cay.Unavailable, err, "another server has been bringing the database up to date for minutes").
			WithHint("see pg_stat_activity, and try again")
	}
	return migrate(ctx, goose.DialectPostgres, db, migrationsFor(inPostgres))
}

// look refuses a database that cannot keep records.
func look(ctx context.Context, conn *sql.Conn, cfg PostgresConfig) error {
	var version, standbys int
	var encoding, names string
	var mayCreate bool
	err := conn.QueryRowContext(ctx, `SELECT current_setting('server_version_num')::int, current_setting('server_encoding'),
current_setting('synchronous_standby_names'),
(SELECT count(*) FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum')),
COALESCE(has_schema_privilege(current_schema(), 'CREATE'), false)`).Scan(&version, &encoding, &names, &standbys, &mayCreate)
	least := cfg.least
	if least == 0 {
		least = leastPostgres
	}
	switch {
	case err != nil:
		return connectError(err)
	case version/10000 < least:
		return cay.Errorf(cay.Unsupported, "PostgreSQL %d is too old: %d is the oldest that Cay supports", version/10000, least).
			WithHint("upgrade it with pg_upgrade, or set CAY_DATABASE_URL to a newer one")
	case encoding != "UTF8":
		return cay.Errorf(cay.Unsupported, "the database's encoding is %s: Cay needs UTF8", encoding).
			WithHint("make it with: createdb --encoding UTF8 --template template0 NAME")
	case !mayCreate:
		return cay.Errorf(cay.Unsupported, "the database's user may not create tables in its schema").
			WithHint("make the user the owner of the database: ALTER DATABASE name OWNER TO user")
	case cfg.Standby && names == "":
		return cay.Errorf(cay.Unavailable, "PostgreSQL has no synchronous standby: a commit would be on one machine alone").
			WithHint("set synchronous_standby_names there, or leave CAY_DATABASE_STANDBY out")
	case cfg.Standby && standbys == 0:
		return cay.Errorf(cay.Unavailable, "no synchronous standby is connected to PostgreSQL (synchronous_standby_names is %s)", names).
			WithHint("start the standby; a commit waits for it")
	}
	return nil
}

func connectError(err error) error {
	var ours *cay.Error
	var pg *pgconn.PgError
	hint := "check CAY_DATABASE_URL, and that PostgreSQL runs and takes connections from here"
	switch {
	case errors.As(err, &ours):
		return err
	case errors.As(err, &pg) && strings.HasPrefix(pg.Code, "28"):
		hint = "check the user and the password of CAY_DATABASE_URL, and pg_hba.conf"
	case errors.As(err, &pg) && pg.Code == "3D000":
		hint = "make the database: createdb --owner USER NAME"
	case strings.Contains(err.Error(), "read only connection"):
		return cay.Wrap(cay.Unavailable, err, "PostgreSQL is read-only there: it is a standby, or was told so").
			WithHint("name the primary, or all hosts: postgres://host1,host2/name")
	}
	return cay.Wrap(cay.Unavailable, err, "PostgreSQL cannot be used: %s", reason(err)).WithHint("%s", hint)
}

// reason is the last part of an error's text, which says what happened; the parts
// before name addresses.
func reason(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Message
	}
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Error()
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return "it did not answer in time"
	}
	return "it cannot be reached"
}

// postgresError turns an error that PostgreSQL told into one of ours.
func postgresError(err *pgconn.PgError) error {
	switch {
	case err.Code == "23505":
		return taken(err)
	case err.Code == "53100":
		return cay.Wrap(cay.NoSpace, err, "no space left for the database")
	case err.Code == "25006":
		return cay.Wrap(cay.Unavailable, err, "the database is read-only").
			WithHint("it became a standby, or was told so; CAY_DATABASE_URL may name all hosts")
	case err.Code[:2] == "40", err.Code == lockTimeout:
		return cay.Wrap(cay.Unavailable, err, "the database is busy")
	case err.Code[:2] == "53":
		return cay.Wrap(cay.Unavailable, err, "the database has no room for another connection, or no memory")
	case away(err):
		return cay.Wrap(cay.Unavailable, err, "PostgreSQL does not answer")
	}
	return cay.Wrap(cay.Internal, err, "the database failed")
}

// away reports whether PostgreSQL says that it ends the connection, or takes none
// yet.
func away(err *pgconn.PgError) bool {
	switch err.Code {
	case "57P01", "57P02", "57P03", "57P05", "25P03": // shutdown, crash, starting up, idle for too long
		return true
	}
	return strings.HasPrefix(err.Code, "08")
}

// broken reports whether an error is of the connection and not of a statement: no
// answer came, so a transaction that was not being committed did not happen.
func broken(err error) bool {
	var pg *pgconn.PgError
	var connect *pgconn.ConnectError
	var network net.Error
	switch {
	case errors.As(err, &pg):
		return away(pg) || pg.Code == "25006" || pg.Code == "53300" // a primary that became a standby; too many connections
	case errors.As(err, &connect), errors.As(err, &network), pgconn.SafeToRetry(err), errors.Is(err, errLost):
		return true
	}
	text := err.Error()
	return strings.Contains(text, "unexpected EOF") || strings.Contains(text, "conn closed") || strings.Contains(text, "bad connection")
}

// inTheWay reports whether a transaction failed because of others at the same
// time.
func inTheWay(err error) bool {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return false
	}
	// A plan of before a migration fails once on each connection.
	return pg.Code == "40001" || pg.Code == "40P01" || pg.Code == "0A000" && strings.Contains(pg.Message, "cached plan")
}

// patiently does something that may be done again, until the database is there.
func patiently(ctx context.Context, f func() error) error {
	for runs := 1; ; runs++ {
		if err := f(); err == nil || !waitFor(ctx, err, runs) {
			return err
		}
	}
}

// waitFor waits before something is done again that has failed so many times, and
// reports whether that makes sense.
func waitFor(ctx context.Context, err error, runs int) bool {
	var pause time.Duration
	switch {
	case ctx.Err() != nil:
		return false
	case inTheWay(err) && runs < conflicts:
		pause = time.Millisecond << runs
	case broken(err) && runs <= int(patience/waitMost)+waitSteps:
		pause = min(waitMost, waitLeast<<min(runs, waitSteps))
	default:
		return false
	}
	timer := time.NewTimer(pause/2 + rand.N(pause/2+1))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// A database that is away is asked again after a few milliseconds, and in the end
// twice a second.
const (
	waitLeast = 4 * time.Millisecond
	waitSteps = 7
	waitMost  = 500 * time.Millisecond
)

func (*postgres) many() bool { return true }

func (p *postgres) reads(*sql.DB) reader { return patient{p} }

func (p *postgres) guard(g guard) { p.held.Store(&g) }

// inDoubt are transactions of the database that may be committed, or will be, though their
// clients had no answer: those that wait for a standby, and those that write for longer than any
// of Cay's does. A client gives up on a commit later than that (commitWithin).
const inDoubt = `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend'
AND (wait_event = 'SyncRep' OR backend_xid IS NOT NULL AND xact_start < clock_timestamp() - interval '5 seconds')`

func (p *postgres) settled(ctx context.Context) error {
	n := 0
	if err := p.reads(nil).QueryRowContext(ctx, inDoubt).Scan(&n); err != nil {
		return dbError(err)
	}
	if n > 0 {
		return cay.Errorf(cay.Unavailable, "%d changes of the records are not confirmed yet", n).
			WithHint("see whether the synchronous standby of PostgreSQL is connected (pg_stat_replication)")
	}
	return nil
}

func (p *postgres) self() cay.NodeID {
	if g := p.held.Load(); g != nil {
		return g.node
	}
	return ""
}

func (*postgres) again(ctx context.Context, err error, runs int) bool { return waitFor(ctx, err, runs) }

func (*postgres) committed() {}

// secure has nothing to do: PostgreSQL answers a commit when it is on the disk.
func (*postgres) secure() error { return nil }

func (p *postgres) close() error { return errors.Join(p.db.Close(), p.aside.Close()) }

// check reads one row: damage is PostgreSQL's own to find.
func (p *postgres) check(ctx context.Context, s *DB) error {
	_, err := s.EventCount(ctx)
	return err
}

// patient is a database whose single queries are asked again while it is away.
// They change nothing.
type patient struct{ of *postgres }

func (p patient) QueryContext(ctx context.Context, query string, args ...any) (rows *sql.Rows, err error) {
	err = patiently(ctx, func() error {
		rows, err = p.of.conns(ctx).QueryContext(ctx, query, args...)
		return err
	})
	return rows, err
}

func (p patient) QueryRowContext(ctx context.Context, query string, args ...any) (row *sql.Row) {
	_ = patiently(ctx, func() error { // the row has the error
		row = p.of.conns(ctx).QueryRowContext(ctx, query, args...)
		return row.Err()
	})
	return row
}
