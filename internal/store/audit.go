package store

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cay-run/cay"
)

// AddAudit appends rows to the chain.
func (s *DB) AddAudit(ctx context.Context, rows ...cay.AuditRow) error {
	return s.tx(ctx, func(tx *sql.Tx) error { return s.addAudit(ctx, tx, rows) })
}

// addAudit records rows at the end of the chain. Where several servers write,
// each transaction would wait there for the one before: rows wait then, and the
// next reader of the chain appends those that are committed.
func (s *DB) addAudit(ctx context.Context, tx *sql.Tx, rows []cay.AuditRow) error {
	if len(rows) == 0 {
		return nil
	}
	for i := range rows {
		rows[i].Fit()
	}
	if !s.engine.many() {
		return chain(ctx, tx, rows)
	}
	for _, r := range rows {
		if err := insertAudit(ctx, tx, "audit_waiting", r); err != nil {
			return err
		}
	}
	return nil
}

// chain numbers rows, chains them to the last one and records them.
func chain(ctx context.Context, tx *sql.Tx, rows []cay.AuditRow) error {
	last, err := lastAudit(ctx, tx)
	if err != nil {
		return err
	}
	for _, r := range rows {
		r.Seq, r.Prev = last.Seq+1, last.Hash
		r.Hash = r.Sum()
		if err := insertAudit(ctx, tx, "audit", r, "seq", r.Seq, "prev", r.Prev.String(), "hash", r.Hash.String()); err != nil {
			return err
		}
		last = tip{r.Seq, r.Hash}
	}
	return nil
}

const auditColumns = `at, actor_kind, actor, actor_name, team, action, target, outcome, request, address, agent, details`

// insertAudit inserts a row with columns of one table alone, names and values by
// turns.
func insertAudit(ctx context.Context, tx *sql.Tx, table string, r cay.AuditRow, more ...any) error {
	details, err := json.Marshal(r.Details)
	if err != nil {
		return cay.Wrap(cay.Internal, err, "cannot record what was done: %s", r.Action)
	}
	args := []any{
		millis(r.At), r.Actor.Kind, r.Actor.ID, r.Actor.Name, r.Team, r.Action, r.Target, r.Outcome,
		r.Request, r.Address, r.Agent, string(details),
	}
	names, marks := auditColumns, `$1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12`
	for i := 0; i < len(more); i += 2 {
		args = append(args, more[i+1])
		names += fmt.Sprintf(", %s", more[i])
		marks += fmt.Sprintf(", $%d", len(args))
	}
	_, err = tx.ExecContext(ctx, `INSERT INTO `+table+` (`+names+`) VALUES (`+marks+`)`, args...)
	return err
}

// chainBatch is how many rows one transaction chains.
const chainBatch = 500

// chainWaiting appends the rows that wait. Servers do it one at a time; rows of a
// transaction that is not committed yet are appended later, in its order.
func (s *DB) chainWaiting(ctx context.Context) error {
	if !s.engine.many() {
		return nil
	}
	for {
		var waiting bool
		if err := s.r.QueryRowContext(ctx, `SELECT EXISTS (SELECT 1 FROM audit_waiting)`).Scan(&waiting); err != nil || !waiting {
			return dbError(err)
		}
		err := s.tx(ctx, func(tx *sql.Tx) error {
			if err := s.hold(ctx, tx, `LOCK TABLE audit IN SHARE ROW EXCLUSIVE MODE`); err != nil {
				return err
			}
			rows, err := takeWaiting(ctx, tx)
			if err != nil {
				return err
			}
			return chain(ctx, tx, rows)
		})
		if err != nil {
			return err
		}
	}
}

