package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"slices"
	"strings"
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
	sum, now := tally{}, time.Now()
	var rows [][]any
	for _, b := range running {
		open, ok := known[b.ID]
		if !ok {
			continue
		}
		delete(known, b.ID) // one that is there twice counts once
		open.count(sum, b, now)
		id := open.account
		labels, err := json.Marshal(meteredOf(b.Metadata, strings.Split(open.metered, "\n")))
		if err != nil {
			return err
		}
		if string(labels) != open.labels || b.Key != open.key || b.Template != open.template {
			if id, err = s.accountOf(ctx, tx, accountFor(b)); err != nil {
				return err
			}
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

// runningUsage is a sandbox that runs with its account, and the keys of metadata that its
// team has metered, a line each.
type runningUsage struct {
	openUsage
	key             cay.KeyID
	template        cay.TemplateID
	labels, metered string
}

// openOf reads what is not counted of sandboxes, and keeps others from counting it.
func (s *DB) openOf(ctx context.Context, tx *sql.Tx, running []cay.Sandbox) (map[cay.SandboxID]runningUsage, error) {
	var ids [][]any
	for _, b := range running {
		ids = append(ids, []any{b.ID})
	}
	text, args := given("sandbox", "TEXT", ids)
	text += `SELECT o.sandbox, ` + openColumns + `, a.api_key, a.template, a.labels, COALESCE((SELECT string_agg(l.label, '
' ORDER BY l.label) FROM usage_labels l WHERE l.team = a.team), '')
FROM usage_open o JOIN usage_accounts a ON a.id = o.account WHERE o.sandbox IN (SELECT g.sandbox FROM given g) ORDER BY o.sandbox`
	if s.engine.many() {
		text += ` FOR UPDATE OF o FOR KEY SHARE OF a` // as findAccount has it
	}
	rows, err := tx.QueryContext(ctx, text, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	out := map[cay.SandboxID]runningUsage{}
	for rows.Next() {
		var id cay.SandboxID
		var o runningUsage
		if err := rows.Scan(&id, &o.account, &o.since, &o.cpus, &o.memoryMB, &o.creates, &o.instance, &o.cpu, &o.sent, &o.key, &o.template, &o.labels, &o.metered); err != nil {
			return nil, err
		}
		out[id] = o
	}
	return out, rows.Err()
}
