package store

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"strings"
	"time"

	"github.com/cay-run/cay"
)

const webhookColumns = `id, team, name, url, events, enabled, sealed, created_at, updated_at, version, position, failing_since, disabled, chosen_by_key, chosen_by_person`

// AddWebhook records a webhook.
func (s *DB) AddWebhook(ctx context.Context, w cay.Webhook, most int) error {
	types, err := json.Marshal(w.Events)
	if err != nil {
		return cay.Wrap(cay.Internal, err, "cannot record webhook %s", w.ID)
	}
	return s.tx(ctx, func(tx *sql.Tx) error {
		if err := s.holdTeam(ctx, tx, w.Team); err != nil {
			return err
		}
		var n int
		if err := tx.QueryRowContext(ctx, `SELECT COUNT(*) FROM webhooks WHERE team = $1`, w.Team).Scan(&n); err != nil {
			return err
		}
		if n >= most {
			return cay.Errorf(cay.Exhausted, "the team has %d webhooks", n)
		}
		_, err := tx.ExecContext(ctx, `INSERT INTO webhooks (`+webhookColumns+`) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, `+newestOf+`, 0, '', $11, $12)`,
			w.ID, w.Team, w.Name, w.URL, string(types), flag(w.Enabled), w.Sealed, millis(w.CreatedAt), millis(w.UpdatedAt), w.Version, w.ChosenBy.Key, w.ChosenBy.Person)
		return err
	})
}

// newestOf is the number of the newest event of the team that is the second
// parameter.
const newestOf = `COALESCE((SELECT last FROM event_counters WHERE team = $2), 0)`

// Webhook finds a team's webhook.
func (s *DB) Webhook(ctx context.Context, team cay.TeamID, id cay.WebhookID) (cay.Webhook, error) {
	row := s.r.QueryRowContext(ctx, `SELECT `+webhookColumns+` FROM webhooks WHERE team = $1 AND id = $2`, team, id)
	return one(row, scanWebhook, "webhook", id)
}

// Webhooks lists webhooks, oldest first.
func (s *DB) Webhooks(ctx context.Context, team cay.TeamID) ([]cay.Webhook, error) {
	c := &conditions{where: []string{"1 = 1"}}
	if team != "" {
		c.where = append(c.where, "team = "+c.arg(team))
	}
	rows, err := s.r.QueryContext(ctx,
		`SELECT `+webhookColumns+` FROM webhooks WHERE `+strings.Join(c.where, " AND ")+` ORDER BY created_at, id`, c.args...)
	return collect(rows, err, scanWebhook)
}

// UpdateWebhook replaces a webhook that still has the version before.
func (s *DB) UpdateWebhook(ctx context.Context, w cay.Webhook) error {
	types, err := json.Marshal(w.Events)
	if err != nil {
		return cay.Wrap(cay.Internal, err, "cannot record webhook %s", w.ID)
	}
	return s.tx(ctx, func(tx *sql.Tx) error {
		res, err := tx.ExecContext(ctx, `
UPDATE webhooks SET name = $3, url = $4, events = $5, sealed = $6, updated_at = $7, version = $8, chosen_by_key = $10, chosen_by_person = $11,
    position = CASE WHEN enabled = 0 AND $9 = 1 THEN `+newestOf+` ELSE position END,
    failing_since = CASE WHEN enabled = 0 AND $9 = 1 THEN 0 ELSE failing_since END,
    disabled = CASE WHEN $9 = 1 THEN '' ELSE disabled END, enabled = $9
WHERE id = $1 AND team = $2 AND version = $8 - 1`,
			w.ID, w.Team, w.Name, w.URL, string(types), w.Sealed, millis(w.UpdatedAt), w.Version, flag(w.Enabled), w.ChosenBy.Key, w.ChosenBy.Person)
		if err != nil {
			return err
		}
		if n, err := res.RowsAffected(); err != nil || n == 0 {
			return cmp.Or[error](err, cay.Errorf(cay.Conflict, "webhook %q was changed or removed meanwhile", w.Name))
		}
		if w.Enabled {
			return nil
		}
		return forgetRetries(ctx, tx, w.ID)
	})
}

