package store

import (
	"context"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/cay-run/cay"
)

// AddAudit appends rows to the chain.
func (s *SQLite) AddAudit(ctx context.Context, rows ...cay.AuditRow) error {
	return s.tx(ctx, func(tx *sql.Tx) error { return addAudit(ctx, tx, rows) })
}

// addAudit numbers rows, chains them to the last one and records them. The
// order is that of commits because one connection writes; where several do, the
// number is taken and the second writer's transaction fails.
func addAudit(ctx context.Context, tx *sql.Tx, rows []cay.AuditRow) error {
	if len(rows) == 0 {
		return nil
	}
	last, err := lastAudit(ctx, tx)
	if err != nil {
		return err
	}
	for _, r := range rows {
		r.Fit()
		r.Seq, r.Prev = last.Seq+1, last.Hash
		r.Hash = r.Sum()
		details, err := json.Marshal(r.Details)
		if err != nil {
			return cay.Wrap(cay.Internal, err, "cannot record what was done: %s", r.Action)
		}
		_, err = tx.ExecContext(ctx, `
INSERT INTO audit (seq, at, actor_kind, actor, actor_name, team, action, target, outcome, request, address, agent, details, prev, hash)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)`,
			r.Seq, millis(r.At), r.Actor.Kind, r.Actor.ID, r.Actor.Name, r.Team, r.Action, r.Target, r.Outcome,
			r.Request, r.Address, r.Agent, string(details), r.Prev.String(), r.Hash.String())
		if err != nil {
			return err
		}
		last = tip{r.Seq, r.Hash}
	}
	return nil
}

// tip is the end of the chain.
type tip struct {
	Seq  int64
	Hash cay.Hash
}

// lastAudit is zero when there is no row yet.
func lastAudit(ctx context.Context, q querier) (out tip, err error) {
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
func (s *SQLite) LastAudit(ctx context.Context) (int64, cay.Hash, error) {
	last, err := lastAudit(ctx, s.r)
	return last.Seq, last.Hash, dbError(err)
}

// Audit lists rows.
func (s *SQLite) Audit(ctx context.Context, q AuditQuery) ([]cay.AuditRow, error) {
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
	text := `SELECT seq, at, actor_kind, actor, actor_name, team, action, target, outcome, request, address, agent, details, prev, hash
FROM audit` + where + ` ORDER BY seq ` + order
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
func (s *SQLite) AddAuditHead(ctx context.Context, h cay.AuditHead) error {
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
func (s *SQLite) AuditHeads(ctx context.Context, from int64, limit int) ([]cay.AuditHead, error) {
	rows, err := s.r.QueryContext(ctx,
		`SELECT seq, at, hash, public_key, signature FROM audit_heads WHERE seq >= $1 ORDER BY seq LIMIT $2`, from, limit)
	return collect(rows, err, scanHead)
}

// LastAuditHead finds the newest head of before a time, or of all.
func (s *SQLite) LastAuditHead(ctx context.Context, before time.Time, dropped bool) (cay.AuditHead, error) {
	row := s.r.QueryRowContext(ctx, `SELECT seq, at, hash, public_key, signature FROM audit_heads
WHERE ($1 = 0 OR at < $1) AND ($2 = 0 OR dropped = 1) ORDER BY seq DESC LIMIT 1`, millis(before), flag(dropped))
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
func (s *SQLite) DropAudit(ctx context.Context, head int64, row cay.AuditRow) error {
	return s.tx(ctx, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, `UPDATE audit_heads SET dropped = 1 WHERE seq = $1`, head); err != nil {
			return err
		}
		return addAudit(ctx, tx, []cay.AuditRow{row})
	})
}

// PruneAudit removes the rows that are dropped, and the heads that need not be
// kept: a dropped day keeps its last one, a day that is past one for each hour.
func (s *SQLite) PruneAudit(ctx context.Context, past time.Time) (int, error) {
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