// takeWaiting removes rows that wait and returns them in their order.
func takeWaiting(ctx context.Context, tx *sql.Tx) ([]cay.AuditRow, error) {
	rows, err := tx.QueryContext(ctx, `DELETE FROM audit_waiting WHERE id IN (SELECT id FROM audit_waiting ORDER BY id LIMIT $1)
RETURNING id, `+auditColumns+`, '', ''`, chainBatch)
	out, err := collect(rows, err, scanAudit)
	slices.SortFunc(out, func(a, b cay.AuditRow) int { return cmp.Compare(a.Seq, b.Seq) })
	return out, err
}

// tip is the end of the chain.
type tip struct {
	Seq  int64
	Hash cay.Hash
}

// lastAudit is zero when there is no row yet.
func lastAudit(ctx context.Context, q reader) (out tip, err error) {
	var hash string
	err = q.QueryRowContext(ctx, `SELECT seq, hash FROM audit ORDER BY seq DESC LIMIT 1`).Scan(&out.Seq, &hash)
	if errors.Is(err, sql.ErrNoRows) {
		return tip{}, nil
	}
	if err != nil {
		return tip{}, err
	}
	out.Hash, err = cay.ParseHash(hash)
	return out, err
}

// LastAudit returns the number and the hash of the newest row.
func (s *DB) LastAudit(ctx context.Context) (int64, cay.Hash, error) {
	if err := s.chainWaiting(ctx); err != nil {
		return 0, cay.Hash{}, err
	}
	last, err := lastAudit(ctx, s.r)
	return last.Seq, last.Hash, dbError(err)
}

// Audit lists rows.
func (s *DB) Audit(ctx context.Context, q AuditQuery) ([]cay.AuditRow, error) {
	if err := s.chainWaiting(ctx); err != nil {
		return nil, err
	}
	c := &conditions{}
	for _, equal := range []struct {
		column string
		value  string
	}{{"team", string(q.Team)}, {"actor", q.Actor}, {"action", q.Action}, {"target", q.Target}} {
		if equal.value != "" {
			c.where = append(c.where, equal.column+" = "+c.arg(equal.value))
		}
	}
	if q.After > 0 {
		c.where = append(c.where, "seq > "+c.arg(q.After))
	}
	if q.Before > 0 {
		c.where = append(c.where, "seq < "+c.arg(q.Before))
	}
	if !q.From.IsZero() {
		// Rows up to a head were recorded before it, and happened before that.
		from := c.arg(ceilMillis(q.From))
		c.where = append(c.where, "at >= "+from, "seq > COALESCE((SELECT MAX(seq) FROM audit_heads WHERE at <= "+from+"), 0)")
	}
	if !q.To.IsZero() {
		c.where = append(c.where, "at < "+c.arg(ceilMillis(q.To)))
	}
	where := ""
	if len(c.where) > 0 {
		where = " WHERE " + strings.Join(c.where, " AND ")
	}
	order := "ASC"
	if q.Newest {
		order = "DESC"
	}
	text := `SELECT seq, ` + auditColumns + `, prev, hash FROM audit` + where + ` ORDER BY seq ` + order
	if q.Limit > 0 {
		text += ` LIMIT ` + c.arg(q.Limit)
	}
	rows, err := s.r.QueryContext(ctx, text, c.args...)
	return collect(rows, err, scanAudit)
}

// scanAudit reads a row as it is recorded: whether it was tampered with is for
// others to say.
func scanAudit(row scanner) (r cay.AuditRow, err error) {
	var at int64
	var details, prev, hash string
	err = row.Scan(&r.Seq, &at, &r.Actor.Kind, &r.Actor.ID, &r.Actor.Name, &r.Team, &r.Action, &r.Target, &r.Outcome,
		&r.Request, &r.Address, &r.Agent, &details, &prev, &hash)
	if err != nil {
		return r, err
	}
	r.At = fromMillis(at)
	if json.Unmarshal([]byte(details), &r.Details) != nil {
		r.Details = map[string]string{"unreadable": details}
	}
	r.Prev, _ = cay.ParseHash(prev) // one that is unreadable is wrong as well
	r.Hash, _ = cay.ParseHash(hash)
	return r, nil
}

