package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/cay-run/cay"
)

const eventColumns = `team, seq, sandbox, type, reason, at, data, instance, outwards`

// AddEvents records events that go with no change of a sandbox's record.
func (s *DB) AddEvents(ctx context.Context, events ...cay.Event) error {
	return s.tx(ctx, func(tx *sql.Tx) error { return s.addEvents(ctx, tx, events) })
}

// addEvents numbers events and records them, and their rows in the audit log. The counter's row is locked until
// the transaction ends, so that no client reads number 8 before number 7.
func (s *DB) addEvents(ctx context.Context, tx *sql.Tx, events []cay.Event) error {
	for rest := events; len(rest) > 0; {
		n := 1
		for n < min(len(rest), mostRows) && rest[n].Team == rest[0].Team {
			n++
		}
		if err := addTeamEvents(ctx, tx, rest[:n]); err != nil {
			return err
		}
		rest = rest[n:]
	}
	return s.addAudit(ctx, tx, cay.AuditRows(events))
}

// addTeamEvents numbers and records events of one team.
func addTeamEvents(ctx context.Context, tx *sql.Tx, events []cay.Event) error {
	args := []any{events[0].Team}
	var rows []string
	for i, e := range events {
		data, err := json.Marshal(e.Data)
		if err != nil {
			return cay.Wrap(cay.Internal, err, "cannot record an event of sandbox %s", e.Sandbox)
		}
		outwards := ""
		if e.Outwards != nil {
			text, err := json.Marshal(e.Outwards)
			if err != nil {
				return cay.Wrap(cay.Internal, err, "cannot record an event of sandbox %s", e.Sandbox)
			}
			outwards = string(text)
		}
		row := fmt.Sprintf("($1, (SELECT last FROM event_counters WHERE team = $1) - %d", len(events)-1-i)
		for _, v := range []any{e.Sandbox, e.Type, e.Reason, millis(e.At), string(data), e.Instance, outwards} {
			args = append(args, v)
			row += fmt.Sprintf(", $%d", len(args))
		}
		rows = append(rows, row+")")
	}
	_, err := tx.ExecContext(ctx, `
INSERT INTO event_counters (team, last) VALUES ($1, $2)
ON CONFLICT (team) DO UPDATE SET last = event_counters.last + excluded.last`, events[0].Team, len(events))
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, `INSERT INTO events (`+eventColumns+`) VALUES `+strings.Join(rows, ", "), args...)
	return err
}

// Events lists a team's events, oldest first.
func (s *DB) Events(ctx context.Context, q EventQuery) ([]cay.Event, error) {
	c := &conditions{}
	c.where = append(c.where, "team = "+c.arg(q.Team), "seq > "+c.arg(q.After))
	if q.Sandbox != "" {
		c.where = append(c.where, "sandbox = "+c.arg(q.Sandbox))
	}
	if q.Type != "" {
		c.where = append(c.where, "type = "+c.arg(q.Type))
	}
	if len(q.Rules) > 0 {
		var any []string
		for _, r := range q.Rules {
			text := "type = " + c.arg(r.Type)
			if r.Only != "" {
				text += " AND reason = " + c.arg(r.Only)
			}
			if r.Not != "" {
				text += " AND reason <> " + c.arg(r.Not)
			}
			any = append(any, "("+text+")")
		}
		c.where = append(c.where, "("+strings.Join(any, " OR ")+")")
	}
	order := "ASC"
	if q.Newest {
		order = "DESC"
	}
	text := `SELECT ` + eventColumns + ` FROM events WHERE ` +
		strings.Join(c.where, " AND ") + ` ORDER BY seq ` + order
	if q.Limit > 0 {
		text += ` LIMIT ` + c.arg(q.Limit)
		if q.Offset > 0 {
			text += ` OFFSET ` + c.arg(q.Offset)
		}
	}
	rows, err := s.r.QueryContext(ctx, text, c.args...)
	return collect(rows, err, scanEvent)
}

// LastEvent returns the number of a team's newest event, also of one that is
// forgotten; 0 when there never was one.
func (s *DB) LastEvent(ctx context.Context, team cay.TeamID) (int64, error) {
	var last int64
	err := s.r.QueryRowContext(ctx,
		`SELECT COALESCE((SELECT last FROM event_counters WHERE team = $1), 0)`, team).Scan(&last)
	return last, dbError(err)
}

// RunOf finds the start of the run that an event of a sandbox is of, and its
// instance.
func (s *DB) RunOf(ctx context.Context, team cay.TeamID, id cay.SandboxID, seq int64) (time.Time, cay.InstanceID, error) {
	var at int64
	var instance cay.InstanceID
	err := s.r.QueryRowContext(ctx, `
SELECT at, instance FROM events WHERE team = $1 AND sandbox = $2 AND seq <= $3
AND (type = 'sandbox.resumed' OR type = 'sandbox.running' AND reason = 'asked') ORDER BY seq DESC LIMIT 1`,
		team, id, seq).Scan(&at, &instance)
	if errors.Is(err, sql.ErrNoRows) {
		return time.Time{}, "", notFound("a start of sandbox", id)
	}
	return fromMillis(at), instance, dbError(err)
}

// PruneEvents forgets events from before a time.
func (s *DB) PruneEvents(ctx context.Context, before time.Time) (int, error) {
	return s.inBatches(ctx, `DELETE FROM events WHERE (team, seq) IN
(SELECT team, seq FROM events WHERE at < $1 LIMIT $2)`, millis(before))
}

func scanEvent(row scanner) (cay.Event, error) {
	var e cay.Event
	var at int64
	var data, outwards string
	if err := row.Scan(&e.Team, &e.Seq, &e.Sandbox, &e.Type, &e.Reason, &at, &data, &e.Instance, &outwards); err != nil {
		return e, err
	}
	e.At = fromMillis(at)
	if err := json.Unmarshal([]byte(data), &e.Data); err != nil {
		return e, cay.Wrap(cay.Internal, err, "the record of event %d is damaged", e.Seq)
	}
	if outwards != "" {
		if err := json.Unmarshal([]byte(outwards), &e.Outwards); err != nil {
			return e, cay.Wrap(cay.Internal, err, "the record of event %d is damaged", e.Seq)
		}
	}
	return e, nil
}
