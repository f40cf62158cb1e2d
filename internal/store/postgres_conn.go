package store

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"database/sql/driver"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"golang.org/x/sys/unix"

	"github.com/cay-run/cay"
)

// connector opens connections to PostgreSQL that know whether a commit happened
// whose answer was lost, and that keep every text.
type connector struct {
	driver.Connector
	held *atomic.Pointer[guard]
}

// Connect implements driver.Connector.
func (c connector) Connect(ctx context.Context) (driver.Conn, error) {
	opened, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	inner, ok := opened.(*stdlib.Conn)
	if !ok {
		return nil, errors.Join(fmt.Errorf("a connection is a %T", opened), opened.Close())
	}
	run, err := runOf(ctx, inner)
	if err != nil {
		return nil, errors.Join(err, inner.Close())
	}
	return &pgConn{Conn: inner, from: c, run: run}, nil
}

// pingAfter is how long a connection may have been idle without a ping before its next use,
// which is a round trip.
const pingAfter = 30 * time.Second

// shouldPing reports whether a connection that was idle may be broken: PostgreSQL says
// something only before it closes one, or when it is asked.
func shouldPing(_ context.Context, p stdlib.ShouldPingParams) bool {
	return p.IdleDuration > pingAfter || hasNews(p.Conn.PgConn().Conn())
}

// hasNews reports whether bytes or the end of a connection wait to be read, or that is not
// known.
func hasNews(conn net.Conn) bool {
	if over, ok := conn.(*tls.Conn); ok {
		conn = over.NetConn()
	}
	sys, ok := conn.(syscall.Conn)
	if !ok {
		return true
	}
	raw, err := sys.SyscallConn()
	if err != nil {
		return true
	}
	news := true
	// Not Read, which waits for other readers: after a write that took its time, pgx leaves
	// one that reads until something comes.
	err = raw.Control(func(fd uintptr) {
		_, _, err := unix.Recvfrom(int(fd), make([]byte, 1), unix.MSG_PEEK|unix.MSG_DONTWAIT)
		news = !errors.Is(err, unix.EAGAIN)
	})
	return news || err != nil
}

// pgConn sends a transaction's statements when an answer is needed: with the next query,
// with the commit, or when a caller asks how many rows one has changed. Each of them alone
// would cost a round trip, and a team's other changes wait meanwhile.
type pgConn struct {
	*stdlib.Conn
	from    connector
	run     string
	tx      *pgTx // nil where none is open
	waiting []*statement
}

// statement is one that waits to be sent, and then what it has changed.
type statement struct {
	conn *pgConn
	ctx  context.Context // of its caller, which bounds it
	text string
	args []any
	sent bool
	tag  pgconn.CommandTag
}

// LastInsertId implements driver.Result.
func (*statement) LastInsertId() (int64, error) {
	return 0, errors.New("PostgreSQL tells no id of a row")
}

// RowsAffected implements driver.Result.
func (s *statement) RowsAffected() (int64, error) {
	if !s.sent {
		if err := s.conn.send(s.ctx); err != nil {
			return 0, err
		}
	}
	return s.tag.RowsAffected(), nil
}

// ExecContext implements driver.ExecerContext. An error of a statement that waits comes
// with the answer that it is sent with, and fails the transaction all the same. A text
// without arguments may be several statements.
func (c *pgConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	if c.tx == nil || len(args) == 0 {
		if err := c.send(ctx); err != nil {
			return nil, err
		}
		return c.Conn.ExecContext(ctx, query, args)
	}
	s := &statement{conn: c, ctx: ctx, text: query, args: values(args)}
	if c.waiting = append(c.waiting, s); len(c.waiting) >= mostWaiting {
		return s, c.send(ctx)
	}
	return s, nil
}

// mostWaiting bounds the memory of a transaction with very many statements.
const mostWaiting = 200

func values(args []driver.NamedValue) (out []any) {
	for _, arg := range args {
		out = append(out, arg.Value)
	}
	return out
}

