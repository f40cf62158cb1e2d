package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/seal"
)

const sandboxColumns = `id, team, template, build, snapshot, alias, node, instance,
state, cause, ended_at, cpus, memory_mb, disk_mb, metadata, env, network, secure,
started_at, end_at, timeout_ms, on_timeout, auto_resume, saved, notice`

// sandboxRead are the same with the network itself, wherever it lies.
var sandboxRead = strings.Replace(sandboxColumns, "network", networkColumn, 1)

// AddSandbox records a new sandbox and its first events, and counts it for its
// template.
func (s *SQLite) AddSandbox(ctx context.Context, b cay.Sandbox, events ...cay.Event) error {
	metadata, e1 := s.encode(b, b.Metadata, false)
	env, e2 := s.encode(b, b.Env, len(b.Env) > 0)
	network, e3 := s.encode(b, b.Network, isSecret(b.Network))
	if err := errors.Join(e1, e2, e3); err != nil {
		return err
	}
	return s.tx(ctx, func(tx *sql.Tx) error {
		if err := errors.Join(addEvents(ctx, tx, events), addOnce(ctx, tx, b)); err != nil {
			return err
		}
		network, err := place(ctx, tx, b, network)
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, `INSERT INTO sandboxes (`+sandboxColumns+`)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, $25)`,
			b.ID, b.Team, b.Template, b.Build, b.Snapshot, b.Alias, b.Node, b.Instance,
			b.State, b.Cause, millis(b.EndedAt), b.Limits.CPUs, b.Limits.MemoryMB, b.Limits.DiskMB,
			metadata, env, network, flag(b.Secure),
			millis(b.StartedAt), millis(b.EndAt), b.Timeout.Milliseconds(), b.OnTimeout, flag(b.AutoResume), b.Saved, b.Notice)
		if err != nil {
			return err
		}
		for _, k := range slices.Sorted(maps.Keys(b.Metadata)) {
			_, err := tx.ExecContext(ctx,
				`INSERT INTO sandbox_metadata (sandbox, team, key, value) VALUES ($1, $2, $3, $4)`,
				b.ID, b.Team, k, b.Metadata[k])
			if err != nil {
				return err
			}
		}
		_, err = tx.ExecContext(ctx,
			`UPDATE templates SET spawn_count = spawn_count + 1, last_spawned_at = $1 WHERE id = $2`,
			millis(b.StartedAt), b.Template)
		return err
	})
}

// UpdateSandbox replaces a sandbox's record, all but its metadata and network,
// and records what happened to it.
func (s *SQLite) UpdateSandbox(ctx context.Context, b cay.Sandbox, events ...cay.Event) error {
	err := s.tx(ctx, func(tx *sql.Tx) error {
		if err := s.updateSandbox(ctx, tx, b); err != nil {
			return err
		}
		return addEvents(ctx, tx, events)
	})
	if err == nil && b.State == cay.Paused {
		err = s.sync()
	}
	return err
}

// UpdateNetwork is UpdateSandbox, and replaces the network as well.
func (s *SQLite) UpdateNetwork(ctx context.Context, b cay.Sandbox, events ...cay.Event) error {
	network, err := s.encode(b, b.Network, isSecret(b.Network))
	if err != nil {
		return err
	}
	return s.tx(ctx, func(tx *sql.Tx) error {
		if err := s.updateSandbox(ctx, tx, b); err != nil {
			return err
		}
		network, err := place(ctx, tx, b, network)
		if err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, `UPDATE sandboxes SET network = $1 WHERE id = $2`, network, b.ID); err != nil {
			return err
		}
		return addEvents(ctx, tx, events)
	})
}

func (s *SQLite) updateSandbox(ctx context.Context, tx *sql.Tx, b cay.Sandbox) error {
	env, err := s.encode(b, b.Env, len(b.Env) > 0)
	if err != nil {
		return err
	}
	res, err := tx.ExecContext(ctx, `
UPDATE sandboxes SET template = $1, build = $2, snapshot = $3, alias = $4, node = $5, instance = $6,
    state = $7, cause = $8, ended_at = $9, cpus = $10, memory_mb = $11, disk_mb = $12,
    env = $13, secure = $14, started_at = $15, end_at = $16,
    timeout_ms = $17, on_timeout = $18, auto_resume = $19, saved = $20, notice = $21
WHERE team = $22 AND id = $23`,
		b.Template, b.Build, b.Snapshot, b.Alias, b.Node, b.Instance,
		b.State, b.Cause, millis(b.EndedAt), b.Limits.CPUs, b.Limits.MemoryMB, b.Limits.DiskMB,
		env, flag(b.Secure), millis(b.StartedAt), millis(b.EndAt),
		b.Timeout.Milliseconds(), b.OnTimeout, flag(b.AutoResume), b.Saved, b.Notice, b.Team, b.ID)
	if err != nil {
		return err
	}
	if n, err := res.RowsAffected(); err != nil || n == 0 {
		return notFound("sandbox", b.ID)
	}
	return nil
}