func forgetRetries(ctx context.Context, tx *sql.Tx, id cay.WebhookID) error {
	_, err := tx.ExecContext(ctx, `UPDATE webhook_attempts SET next_at = 0 WHERE webhook = $1 AND next_at > 0`, id)
	return err
}

// RemoveWebhook removes a team's webhook with its attempts.
func (s *DB) RemoveWebhook(ctx context.Context, team cay.TeamID, id cay.WebhookID) error {
	return s.tx(ctx, func(tx *sql.Tx) error {
		res, err := tx.ExecContext(ctx, `DELETE FROM webhooks WHERE team = $1 AND id = $2`, team, id)
		if err != nil {
			return err
		}
		if n, err := res.RowsAffected(); err != nil || n == 0 {
			return cmp.Or(err, notFound("webhook", id))
		}
		return nil
	})
}

const attemptColumns = `webhook, event, number, id, team, seq, type, sandbox, at, took, url, body, request_headers, response_headers, response_body, status, class, error, next_at`

// RecordAttempts records attempts, and how far their webhooks are.
func (s *DB) RecordAttempts(ctx context.Context, attempts []cay.WebhookAttempt, progress []WebhookProgress) error {
	return s.tx(ctx, func(tx *sql.Tx) error {
		for _, p := range progress { // as all that changes webhooks with an event: the team first
			if len(p.Events) > 0 {
				if err := s.holdTeam(ctx, tx, p.Events[0].Team); err != nil {
					return err
				}
			}
		}
		for _, a := range attempts {
			if err := s.addAttempt(ctx, tx, a); err != nil {
				return err
			}
		}
		for _, p := range progress {
			if err := s.addProgress(ctx, tx, p); err != nil {
				return err
			}
		}
		return nil
	})
}

// addAttempt records an attempt. The one that it repeats is not to be repeated
// any more, nor is it itself when the webhook was turned off meanwhile. Two attempts
// can have one number around the end of a server; the first record stays.
func (s *DB) addAttempt(ctx context.Context, tx *sql.Tx, a cay.WebhookAttempt) error {
	if a.Number > 1 {
		_, err := tx.ExecContext(ctx, `UPDATE webhook_attempts SET next_at = 0 WHERE webhook = $1 AND event = $2`, a.Webhook, a.Event)
		if err != nil {
			return err
		}
	}
	_, err := tx.ExecContext(ctx, `INSERT INTO webhook_attempts (`+attemptColumns+`)
SELECT id, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, CASE WHEN enabled = 1 THEN CAST($19 AS BIGINT) ELSE 0 END FROM webhooks WHERE id = $1`+s.forUpdate()+`
ON CONFLICT DO NOTHING`,
		a.Webhook, a.Event, a.Number, a.ID, a.Team, a.Seq, a.Type, a.Sandbox, millis(a.At), a.Took.Milliseconds(), a.URL, a.Body,
		a.RequestHeaders, a.ResponseHeaders, a.ResponseBody, a.Status, a.Class, a.Error, millis(a.Next))
	return err
}

// addProgress moves a webhook's cursor, never back: a client that enables it
// again may have moved it on.
func (s *DB) addProgress(ctx context.Context, tx *sql.Tx, p WebhookProgress) error {
	_, err := tx.ExecContext(ctx, `
UPDATE webhooks SET position = CASE WHEN position < $2 THEN $2 ELSE position END, failing_since = $3 WHERE id = $1`,
		p.Webhook, p.Cursor, millis(p.FailingSince))
	if err != nil || p.Disabled == "" {
		return err
	}
	res, err := tx.ExecContext(ctx, `UPDATE webhooks SET enabled = 0, disabled = $2, version = version + 1 WHERE id = $1 AND enabled = 1`,
		p.Webhook, p.Disabled)
	if err != nil {
		return err
	}
	if n, err := res.RowsAffected(); err != nil || n == 0 {
		return err
	}
	if err := forgetRetries(ctx, tx, p.Webhook); err != nil {
		return err
	}
	return s.addEvents(ctx, tx, p.Events)
}

