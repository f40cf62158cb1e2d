package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"slices"
	"time"

	"github.com/cay-run/cay"
)

// CountUsage counts what sandboxes that run have used until now, and what their
// readings say. One that the records do not have running is left out.
func (s *DB) CountUsage(ctx context.Context, running []cay.Sandbox) error {
	for batch := range slices.Chunk(running, mostRows) {
		if err := s.tx(ctx, func(tx *sql.Tx) error { return s.countOpen(ctx, tx, batch) }); err != nil {
			return err
		}
	}
	return nil
}

// countOpen counts sandboxes that run on, from now on to the accounts that they
// have by now: a team may have begun to meter another key of its metadata.
func (s *DB) countOpen(ctx context.Context, tx *sql.Tx, running []cay.Sandbox) error {
	known, err := s.openOf(ctx, tx, running)
	if err != nil {
		return err
	}
	sum, accounts, now := tally{}, map[string]int64{}, time.Now()
	var rows [][]any
	for _, b := range running {
		open, ok := known[b.ID]
		if !ok {
			continue
		}
		open.count(sum, b, now)
		text, err := json.Marshal(accountFor(b))
		if err != nil {
			return err
		}
		id, known := accounts[string(text)]
		if !known {
			if id, err = s.accountOf(ctx, tx, accountFor(b)); err != nil {
				return err
			}
			accounts[string(text)] = id
		}
		rows = append(rows, []any{b.ID, id, open.since, open.instance, open.cpu, open.sent})
	}
	err = inRows(ctx, tx, "id, account, since, instance, cpu, sent", "TEXT, BIGINT, BIGINT, TEXT, BIGINT, BIGINT", rows, `UPDATE usage_open
SET account = given.account, since = given.since, creates = 0, instance = given.instance, cpu = given.cpu, sent = given.sent
FROM given WHERE usage_open.sandbox = given.id`)
	if err != nil {
		return err
	}
	return s.addRows(ctx, tx, sum)
}

// openOf reads what is not counted of sandboxes, and keeps others from counting it.
func (s *DB) openOf(ctx context.Context, tx *sql.Tx, running []cay.Sandbox) (map[cay.SandboxID]openUsage, error) {
	var ids [][]any
	for _, b := range running {
		ids = append(ids, []any{b.ID})
	}
	text, args := given("id", "TEXT", ids)
	rows, err := tx.QueryContext(ctx, text+`SELECT sandbox, `+openColumns+` FROM usage_open WHERE sandbox IN (SELECT id FROM given) ORDER BY sandbox`+s.forUpdate(), args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	out := map[cay.SandboxID]openUsage{}
	for rows.Next() {
		var id cay.SandboxID
		var o openUsage
		if err := rows.Scan(&id, &o.account, &o.since, &o.cpus, &o.memoryMB, &o.creates, &o.instance, &o.cpu, &o.sent); err != nil {
			return nil, err
		}
		out[id] = o
	}
	return out, rows.Err()
}