// Sandbox finds a team's sandbox in any state.
func (s *SQLite) Sandbox(ctx context.Context, team cay.TeamID, id cay.SandboxID) (cay.Sandbox, error) {
	row := s.r.QueryRowContext(ctx,
		`SELECT `+sandboxRead+` FROM sandboxes WHERE team = $1 AND id = $2`, team, id)
	return one(row, s.scanSandbox, "sandbox", id)
}

// Sandboxes lists a team's sandboxes.
func (s *SQLite) Sandboxes(ctx context.Context, q SandboxQuery) ([]cay.Sandbox, error) {
	c := q.conditions()
	order, beyond := "DESC", "<"
	if q.Ascending {
		order, beyond = "ASC", ">"
	}
	if q.After != nil {
		at, id := c.arg(millis(q.After.StartedAt)), c.arg(q.After.ID)
		c.where = append(c.where, fmt.Sprintf(
			"(started_at %s %s OR (started_at = %s AND id > %s))", beyond, at, at, id))
	}
	text := `SELECT ` + sandboxRead + ` FROM sandboxes WHERE ` + strings.Join(c.where, " AND ") +
		` ORDER BY started_at ` + order + `, id ASC`
	if q.Limit > 0 {
		text += ` LIMIT ` + c.arg(q.Limit)
	}
	rows, err := s.r.QueryContext(ctx, text, c.args...)
	return collect(rows, err, s.scanSandbox)
}

// CountSandboxes counts what q finds without its After and Limit.
func (s *SQLite) CountSandboxes(ctx context.Context, q SandboxQuery) (int, error) {
	c := q.conditions()
	var n int
	err := s.r.QueryRowContext(ctx,
		`SELECT COUNT(*) FROM sandboxes WHERE `+strings.Join(c.where, " AND "), c.args...).Scan(&n)
	return n, dbError(err)
}

// LiveSandboxes lists the sandboxes of all teams that are not killed.
func (s *SQLite) LiveSandboxes(ctx context.Context) ([]cay.Sandbox, error) {
	rows, err := s.r.QueryContext(ctx,
		`SELECT `+sandboxRead+` FROM sandboxes WHERE state IN ($1, $2, $3, $4, $5) ORDER BY started_at, id`,
		cay.Creating, cay.Running, cay.Pausing, cay.Paused, cay.Resuming)
	return collect(rows, err, s.scanSandbox)
}

// PruneSandboxes forgets sandboxes that were killed before a time, and the
// policies that were theirs alone.
func (s *SQLite) PruneSandboxes(ctx context.Context, before time.Time) (int, error) {
	var n int64
	err := s.tx(ctx, func(tx *sql.Tx) error {
		res, err := tx.ExecContext(ctx,
			`DELETE FROM sandboxes WHERE state = $1 AND ended_at < $2`, cay.Killed, millis(before))
		if err != nil {
			return err
		}
		if n, err = res.RowsAffected(); err != nil {
			return err
		}
		return prunePolicies(ctx, tx)
	})
	return int(n), err
}

// SnapshotUsed reports whether a sandbox that lives, or a template, needs a
// snapshot. It says killed as the index does: a template that is in demand has
// a week of those.
func (s *SQLite) SnapshotUsed(ctx context.Context, id cay.SnapshotID) (bool, error) {
	var n int
	err := s.r.QueryRowContext(ctx, `
SELECT EXISTS (SELECT 1 FROM sandboxes WHERE snapshot = $1 AND state <> 'killed')
    OR EXISTS (SELECT 1 FROM checkpoints WHERE id = $1)
    OR EXISTS (SELECT 1 FROM builds b JOIN templates t ON t.build = b.id WHERE b.snapshot = $1)
    OR EXISTS (SELECT 1 FROM builds b JOIN template_tags t ON t.build = b.id WHERE b.snapshot = $1)`,
		id).Scan(&n)
	return n != 0, dbError(err)
}