// Retries lists the attempts that are to be repeated.
func (s *DB) Retries(ctx context.Context, id cay.WebhookID, limit int) ([]cay.WebhookAttempt, error) {
	rows, err := s.r.QueryContext(ctx, `SELECT `+attemptColumns+` FROM webhook_attempts
WHERE webhook = $1 AND next_at > 0 ORDER BY next_at, seq LIMIT $2`, id, limit)
	return collect(rows, err, scanAttempt)
}

// Redeliver has the last attempt of an event repeated.
func (s *DB) Redeliver(ctx context.Context, id cay.WebhookID, event string, at time.Time) error {
	return s.tx(ctx, func(tx *sql.Tx) error {
		res, err := tx.ExecContext(ctx, `
UPDATE webhook_attempts SET next_at = $3 WHERE webhook = $1 AND event = $2 AND number =
(SELECT MAX(number) FROM webhook_attempts WHERE webhook = $1 AND event = $2)`, id, event, millis(at))
		if err != nil {
			return err
		}
		if n, err := res.RowsAffected(); err != nil || n == 0 {
			return cmp.Or(err, notFound("delivery", event))
		}
		return nil
	})
}

// Told lists the numbers of events after the cursor that were tried.
func (s *DB) Told(ctx context.Context, id cay.WebhookID, cursor int64) ([]int64, error) {
	rows, err := s.r.QueryContext(ctx, `SELECT DISTINCT seq FROM webhook_attempts WHERE webhook = $1 AND seq > $2 ORDER BY seq`, id, cursor)
	return collect(rows, err, func(row scanner) (seq int64, err error) { return seq, row.Scan(&seq) })
}

// Deliveries lists deliveries with their attempts.
func (s *DB) Deliveries(ctx context.Context, q DeliveryQuery) ([]cay.WebhookDelivery, error) {
	c := &conditions{}
	c.where = append(c.where, "a.webhook = "+c.arg(q.Webhook),
		"a.number = (SELECT MIN(b.number) FROM webhook_attempts b WHERE b.webhook = a.webhook AND b.event = a.event)")
	if q.Event != "" {
		c.where = append(c.where, "a.event = "+c.arg(q.Event))
	}
	if !q.From.IsZero() {
		c.where = append(c.where, "a.at >= "+c.arg(millis(q.From)))
	}
	if !q.To.IsZero() {
		c.where = append(c.where, "a.at <= "+c.arg(millis(q.To)))
	}
	if len(q.Types) > 0 {
		var list []string
		for _, name := range q.Types {
			list = append(list, c.arg(name))
		}
		c.where = append(c.where, "a.type IN ("+strings.Join(list, ", ")+")")
	}
	if q.Failed != nil {
		sign := "="
		if *q.Failed {
			sign = "<>"
		}
		c.where = append(c.where, `(SELECT b.class FROM webhook_attempts b WHERE b.webhook = a.webhook AND b.event = a.event
ORDER BY b.number DESC LIMIT 1) `+sign+` ''`)
	}
	order, after := "DESC", "<"
	if q.Ascending {
		order, after = "ASC", ">"
	}
	if q.After != nil {
		at := c.arg(millis(q.After.At))
		c.where = append(c.where, "(a.at "+after+" "+at+" OR a.at = "+at+" AND a.event > "+c.arg(q.After.Event)+")")
	}
	text := `SELECT a.event, a.type, a.sandbox FROM webhook_attempts a WHERE ` + strings.Join(c.where, " AND ") +
		` ORDER BY a.at ` + order + `, a.event LIMIT ` + c.arg(q.Limit)
	rows, err := s.r.QueryContext(ctx, text, c.args...)
	list, err := collect(rows, err, func(row scanner) (d cay.WebhookDelivery, err error) {
		return d, row.Scan(&d.Event, &d.Type, &d.Sandbox)
	})
	for i := range list {
		if err == nil {
			list[i].Attempts, err = s.attempts(ctx, q.Webhook, list[i].Event)
		}
	}
	return list, err
}