// send sends what waits, the begin of a transaction first, and others after it whose
// results are read, in one round trip. None follows one that fails.
func (c *pgConn) send(ctx context.Context, others ...*pgx.QueuedQuery) error {
	var batch pgx.Batch
	if c.tx != nil {
		c.tx.begin(&batch)
	}
	for _, s := range c.waiting {
		batch.Queue(s.text, s.args...).Exec(func(tag pgconn.CommandTag) error {
			s.sent, s.tag = true, tag
			return nil
		})
	}
	c.waiting = nil
	batch.QueuedQueries = append(batch.QueuedQueries, others...)
	if batch.Len() == 0 {
		return nil
	}
	return c.Conn.Conn().SendBatch(ctx, &batch).Close()
}

// CheckNamedValue implements driver.NamedValueChecker.
func (c *pgConn) CheckNamedValue(v *driver.NamedValue) (err error) {
	if v.Value, err = driver.DefaultParameterConverter.ConvertValue(v.Value); err != nil {
		return err
	}
	if text, ok := v.Value.(string); ok {
		v.Value = toPostgres(text)
	}
	return nil
}

// QueryContext implements driver.QueryerContext.
func (c *pgConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	if len(c.waiting) > 0 || c.tx != nil && !c.tx.begun {
		out := &sentRows{}
		ask := &pgx.QueuedQuery{SQL: query, Arguments: values(args)}
		ask.Query(out.read)
		return pgRows{out}, c.send(ctx, ask)
	}
	rows, err := c.Conn.QueryContext(ctx, query, args)
	if err != nil {
		return nil, err
	}
	return pgRows{rows}, nil
}

// sentRows are all rows of a query that statements were sent with.
type sentRows struct {
	names []string
	rows  [][]driver.Value
}

func (r *sentRows) read(rows pgx.Rows) error {
	if err := rows.Err(); err != nil {
		return err
	}
	for _, field := range rows.FieldDescriptions() {
		r.names = append(r.names, field.Name)
	}
	for rows.Next() {
		list, err := rows.Values()
		if err != nil {
			return err
		}
		row := make([]driver.Value, len(list))
		for i, v := range list {
			if row[i], err = driver.DefaultParameterConverter.ConvertValue(v); err != nil {
				return fmt.Errorf("column %s: %w", r.names[i], err)
			}
		}
		r.rows = append(r.rows, row)
	}
	return rows.Err()
}

// Columns implements driver.Rows.
func (r *sentRows) Columns() []string { return r.names }

// Close implements driver.Rows.
func (r *sentRows) Close() error { return nil }

// Next implements driver.Rows.
func (r *sentRows) Next(dest []driver.Value) error {
	if len(r.rows) == 0 {
		return io.EOF
	}
	copy(dest, r.rows[0])
	r.rows = r.rows[1:]
	return nil
}

// BeginTx implements driver.ConnBeginTx. The begin goes with the first statements: with
// it come the transaction's number, by which its end is looked up when no answer comes,
// and the check of its guard.
func (c *pgConn) BeginTx(ctx context.Context, o driver.TxOptions) (driver.Tx, error) {
	if o.ReadOnly || o.Isolation != 0 {
		return c.Conn.BeginTx(ctx, o)
	}
	c.tx = &pgTx{conn: c, held: c.from.held.Load()}
	return c.tx, nil
}

// begin are the first statements of a transaction. Those of a guard let other
// transactions of the node pass, keep a fence waiting until the end of this one, and have
// a row while the epoch is the last: the last one sees what was committed before the lock
// was got.
func (t *pgTx) begin(batch *pgx.Batch) {
	if t.begun {
		return
	}
	t.begun = true
	batch.Queue("BEGIN ISOLATION LEVEL READ COMMITTED")
	if t.held == nil {
		batch.Queue("SELECT pg_current_xact_id()::text").QueryRow(func(row pgx.Row) error { return row.Scan(&t.id) })
		return
	}
	batch.Queue("SELECT pg_current_xact_id()::text, pg_advisory_xact_lock_shared($1)", guardKey(t.held.node)).
		QueryRow(func(row pgx.Row) error { return row.Scan(&t.id, nil) })
	batch.Queue("SELECT EXISTS (SELECT 1 FROM nodes WHERE id = $1 AND epoch = $2)", toPostgres(string(t.held.node)), t.held.epoch).
		QueryRow(func(row pgx.Row) error {
			var last bool
			if err := row.Scan(&last); err != nil || last {
				return err
			}
			return ErrTakenOver
		})
}