// conditions collects the parts of a WHERE. Placeholders are numbered in the
// order of their first use, which is how SQLite binds them.
type conditions struct {
	where []string
	args  []any
}

func (c *conditions) arg(v any) string {
	c.args = append(c.args, v)
	return fmt.Sprintf("$%d", len(c.args))
}

func (q SandboxQuery) conditions() *conditions {
	c := &conditions{}
	c.where = append(c.where, "team = "+c.arg(q.Team))
	if len(q.States) > 0 {
		var in []string
		for _, state := range q.States {
			in = append(in, c.arg(state))
		}
		c.where = append(c.where, "state IN ("+strings.Join(in, ", ")+")")
	}
	if q.Template != "" {
		c.where = append(c.where, "template = "+c.arg(q.Template))
	}
	if !q.StartedAfter.IsZero() {
		c.where = append(c.where, "started_at >= "+c.arg(ceilMillis(q.StartedAfter)))
	}
	for _, k := range slices.Sorted(maps.Keys(q.Metadata)) {
		c.where = append(c.where, fmt.Sprintf(
			"EXISTS (SELECT 1 FROM sandbox_metadata m WHERE m.sandbox = sandboxes.id AND m.key = %s AND m.value = %s)",
			c.arg(k), c.arg(q.Metadata[k])))
	}
	return c
}

// ceilMillis is the first whole millisecond at or after t: what started in an
// earlier one started before t.
func ceilMillis(t time.Time) int64 {
	ms := t.UnixMilli()
	if t.Nanosecond()%int(time.Millisecond) != 0 {
		ms++
	}
	return ms
}

// encode makes the text of a sandbox's column. What may hold secrets is sealed:
// an environment, a SOCKS password, headers.
func (s *SQLite) encode(b cay.Sandbox, v any, secret bool) (string, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return "", cay.Wrap(cay.Internal, err, "cannot record sandbox %s", b.ID)
	}
	if secret {
		return s.hide(text, placeOf(b.ID)), nil
	}
	return string(text), nil
}

func placeOf(id cay.SandboxID) string { return "sandbox " + string(id) }

// hide seals a text for its place, if this database seals.
func (s *SQLite) hide(text []byte, place string) string {
	if s.seal == nil {
		return string(text)
	}
	return s.seal.Seal(text, place)
}

// clear is a text as it was before it was sealed, if it was.
func (s *SQLite) clear(text, place string) ([]byte, error) {
	if !seal.Sealed(text) {
		return []byte(text), nil
	}
	if s.seal == nil {
		return nil, cay.Errorf(cay.Internal, "the record of %s is sealed", place)
	}
	return s.seal.Open(text, place)
}

func (s *SQLite) scanSandbox(row scanner) (cay.Sandbox, error) {
	var b cay.Sandbox
	var metadata, env, network string
	var ended, secure, started, end, timeout, autoResume int64
	err := row.Scan(&b.ID, &b.Team, &b.Template, &b.Build, &b.Snapshot, &b.Alias, &b.Node, &b.Instance,
		&b.State, &b.Cause, &ended, &b.Limits.CPUs, &b.Limits.MemoryMB, &b.Limits.DiskMB,
		&metadata, &env, &network, &secure, &started, &end, &timeout, &b.OnTimeout, &autoResume, &b.Saved, &b.Notice)
	if err != nil {
		return b, err
	}
	b.EndedAt, b.StartedAt, b.EndAt = fromMillis(ended), fromMillis(started), fromMillis(end)
	b.Timeout = time.Duration(timeout) * time.Millisecond
	b.Secure, b.AutoResume = secure != 0, autoResume != 0
	for _, f := range []struct {
		text string
		into any
	}{{metadata, &b.Metadata}, {env, &b.Env}, {network, &b.Network}} {
		text, err := s.clear(f.text, placeOf(b.ID))
		if err != nil {
			return b, err
		}
		if err := json.Unmarshal(text, f.into); err != nil {
			return b, cay.Wrap(cay.Internal, err, "the record of sandbox %s is damaged", b.ID)
		}
	}
	return b, nil
}
