package store

import (
	"context"
	"crypto/sha256"
	"database/sql/driver"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"

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
	return &pgConn{inner, c}, nil
}

type pgConn struct {
	*stdlib.Conn
	from connector
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
	rows, err := c.Conn.QueryContext(ctx, query, args)
	if err != nil {
		return nil, err
	}
	return pgRows{rows}, nil
}

// BeginTx implements driver.ConnBeginTx. With the begin comes the transaction's
// number, by which its end is looked up when no answer comes, and the check of its
// guard, in the same round trip.
func (c *pgConn) BeginTx(ctx context.Context, o driver.TxOptions) (driver.Tx, error) {
	if o.ReadOnly || o.Isolation != 0 {
		return c.Conn.BeginTx(ctx, o)
	}
	held := c.from.held.Load()
	text := "BEGIN ISOLATION LEVEL READ COMMITTED; SELECT pg_current_xact_id()::text"
	if held != nil {
		text += held.check()
	}
	results, err := c.Conn.Conn().PgConn().Exec(ctx, text).ReadAll()
	if err != nil {
		if broken(err) && ctx.Err() == nil {
			return nil, driver.ErrBadConn // nothing happened: the pool takes another
		}
		return nil, errors.Join(err, (&pgTx{conn: c}).Rollback())
	}
	tx := &pgTx{c, string(results[1].Rows[0][0])}
	if held != nil && len(results[3].Rows) == 0 {
		return nil, errors.Join(ErrTakenOver, tx.Rollback())
	}
	return tx, nil
}

// check are statements that let other transactions of the node pass, keep a fence
// waiting until the end of this one, and have a row while the epoch is the last. The
// last statement sees what was committed before the lock was got.
func (g *guard) check() string {
	node := strings.ReplaceAll(toPostgres(string(g.node)), "'", "''")
	return fmt.Sprintf("; SELECT pg_advisory_xact_lock_shared(%d); SELECT 1 FROM nodes WHERE id = '%s' AND epoch = %d", guardKey(g.node), node, g.epoch)
}

// guardKey is the advisory lock of a node's transactions.
func guardKey(node cay.NodeID) int64 {
	sum := sha256.Sum256([]byte("node " + string(node)))
	return int64(binary.BigEndian.Uint64(sum[:]))
}

// pgTx is a transaction that writes.
type pgTx struct {
	conn *pgConn
	id   string
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
	results, err := t.conn.Conn.Conn().PgConn().Exec(ctx, "COMMIT").ReadAll()
	var told *pgconn.PgError
	switch {
	case err == nil && len(results) == 1 && results[0].CommandTag.String() == "ROLLBACK":
		return errors.New("a statement of the transaction failed before")
	case err == nil:
		return nil
	case ctx.Err() != nil: // whether it is on the standby cannot be told
		return errUnconfirmed()
	case errors.As(err, &told) && !away(told):
		return err
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
		asked, err := t.status(ctx)
		if err == nil {
			status = asked
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

func (t *pgTx) status(ctx context.Context) (string, error) {
	again, err := t.conn.from.Connector.Connect(ctx)
	if err != nil {
		return "", err
	}
	defer again.Close()
	conn := again.(*stdlib.Conn).Conn()
	var status string
	err = conn.QueryRow(ctx, "SELECT COALESCE(pg_xact_status($1::text::xid8), '')", t.id).Scan(&status)
	if err == nil && status == "committed" {
		// A standby that confirms this later commit has the earlier one, too.
		_, err = conn.Exec(ctx, "SELECT pg_logical_emit_message(true, 'cay', '')")
	}
	return status, err
}

// Rollback implements driver.Tx.
func (t *pgTx) Rollback() error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	conn := t.conn.Conn.Conn()
	if conn.IsClosed() {
		return driver.ErrBadConn
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