func (s *DB) attempts(ctx context.Context, id cay.WebhookID, event string) ([]cay.WebhookAttempt, error) {
	rows, err := s.r.QueryContext(ctx,
		`SELECT `+attemptColumns+` FROM webhook_attempts WHERE webhook = $1 AND event = $2 ORDER BY number`, id, event)
	return collect(rows, err, scanAttempt)
}

// WebhookStats sums up attempts.
func (s *DB) WebhookStats(ctx context.Context, id cay.WebhookID, from, to time.Time, width time.Duration) ([]cay.WebhookBucket, error) {
	rows, err := s.r.QueryContext(ctx, `
SELECT at / $4 * $4, COUNT(*), SUM(CASE WHEN class <> '' THEN 1 ELSE 0 END), MIN(took), MAX(took), SUM(took)
FROM webhook_attempts WHERE webhook = $1 AND at >= $2 AND at <= $3 GROUP BY at / $4 ORDER BY 1`,
		id, millis(from), millis(to), width.Milliseconds())
	return collect(rows, err, func(row scanner) (b cay.WebhookBucket, err error) {
		var at, least, most, sum int64
		err = row.Scan(&at, &b.Total, &b.Failed, &least, &most, &sum)
		b.At = fromMillis(at)
		b.Least, b.Most, b.Sum = ms(least), ms(most), ms(sum)
		return b, err
	})
}

func ms(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

// PruneAttempts forgets attempts from before a time, and all but the newest.
func (s *DB) PruneAttempts(ctx context.Context, before time.Time, most int) (int, error) {
	hooks, err := s.Webhooks(ctx, "")
	sum := 0
	for _, w := range hooks {
		var n int
		if err == nil {
			n, err = s.inBatches(ctx, `DELETE FROM webhook_attempts WHERE (webhook, event, number) IN
(SELECT webhook, event, number FROM webhook_attempts WHERE webhook = $1 AND next_at = 0 AND (at < $2 OR at <= COALESCE(
    (SELECT b.at FROM webhook_attempts b WHERE b.webhook = $1 ORDER BY b.at DESC LIMIT 1 OFFSET $3), -1)) ORDER BY at LIMIT $4)`,
				w.ID, millis(before), most)
		}
		sum += n
	}
	return sum, err
}

func scanWebhook(row scanner) (cay.Webhook, error) {
	var w cay.Webhook
	var types string
	var enabled, created, updated, failing int64
	err := row.Scan(&w.ID, &w.Team, &w.Name, &w.URL, &types, &enabled, &w.Sealed, &created, &updated, &w.Version, &w.Cursor, &failing, &w.Disabled, &w.ChosenBy.Key, &w.ChosenBy.Person)
	if err != nil {
		return w, err
	}
	w.Enabled, w.CreatedAt, w.UpdatedAt, w.FailingSince = enabled != 0, fromMillis(created), fromMillis(updated), fromMillis(failing)
	if err := json.Unmarshal([]byte(types), &w.Events); err != nil {
		return w, cay.Wrap(cay.Internal, err, "the record of webhook %s is damaged", w.ID)
	}
	return w, nil
}

func scanAttempt(row scanner) (cay.WebhookAttempt, error) {
	var a cay.WebhookAttempt
	var at, took, next int64
	err := row.Scan(&a.Webhook, &a.Event, &a.Number, &a.ID, &a.Team, &a.Seq, &a.Type, &a.Sandbox, &at, &took, &a.URL, &a.Body,
		&a.RequestHeaders, &a.ResponseHeaders, &a.ResponseBody, &a.Status, &a.Class, &a.Error, &next)
	a.At, a.Took, a.Next = fromMillis(at), ms(took), fromMillis(next)
	return a, err
}