// guardKey is the advisory lock of a node's transactions.
func guardKey(node cay.NodeID) int64 {
	sum := sha256.Sum256([]byte("node " + string(node)))
	return int64(binary.BigEndian.Uint64(sum[:]))
}

// runOf names the run of PostgreSQL that a connection is of, which a crash ends, of one of
// its processes too, and a failover. The next run gives the numbers of transactions anew
// that the last one took with it.
func runOf(ctx context.Context, c *stdlib.Conn) (run string, err error) {
	err = c.Conn().QueryRow(ctx, `SELECT concat_ws(' ', CASE WHEN pg_is_in_recovery() THEN '' ELSE left(pg_walfile_name(pg_current_wal_lsn()), 8) END,
pg_postmaster_start_time(), (SELECT stats_reset FROM pg_stat_bgwriter))`).Scan(&run)
	return run, err
}

// pgTx is a transaction that writes.
type pgTx struct {
	conn  *pgConn
	held  *guard
	begun bool   // PostgreSQL was told so
	id    string // its number
}

// Bounds of a commit: a context does not cut it off, because its end would be
// unknown then. A commit that takes longer waits for a standby that is away.
var (
	commitWithin  = 15 * time.Second
	resolveWithin = patience
)

// errLost means that a transaction did not happen, because the connection broke.
var errLost = errors.New("the connection to PostgreSQL was lost")

// Commit implements driver.Tx.
func (t *pgTx) Commit() error {
	ctx, cancel := context.WithTimeout(context.Background(), commitWithin)
	defer cancel()
	if t.id == "" { // without its number the end could not be looked up
		if err := t.conn.send(ctx); err != nil {
			return errors.Join(err, t.Rollback())
		}
	}
	end := &pgx.QueuedQuery{SQL: "COMMIT"}
	ended := ""
	end.Exec(func(tag pgconn.CommandTag) error {
		ended = tag.String()
		return nil
	})
	err := t.conn.send(ctx, end)
	t.conn.tx = nil
	var told *pgconn.PgError
	switch {
	case err == nil && ended == "ROLLBACK":
		return errors.New("a statement of the transaction failed before")
	case err == nil:
		return nil
	case ctx.Err() != nil: // whether it is on the standby cannot be told
		return errUnconfirmed()
	case errors.As(err, &told) && !away(told):
		return errors.Join(err, t.Rollback()) // one that failed before the commit leaves it open
	}
	return t.resolve()
}

// resolve asks over another connection what became of a commit whose answer did
// not come.
func (t *pgTx) resolve() error {
	ctx, cancel := context.WithTimeout(context.Background(), resolveWithin)
	defer cancel()
	status := ""
	for status == "" || status == "in progress" {
		asked, sure, err := t.status(ctx)
		if err == nil {
			status = asked
		}
		if status == "committed" && !sure {
			return errUnconfirmed()
		}
		if status == "committed" || status == "aborted" {
			break
		}
		select {
		case <-time.After(50 * time.Millisecond):
			continue
		case <-ctx.Done():
		}
		break
	}
	switch status {
	case "committed":
		return nil
	case "aborted":
		return errLost
	}
	return errUnconfirmed()
}

func errUnconfirmed() error {
	return cay.Errorf(cay.Unavailable, "PostgreSQL has not confirmed a change, which may count or not").
		WithHint("see whether it answers, and whether its synchronous standby is connected (pg_stat_replication)")
}

