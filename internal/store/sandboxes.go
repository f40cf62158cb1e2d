package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/keys/seal"
)

// sandboxRow is a sandbox as its row has it.
type sandboxRow struct {
	cay.Sandbox
	metadata, env, network       string
	volumes, askCommands         string
	privateNetwork               string
	started, end, ended, timeout int64
	secure, autoResume           int64
	unresponsive, replicated     int64
	moving                       int64
}

// sandboxColumn is a column of sandboxes and its place in a row that is
// written or read.
type sandboxColumn struct {
	name   string
	at     any  // a pointer
	change bool // UpdateSandbox writes it
}

// columns lists the columns of a row: the one place that says which there are.
func (r *sandboxRow) columns() []sandboxColumn {
	return []sandboxColumn{
		{"id", &r.ID, false}, {"team", &r.Team, false}, {"metadata", &r.metadata, false}, {"network", &r.network, false},
		{"api_key", &r.Key, false}, {"ask_commands", &r.askCommands, false},
		{"template", &r.Template, true}, {"build", &r.Build, true}, {"snapshot", &r.Snapshot, true}, {"alias", &r.Alias, true},
		{"node", &r.Node, true}, {"instance", &r.Instance, true}, {"version", &r.Version, true},
		{"state", &r.State, true}, {"cause", &r.Cause, true}, {"ended_at", &r.ended, true},
		{"cpus", &r.Limits.CPUs, true}, {"memory_mb", &r.Limits.MemoryMB, true}, {"disk_mb", &r.Limits.DiskMB, true},
		{"env", &r.env, true}, {"secure", &r.secure, true}, {"started_at", &r.started, true}, {"end_at", &r.end, true},
		{"timeout_ms", &r.timeout, true}, {"on_timeout", &r.OnTimeout, true}, {"auto_resume", &r.autoResume, true},
		{"saved", &r.Saved, true}, {"notice", &r.Notice, true}, {"unresponsive", &r.unresponsive, true},
		{"volumes", &r.volumes, true}, {"replicated_at", &r.replicated, true}, {"moving", &r.moving, true},
		{"on_host_loss", &r.OnHostLoss, true}, {"private_network", &r.privateNetwork, true},
	}
}

// sandboxTexts are the statements that name all columns of a row.
type sandboxTexts struct{ read, insert, update string }

var sandboxSQL = func() (out sandboxTexts) {
	var names, marks, reads, sets []string
	mark := map[string]string{} // of what an update sets
	for i, c := range new(sandboxRow).columns() {
		names, marks = append(names, c.name), append(marks, fmt.Sprintf("$%d", i+1))
		if c.name == "network" { // it may lie elsewhere
			reads = append(reads, networkColumn)
		} else {
			reads = append(reads, c.name)
		}
		if c.change {
			mark[c.name] = fmt.Sprintf("$%d", len(sets)+1)
			sets = append(sets, c.name+" = "+mark[c.name])
		}
	}
	made := fmt.Sprintf("made_on = CASE WHEN snapshot = %s THEN made_on ELSE %s END", mark["snapshot"], mark["node"])
	out.read = strings.Join(reads, ", ")
	out.insert = "INSERT INTO sandboxes (" + strings.Join(names, ", ") + ") VALUES (" + strings.Join(marks, ", ") + ")"
	out.update = fmt.Sprintf("UPDATE sandboxes SET %s, %s WHERE team = $%d AND id = $%d AND version = $%d",
		strings.Join(sets, ", "), made, len(sets)+1, len(sets)+2, len(sets)+3)
	return out
}()

// rowOf is the row of a sandbox, but for its metadata and network.
func (s *DB) rowOf(b cay.Sandbox) (*sandboxRow, error) {
	env, e1 := s.encode(b, b.Env, len(b.Env) > 0)
	volumes, e2 := s.encode(b, b.Volumes, false)
	askCommands, e3 := s.encode(b, b.AskCommands, false)
	private := ""
	if b.Network.Private != nil {
		private = b.Network.Private.Name
	}
	return &sandboxRow{
		Sandbox: b, privateNetwork: private, env: env, volumes: volumes, askCommands: askCommands, started: millis(b.StartedAt), end: millis(b.EndAt), ended: millis(b.EndedAt),
		timeout: b.Timeout.Milliseconds(), secure: flag(b.Secure), autoResume: flag(b.AutoResume), unresponsive: flag(b.Unresponsive),
		replicated: millis(b.ReplicatedAt), moving: flag(b.Moving),
	}, errors.Join(e1, e2, e3)
}