// AddAuditHead records a head, safe from power cuts as are the rows up to it.
func (s *DB) AddAuditHead(ctx context.Context, h cay.AuditHead) error {
	err := s.tx(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO audit_heads (seq, at, hash, public_key, signature) VALUES ($1, $2, $3, $4, $5)`,
			h.Seq, millis(h.At), h.Hash.String(), hex.EncodeToString(h.Key), hex.EncodeToString(h.Signature))
		return err
	})
	if err != nil {
		return err
	}
	return s.sync()
}

// AuditHeads lists heads, oldest first.
func (s *DB) AuditHeads(ctx context.Context, from int64, limit int) ([]cay.AuditHead, error) {
	rows, err := s.r.QueryContext(ctx,
		`SELECT seq, at, hash, public_key, signature FROM audit_heads WHERE seq >= $1 ORDER BY seq LIMIT $2`, from, limit)
	return collect(rows, err, scanHead)
}

// LastAuditHead finds the newest head of before a time, or of all.
func (s *DB) LastAuditHead(ctx context.Context, before time.Time, dropped bool) (cay.AuditHead, error) {
	row := s.r.QueryRowContext(ctx, `SELECT seq, at, hash, public_key, signature FROM audit_heads
WHERE (CAST($1 AS BIGINT) = 0 OR at < $1) AND ($2 = 0 OR dropped = 1) ORDER BY seq DESC LIMIT 1`, millis(before), flag(dropped))
	return one(row, scanHead, "audit head", "of before "+before.String())
}

func scanHead(row scanner) (h cay.AuditHead, err error) {
	var at int64
	var hash, key, signature string
	if err := row.Scan(&h.Seq, &at, &hash, &key, &signature); err != nil {
		return h, err
	}
	h.At = fromMillis(at)
	h.Hash, _ = cay.ParseHash(hash) // a head that is unreadable is not genuine
	h.Key, _ = hex.DecodeString(key)
	h.Signature, _ = hex.DecodeString(signature)
	return h, nil
}

// DropAudit says in the chain that the rows up to a head are dropped.
func (s *DB) DropAudit(ctx context.Context, head int64, row cay.AuditRow) error {
	return s.tx(ctx, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, `UPDATE audit_heads SET dropped = 1 WHERE seq = $1`, head); err != nil {
			return err
		}
		return s.addAudit(ctx, tx, []cay.AuditRow{row})
	})
}

// PruneAudit removes the rows that are dropped, and the heads that need not be
// kept: a dropped day keeps its last one, a day that is past one for each hour.
func (s *DB) PruneAudit(ctx context.Context, past time.Time) (int, error) {
	n, err := s.inBatches(ctx, `DELETE FROM audit WHERE seq IN (SELECT seq FROM audit
WHERE seq <= COALESCE((SELECT MAX(seq) FROM audit_heads WHERE dropped = 1), 0) ORDER BY seq LIMIT $1)`)
	if err != nil {
		return n, err
	}
	_, err = s.inBatches(ctx, `DELETE FROM audit_heads WHERE seq IN (SELECT h.seq FROM audit_heads h
WHERE h.dropped = 0 AND h.seq < COALESCE((SELECT MAX(seq) FROM audit_heads WHERE dropped = 1), 0)
AND h.seq NOT IN (SELECT MAX(seq) FROM audit_heads GROUP BY at / 86400000) ORDER BY h.seq LIMIT $1)`)
	if err != nil {
		return n, err
	}
	_, err = s.inBatches(ctx, `DELETE FROM audit_heads WHERE seq IN (SELECT h.seq FROM audit_heads h
WHERE h.dropped = 0 AND h.at < $1 AND h.seq NOT IN (SELECT MAX(seq) FROM audit_heads GROUP BY at / 3600000) ORDER BY h.seq LIMIT $2)`,
		millis(past))
	return n, err
}