// status is what PostgreSQL says of the transaction's number. It is not sure that a
// committed one is this transaction where a run has followed that may have given the number
// anew.
func (t *pgTx) status(ctx context.Context) (status string, sure bool, err error) {
	again, err := t.conn.from.Connector.Connect(ctx)
	if err != nil {
		return "", false, err
	}
	defer again.Close()
	conn := again.(*stdlib.Conn)
	run, err := runOf(ctx, conn)
	if err != nil {
		return "", false, err
	}
	err = conn.Conn().QueryRow(ctx, "SELECT COALESCE(pg_xact_status($1::text::xid8), '')", t.id).Scan(&status)
	var told *pgconn.PgError
	if errors.As(err, &told) && told.Code == inTheFuture && run != t.conn.run {
		return "aborted", true, nil // no commit has that number in what the next run began with
	}
	if err == nil && status == "committed" {
		// A standby that confirms this later commit has the earlier one, too.
		_, err = conn.Conn().Exec(ctx, "SELECT pg_logical_emit_message(true, 'cay', '')")
	}
	return status, run == t.conn.run, err
}

// inTheFuture is PostgreSQL's code of a transaction's number that was not given yet.
const inTheFuture = "22023"

// Rollback implements driver.Tx.
func (t *pgTx) Rollback() error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	t.conn.tx, t.conn.waiting = nil, nil
	conn := t.conn.Conn.Conn()
	if conn.IsClosed() {
		return driver.ErrBadConn
	}
	if !t.begun {
		return nil
	}
	if _, err := conn.PgConn().Exec(ctx, "ROLLBACK").ReadAll(); err != nil {
		_ = conn.Close(ctx)
		return driver.ErrBadConn
	}
	return nil
}

type pgRows struct{ driver.Rows }

// Next implements driver.Rows.
func (r pgRows) Next(dest []driver.Value) error {
	if err := r.Rows.Next(dest); err != nil {
		return err
	}
	for i, v := range dest {
		if text, ok := v.(string); ok {
			dest[i] = fromPostgres(text)
		}
	}
	return nil
}

// PostgreSQL keeps no text with a zero byte in it, or with bytes that are not
// UTF-8: what guests and receivers send may have both. mark stands before the two
// digits of such a byte, and of a byte of a mark.
const mark = '\U0010FFFF'

const digits = "0123456789abcdef"

// toPostgres is a text as PostgreSQL keeps it: mostly itself. Equal texts stay
// equal, others different.
func toPostgres(text string) string {
	if plainText(text) {
		return text
	}
	var out strings.Builder
	for i := 0; i < len(text); {
		r, size := utf8.DecodeRuneInString(text[i:])
		if r == 0 || r == mark || r == utf8.RuneError && size == 1 {
			for _, b := range []byte(text[i : i+size]) {
				out.WriteRune(mark)
				out.WriteByte(digits[b>>4])
				out.WriteByte(digits[b&15])
			}
		} else {
			out.WriteString(text[i : i+size])
		}
		i += size
	}
	return out.String()
}

// fromPostgres is the text that toPostgres was given.
func fromPostgres(text string) string {
	if !strings.ContainsRune(text, mark) {
		return text
	}
	var out strings.Builder
	parts := strings.Split(text, string(mark))
	out.WriteString(parts[0])
	for _, part := range parts[1:] {
		high, low := -1, -1
		if len(part) >= 2 {
			high, low = strings.IndexByte(digits, part[0]), strings.IndexByte(digits, part[1])
		}
		if high < 0 || low < 0 { // not ours
			out.WriteRune(mark)
			out.WriteString(part)
			continue
		}
		out.WriteByte(byte(high<<4 | low))
		out.WriteString(part[2:])
	}
	return out.String()
}

// plainText reports whether PostgreSQL keeps a text as it is.
func plainText(text string) bool {
	return utf8.ValidString(text) && strings.IndexByte(text, 0) < 0 && !strings.ContainsRune(text, mark)
}