// AddSandbox records a new sandbox and its first events, and counts it for its
// template.
func (s *DB) AddSandbox(ctx context.Context, b cay.Sandbox, events ...cay.Event) error {
	row, e1 := s.rowOf(b)
	metadata, e2 := s.encode(b, b.Metadata, false)
	network, e3 := s.encode(b, b.Network, isSecret(b.Network))
	if err := errors.Join(e1, e2, e3); err != nil {
		return err
	}
	return s.tx(ctx, func(tx *sql.Tx) (err error) {
		if err := errors.Join(s.begin(ctx, tx, b.Team, events), addOnce(ctx, tx, b)); err != nil {
			return err
		}
		row.metadata = metadata
		if row.network, err = place(ctx, tx, b, network); err != nil {
			return err
		}
		var args []any
		for _, c := range row.columns() {
			args = append(args, c.at)
		}
		if _, err := tx.ExecContext(ctx, sandboxSQL.insert, args...); err != nil {
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
		if err := addMounts(ctx, tx, b); err != nil {
			return err
		}
		if err := s.meterNew(ctx, tx, b); err != nil {
			return err
		}
		return countSpawn(ctx, tx, b)
	})
}

// spawnParts is in how many rows the sandboxes of a template are counted. A row is locked
// until its transaction is on the disk, and all nodes make sandboxes of the same template.
const spawnParts = 16

// countSpawn counts a sandbox for its template, if there is one.
func countSpawn(ctx context.Context, tx *sql.Tx, b cay.Sandbox) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO template_spawns (template, part, count, last_at)
SELECT id, $2, 1, $3 FROM templates WHERE id = $1
ON CONFLICT (template, part) DO UPDATE SET count = template_spawns.count + 1,
last_at = CASE WHEN template_spawns.last_at > excluded.last_at THEN template_spawns.last_at ELSE excluded.last_at END`,
		b.Template, rand.IntN(spawnParts), millis(b.StartedAt))
	return err
}

// UpdateSandbox replaces a sandbox's record, all but its metadata and network,
// and records what happened to it.
func (s *DB) UpdateSandbox(ctx context.Context, b cay.Sandbox, events ...cay.Event) error {
	err := s.tx(ctx, func(tx *sql.Tx) error {
		if err := s.begin(ctx, tx, b.Team, events); err != nil {
			return err
		}
		return s.updateSandbox(ctx, tx, b)
	})
	if err == nil && b.State == cay.Paused {
		err = s.sync()
	}
	return err
}

// UpdateNetwork is UpdateSandbox, and replaces the network as well.
func (s *DB) UpdateNetwork(ctx context.Context, b cay.Sandbox, events ...cay.Event) error {
	network, err := s.encode(b, b.Network, isSecret(b.Network))
	if err != nil {
		return err
	}
	return s.tx(ctx, func(tx *sql.Tx) error {
		if err := s.begin(ctx, tx, b.Team, events); err != nil {
			return err
		}
		if err := s.updateSandbox(ctx, tx, b); err != nil {
			return err
		}
		network, err := place(ctx, tx, b, network)
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, `UPDATE sandboxes SET network = $1 WHERE id = $2`, network, b.ID)
		return err
	})
}

// begin records the events of a change of a team's sandbox. They come first: one
// change of a team after the other is counted.
func (s *DB) begin(ctx context.Context, tx *sql.Tx, team cay.TeamID, events []cay.Event) error {
	if len(events) == 0 {
		return s.holdTeam(ctx, tx, team)
	}
	return s.addEvents(ctx, tx, events)
}

func (s *DB) updateSandbox(ctx context.Context, tx *sql.Tx, b cay.Sandbox) error {
	row, err := s.rowOf(b)
	if err != nil {
		return err
	}
	row.Version++
	var args []any
	for _, c := range row.columns() {
		if c.change {
			args = append(args, c.at)
		}
	}
	res, err := tx.ExecContext(ctx, sandboxSQL.update, append(args, b.Team, b.ID, b.Version)...)
	if err != nil {
		return err
	}
	if n, err := res.RowsAffected(); err != nil {
		return err
	} else if n != 0 {
		return s.meter(ctx, tx, b)
	}
	var recorded int64
	err = tx.QueryRowContext(ctx, `SELECT version FROM sandboxes WHERE team = $1 AND id = $2`, b.Team, b.ID).Scan(&recorded)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return notFound("sandbox", b.ID)
	case err != nil:
		return err
	}
	return cay.Errorf(cay.Conflict, "sandbox %s has changed: version %d is recorded, %d was read", b.ID, recorded, b.Version)
}

// RunningOf counts what a team has running, or about to, without one sandbox.
func (s *DB) RunningOf(ctx context.Context, team cay.TeamID, but cay.SandboxID) (cay.TeamLoad, error) {
	var t cay.TeamLoad
	if err := s.decide(ctx, team); err != nil {
		return t, err
	}
	// The conditions and the columns are those of the index.
	err := s.r.QueryRowContext(ctx, `
SELECT COUNT(*), COALESCE(SUM(cpus), 0), COALESCE(SUM(memory_mb), 0), COALESCE(SUM(disk_mb), 0) FROM sandboxes
WHERE team = $1 AND state <> 'killed' AND state <> 'paused' AND id <> $2`, team, but).
		Scan(&t.Sandboxes, &t.Promised.CPUs, &t.Promised.MemoryMB, &t.Promised.DiskMB)
	return t, dbError(err)
}

// Sandbox finds a team's sandbox in any state.
func (s *DB) Sandbox(ctx context.Context, team cay.TeamID, id cay.SandboxID) (cay.Sandbox, error) {
	row := s.r.QueryRowContext(ctx,
		`SELECT `+sandboxSQL.read+` FROM sandboxes WHERE team = $1 AND id = $2`, team, id)
	return one(row, s.scanSandbox, "sandbox", id)
}

// Sandboxes lists a team's sandboxes.
func (s *DB) Sandboxes(ctx context.Context, q SandboxQuery) ([]cay.Sandbox, error) {
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
	text := `SELECT ` + sandboxSQL.read + ` FROM sandboxes WHERE ` + strings.Join(c.where, " AND ") +
		` ORDER BY started_at ` + order + `, id ASC`
	if q.Limit > 0 {
		text += ` LIMIT ` + c.arg(q.Limit)
	}
	rows, err := s.r.QueryContext(ctx, text, c.args...)
	return collect(rows, err, s.scanSandbox)
}

// CountSandboxes counts what q finds without its After and Limit.
func (s *DB) CountSandboxes(ctx context.Context, q SandboxQuery) (int, error) {
	c := q.conditions()
	var n int
	err := s.r.QueryRowContext(ctx,
		`SELECT COUNT(*) FROM sandboxes WHERE `+strings.Join(c.where, " AND "), c.args...).Scan(&n)
	return n, dbError(err)
}

// LiveSandboxes lists the sandboxes of all teams that are not killed.
func (s *DB) LiveSandboxes(ctx context.Context) ([]cay.Sandbox, error) {
	rows, err := s.r.QueryContext(ctx,
		`SELECT `+sandboxSQL.read+` FROM sandboxes WHERE state IN ($1, $2, $3, $4, $5) ORDER BY started_at, id`,
		cay.Creating, cay.Running, cay.Pausing, cay.Paused, cay.Resuming)
	return collect(rows, err, s.scanSandbox)
}

// CountMadeOf counts the sandboxes that were made of a template and are not killed.
func (s *DB) CountMadeOf(ctx context.Context, template cay.TemplateID) (n int, err error) {
	err = s.r.QueryRowContext(ctx, `SELECT COUNT(*) FROM sandboxes WHERE state <> $1 AND template = $2`, cay.Killed, template).Scan(&n)
	return n, dbError(err)
}

// CountBorrowed counts other teams' sandboxes of a team's templates.
func (s *DB) CountBorrowed(ctx context.Context, team cay.TeamID) (n int, err error) {
	err = s.r.QueryRowContext(ctx, `SELECT COUNT(*) FROM sandboxes
WHERE state <> $1 AND team <> $2 AND template IN (SELECT id FROM templates WHERE team = $2)`, cay.Killed, team).Scan(&n)
	return n, dbError(err)
}

// PruneSandboxes forgets sandboxes that were killed before a time, and the
// policies that were theirs alone.
func (s *DB) PruneSandboxes(ctx context.Context, before time.Time) (int, error) {
	n, err := s.inBatches(ctx, `DELETE FROM sandboxes WHERE id IN
(SELECT id FROM sandboxes WHERE state = $1 AND ended_at < $2 LIMIT $3)`, cay.Killed, millis(before))
	if err != nil || n == 0 {
		return n, err
	}
	return n, s.tx(ctx, func(tx *sql.Tx) error { return prunePolicies(ctx, tx) })
}

// SnapshotUsed reports whether a sandbox that lives, or a template, needs a
// snapshot. It says killed as the index does: a template that is in demand has
// a week of those.
func (s *DB) SnapshotUsed(ctx context.Context, id cay.SnapshotID) (bool, error) {
	var used bool
	err := s.r.QueryRowContext(ctx, `
SELECT EXISTS (SELECT 1 FROM sandboxes WHERE snapshot = $1 AND state <> 'killed')
    OR EXISTS (SELECT 1 FROM checkpoints WHERE id = $1)
    OR EXISTS (SELECT 1 FROM builds b JOIN templates t ON t.build = b.id WHERE b.snapshot = $1)
    OR EXISTS (SELECT 1 FROM builds b JOIN template_tags t ON t.build = b.id WHERE b.snapshot = $1)
    OR EXISTS (SELECT 1 FROM builds b WHERE b.snapshot = $1 AND b.superseded_at > 0)`,
		id).Scan(&used)
	return used, dbError(err)
}

// SnapshotMakers lists the nodes that made a snapshot, as far as that is known.
func (s *DB) SnapshotMakers(ctx context.Context, id cay.SnapshotID) ([]cay.NodeID, error) {
	rows, err := s.r.QueryContext(ctx, `
SELECT made_on FROM sandboxes WHERE snapshot = $1 AND state <> 'killed' AND made_on <> ''
UNION SELECT made_on FROM checkpoints WHERE id = $1 AND made_on <> ''
UNION SELECT made_on FROM builds WHERE snapshot = $1 AND made_on <> ''`, id)
	return collect(rows, err, func(row scanner) (node cay.NodeID, err error) { return node, row.Scan(&node) })
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

// encode makes the text of a sandbox's column. A value that may hold secrets is
// sealed: an environment, a SOCKS password, headers.
func (s *DB) encode(b cay.Sandbox, v any, secret bool) (string, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return "", cay.Wrap(cay.Internal, err, "cannot record sandbox %s", b.ID)
	}
	if secret {
		return s.seal.Seal(text, placeOf(b.ID)), nil
	}
	return string(text), nil
}

func placeOf(id cay.SandboxID) string { return "sandbox " + string(id) }

// clear is a text as it was before it was sealed. Versions before the seal
// wrote texts in clear, which are returned as they are.
func (s *DB) clear(text, place string) ([]byte, error) {
	if !seal.Sealed(text) {
		return []byte(text), nil
	}
	return s.seal.Open(text, place)
}

func (s *DB) scanSandbox(scan scanner) (cay.Sandbox, error) {
	var row sandboxRow
	var into []any
	for _, c := range row.columns() {
		into = append(into, c.at)
	}
	if err := scan.Scan(into...); err != nil {
		return row.Sandbox, err
	}
	b := &row.Sandbox
	b.EndedAt, b.StartedAt, b.EndAt, b.ReplicatedAt = fromMillis(row.ended), fromMillis(row.started), fromMillis(row.end), fromMillis(row.replicated)
	b.Timeout = time.Duration(row.timeout) * time.Millisecond
	b.Secure, b.AutoResume, b.Unresponsive, b.Moving = row.secure != 0, row.autoResume != 0, row.unresponsive != 0, row.moving != 0
	for _, f := range []struct {
		text string
		into any
	}{{row.metadata, &b.Metadata}, {row.env, &b.Env}, {row.network, &b.Network}, {row.volumes, &b.Volumes}, {row.askCommands, &b.AskCommands}} {
		text, err := s.clear(f.text, placeOf(b.ID))
		if err != nil {
			return *b, err
		}
		if err := json.Unmarshal(text, f.into); err != nil {
			return *b, cay.Wrap(cay.Internal, err, "the record of sandbox %s is damaged", b.ID)
		}
	}
	return *b, nil
}
