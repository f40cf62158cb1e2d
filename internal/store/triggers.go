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

// Triggers say what starts runs.
type Triggers interface {
	// AddTrigger records a trigger. Exhausted when the team has most of them,
	// Conflict for a name that it has.
	AddTrigger(ctx context.Context, t cay.Trigger, most int) error
	// Trigger finds a team's trigger by id or name, TriggerOf one of any team.
	Trigger(ctx context.Context, team cay.TeamID, ref string) (cay.Trigger, error)
	TriggerOf(ctx context.Context, id cay.TriggerID) (cay.Trigger, error)
	// Triggers lists a team's triggers, oldest first.
	Triggers(ctx context.Context, team cay.TeamID) ([]cay.Trigger, error)
	// UpdateTrigger replaces what clients may change. The version must be one
	// more than the recorded one, else it is a Conflict.
	UpdateTrigger(ctx context.Context, t cay.Trigger) error
	// RemoveTrigger removes a team's trigger with its runs.
	RemoveTrigger(ctx context.Context, team cay.TeamID, id cay.TriggerID) error
	// DueTriggers lists the schedules whose time has come, the earliest first.
	DueTriggers(ctx context.Context, now time.Time, limit int) ([]cay.Trigger, error)
	// MoveTrigger moves the next time of a schedule. Conflict means that it is
	// not the recorded one.
	MoveTrigger(ctx context.Context, id cay.TriggerID, from, to time.Time) error
}

// Runs are the queue of what triggers start.
type Runs interface {
	// QueueRun records a run, or returns the one that its trigger has for the
	// same delivery. Exhausted when as many as most of the trigger wait, or the
	// bodies of the team's runs have as many bytes; a run that does not wait is
	// never refused.
	QueueRun(ctx context.Context, run cay.Run, mostWaiting, mostBytes int) (out cay.Run, repeated bool, err error)
	// Run finds a team's run.
	Run(ctx context.Context, team cay.TeamID, id cay.RunID) (cay.Run, error)
	// Runs lists runs, the newest first.
	Runs(ctx context.Context, q RunQuery) ([]cay.Run, error)
	// StartableRuns lists runs that wait and are due, of triggers that are
	// enabled, as many of each as it may start, and of each team as many as make
	// mostOfTeam with those that run; the earliest due first.
	StartableRuns(ctx context.Context, now time.Time, mostOfTeam, limit int) ([]cay.Run, error)
	// RunningRuns lists the runs that were started and have not ended, of all
	// teams, the earliest first.
	RunningRuns(ctx context.Context) ([]cay.Run, error)
	// NextDue returns the time of the next schedule or waiting run
	// after a time; zero for never.
	NextDue(ctx context.Context, after time.Time) (time.Time, error)
	// PutRun replaces what changes of a run. Conflict means that it has not the
	// state, or is not at the attempt, that the caller saw.
	PutRun(ctx context.Context, run cay.Run, from cay.RunState, attempt int) error
	// PruneRuns forgets runs that are over, from before a time and of each
	// trigger all but the newest most, and returns how many.
	PruneRuns(ctx context.Context, before time.Time, most int) (int, error)
}

// RunQuery says which of a team's runs to list: of a trigger, in a state, after a
// cursor, where they are set.
type RunQuery struct {
	Team    cay.TeamID
	Trigger cay.TriggerID
	State   cay.RunState
	After   *RunCursor
	Limit   int
}

// RunCursor is a place in a list of runs.
type RunCursor struct {
	At time.Time
	ID cay.RunID
}

const triggerColumns = `id, team, name, kind, enabled, action, proof, sealed, events, filters, cron, zone, next_at, max_running, max_waiting, retries, created_at, updated_at, version, makers`

// triggerTexts are the columns of a trigger that are JSON.
type triggerTexts struct{ action, events, filters, makers string }

func textsOf(t cay.Trigger) (out triggerTexts, err error) {
	for to, from := range map[*string]any{&out.action: t.Action, &out.events: t.Events, &out.filters: t.Filters} {
		text, err := json.Marshal(from)
		if err != nil {
			return out, cay.Wrap(cay.Internal, err, "cannot record trigger %s", t.ID)
		}
		*to = string(text)
	}
	return out, nil
}

// AddTrigger records a trigger.
func (s *DB) AddTrigger(ctx context.Context, t cay.Trigger, most int) error {
	texts, err := textsOf(t)
	if err != nil {
		return err
	}
	return s.tx(ctx, func(tx *sql.Tx) error {
		if err := s.holdTeam(ctx, tx, t.Team); err != nil {
			return err
		}
		var n int
		if err := tx.QueryRowContext(ctx, `SELECT COUNT(*) FROM triggers WHERE team = $1`, t.Team).Scan(&n); err != nil {
			return err
		}
		if n >= most {
			return cay.Errorf(cay.Exhausted, "the team has %d triggers", n)
		}
		_, err := tx.ExecContext(ctx, `INSERT INTO triggers (`+triggerColumns+`)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20)`,
			t.ID, t.Team, t.Name, t.Kind, flag(t.Enabled), texts.action, t.Proof, t.Sealed, texts.events, texts.filters, t.Cron, t.Zone, millis(t.Next),
			t.MaxRunning, t.MaxWaiting, t.Retries, millis(t.CreatedAt), millis(t.UpdatedAt), t.Version, asJSON(t.Makers))
		return err
	})
}

// Trigger finds a trigger by id or name.
func (s *DB) Trigger(ctx context.Context, team cay.TeamID, ref string) (cay.Trigger, error) {
	row := s.r.QueryRowContext(ctx, `SELECT `+triggerColumns+` FROM triggers WHERE team = $1 AND (id = $2 OR name = $2) ORDER BY id = $2 DESC LIMIT 1`, team, ref)
	return one(row, scanTrigger, "trigger", ref)
}

// TriggerOf finds a trigger of any team.
func (s *DB) TriggerOf(ctx context.Context, id cay.TriggerID) (cay.Trigger, error) {
	return one(s.r.QueryRowContext(ctx, `SELECT `+triggerColumns+` FROM triggers WHERE id = $1`, id), scanTrigger, "trigger", id)
}

// Triggers lists a team's triggers, oldest first.
func (s *DB) Triggers(ctx context.Context, team cay.TeamID) ([]cay.Trigger, error) {
	rows, err := s.r.QueryContext(ctx, `SELECT `+triggerColumns+` FROM triggers WHERE team = $1 ORDER BY created_at, id`, team)
	return collect(rows, err, scanTrigger)
}

// UpdateTrigger replaces a trigger that still has the version before.
func (s *DB) UpdateTrigger(ctx context.Context, t cay.Trigger) error {
	texts, err := textsOf(t)
	if err != nil {
		return err
	}
	res, err := s.exec(ctx, `
UPDATE triggers SET name = $3, enabled = $4, action = $5, proof = $6, sealed = $7, events = $8, filters = $9, cron = $10, zone = $11, next_at = $12,
    max_running = $13, max_waiting = $14, retries = $15, updated_at = $16, version = $17, makers = $18
WHERE id = $1 AND team = $2 AND version = $17 - 1`,
		t.ID, t.Team, t.Name, flag(t.Enabled), texts.action, t.Proof, t.Sealed, texts.events, texts.filters, t.Cron, t.Zone, millis(t.Next),
		t.MaxRunning, t.MaxWaiting, t.Retries, millis(t.UpdatedAt), t.Version, asJSON(t.Makers))
	if err != nil {
		return dbError(err)
	}
	if n, err := res.RowsAffected(); err != nil || n == 0 {
		return cmp.Or[error](err, cay.Errorf(cay.Conflict, "trigger %q was changed or removed meanwhile", t.Name))
	}
	return nil
}

// RemoveTrigger removes a team's trigger with its runs.
func (s *DB) RemoveTrigger(ctx context.Context, team cay.TeamID, id cay.TriggerID) error {
	res, err := s.exec(ctx, `DELETE FROM triggers WHERE team = $1 AND id = $2`, team, id)
	return changed("trigger", id, res, err)
}

// DueTriggers lists the schedules whose time has come, the earliest first.
func (s *DB) DueTriggers(ctx context.Context, now time.Time, limit int) ([]cay.Trigger, error) {
	rows, err := s.r.QueryContext(ctx,
		`SELECT `+triggerColumns+` FROM triggers WHERE next_at > 0 AND next_at <= $1 ORDER BY next_at, id LIMIT $2`, millis(now), limit)
	return collect(rows, err, scanTrigger)
}

// MoveTrigger moves the next time of a schedule that is enabled.
func (s *DB) MoveTrigger(ctx context.Context, id cay.TriggerID, from, to time.Time) error {
	res, err := s.exec(ctx, `UPDATE triggers SET next_at = $3 WHERE id = $1 AND next_at = $2`, id, millis(from), millis(to))
	if err != nil {
		return dbError(err)
	}
	if n, err := res.RowsAffected(); err != nil || n == 0 {
		return cmp.Or[error](err, cay.Errorf(cay.Conflict, "trigger %s was changed or removed meanwhile", id))
	}
	return nil
}

const runColumns = `id, team, trigger_id, delivery, event, state, attempt, queued_at, due_at, started_at, begun_at, ended_at, sandbox, exit_code, error, output, sealed, bytes, woke, askers`

// QueueRun records a run, or finds the one that its trigger has for the delivery.
func (s *DB) QueueRun(ctx context.Context, run cay.Run, mostWaiting, mostBytes int) (out cay.Run, repeated bool, err error) {
	err = s.tx(ctx, func(tx *sql.Tx) error {
		out, repeated = run, false
		if err := s.holdTeam(ctx, tx, run.Team); err != nil {
			return err
		}
		row := tx.QueryRowContext(ctx, `SELECT `+runColumns+` FROM runs WHERE trigger_id = $1 AND delivery = $2`, run.Trigger, run.Delivery)
		earlier, err := one(row, scanRun, "run", run.Delivery)
		if err == nil {
			out, repeated = earlier, true
			return nil
		}
		if cay.KindOf(err) != cay.NotFound {
			return err
		}
		trigger := tx.QueryRowContext(ctx, `SELECT id FROM triggers WHERE id = $1`+s.keyShare(), run.Trigger)
		if _, err := one(trigger, func(row scanner) (id cay.TriggerID, err error) { return id, row.Scan(&id) }, "trigger", run.Trigger); err != nil {
			return err
		}
		if run.State == cay.RunWaiting {
			if err := roomForRun(ctx, tx, run, mostWaiting, mostBytes); err != nil {
				return err
			}
		}
		_, err = tx.ExecContext(ctx, `INSERT INTO runs (`+runColumns+`)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20)`,
			run.ID, run.Team, run.Trigger, run.Delivery, run.Event, run.State, run.Attempt, millis(run.QueuedAt), millis(run.DueAt), millis(run.StartedAt),
			millis(run.BegunAt), millis(run.EndedAt), run.Sandbox, run.ExitCode, run.Error, run.Output, run.Sealed, run.Bytes, flag(run.Woke), asJSON(run.Askers))
		return err
	})
	return out, repeated, err
}

// roomForRun refuses one more run than may wait, or more bytes of their bodies
// than a team may have.
func roomForRun(ctx context.Context, tx *sql.Tx, run cay.Run, mostWaiting, mostBytes int) error {
	var waiting, bytes int
	err := tx.QueryRowContext(ctx, `SELECT
    (SELECT COUNT(*) FROM runs WHERE trigger_id = $1 AND state = 'waiting'),
    (SELECT COALESCE(SUM(bytes), 0) FROM runs WHERE team = $2 AND state IN ('waiting', 'running'))`, run.Trigger, run.Team).Scan(&waiting, &bytes)
	switch {
	case err != nil:
		return err
	case waiting >= mostWaiting:
		return cay.Errorf(cay.Exhausted, "%d runs of the trigger wait", waiting)
	case bytes+run.Bytes > mostBytes:
		return cay.Errorf(cay.Exhausted, "the runs of the team that wait have %d bytes", bytes)
	}
	return nil
}

// Run finds a team's run.
func (s *DB) Run(ctx context.Context, team cay.TeamID, id cay.RunID) (cay.Run, error) {
	return one(s.r.QueryRowContext(ctx, `SELECT `+runColumns+` FROM runs WHERE team = $1 AND id = $2`, team, id), scanRun, "run", id)
}

// listedColumns leave the bodies out of a list: a team has up to 64 MiB of them.
var listedColumns = strings.Replace(runColumns, ", sealed,", ", '' AS sealed,", 1)

// Runs lists runs, the newest first, without their bodies.
func (s *DB) Runs(ctx context.Context, q RunQuery) ([]cay.Run, error) {
	c := &conditions{}
	c.where = append(c.where, "team = "+c.arg(q.Team))
	if q.Trigger != "" {
		c.where = append(c.where, "trigger_id = "+c.arg(q.Trigger))
	}
	if q.State != "" {
		c.where = append(c.where, "state = "+c.arg(q.State))
	}
	if q.After != nil {
		at := c.arg(millis(q.After.At))
		c.where = append(c.where, "(queued_at < "+at+" OR queued_at = "+at+" AND id > "+c.arg(q.After.ID)+")")
	}
	rows, err := s.r.QueryContext(ctx,
		`SELECT `+listedColumns+` FROM runs WHERE `+strings.Join(c.where, " AND ")+` ORDER BY queued_at DESC, id LIMIT `+c.arg(q.Limit), c.args...)
	return collect(rows, err, scanRun)
}

// StartableRuns lists the runs that may be started, the earliest due first.
func (s *DB) StartableRuns(ctx context.Context, now time.Time, mostOfTeam, limit int) ([]cay.Run, error) {
	rows, err := s.r.QueryContext(ctx, `SELECT `+runColumns+` FROM (
    SELECT due.*, ROW_NUMBER() OVER (PARTITION BY team ORDER BY due_at, queued_at, id) +
        (SELECT COUNT(*) FROM runs o WHERE o.team = due.team AND o.state = 'running') AS team_place FROM (
    SELECT r.*, ROW_NUMBER() OVER (PARTITION BY r.trigger_id ORDER BY r.due_at, r.queued_at, r.id) +
        (SELECT COUNT(*) FROM runs o WHERE o.trigger_id = r.trigger_id AND o.state = 'running') AS place, t.max_running AS most
    FROM runs r JOIN triggers t ON t.id = r.trigger_id WHERE r.state = 'waiting' AND r.due_at <= $1 AND t.enabled = 1) AS due
    WHERE place <= most) AS fair
WHERE team_place <= $2 ORDER BY due_at, queued_at, id LIMIT $3`, millis(now), mostOfTeam, limit)
	return collect(rows, err, scanRun)
}

// RunningRuns lists the runs that were started and have not ended.
func (s *DB) RunningRuns(ctx context.Context) ([]cay.Run, error) {
	rows, err := s.r.QueryContext(ctx, `SELECT `+runColumns+` FROM runs WHERE state = 'running' ORDER BY started_at, id`)
	return collect(rows, err, scanRun)
}

// NextDue returns the time of the next schedule or waiting run after a
// time; zero for never.
func (s *DB) NextDue(ctx context.Context, after time.Time) (time.Time, error) {
	var at sql.NullInt64
	err := s.r.QueryRowContext(ctx, `SELECT MIN(at) FROM (
    SELECT MIN(next_at) AS at FROM triggers WHERE next_at > $1
    UNION ALL SELECT MIN(due_at) AS at FROM runs WHERE state = 'waiting' AND due_at > $1) AS times`, millis(after)).Scan(&at)
	return fromMillis(at.Int64), dbError(err)
}

// PutRun replaces what changes of a run that has a state and is at an attempt.
func (s *DB) PutRun(ctx context.Context, run cay.Run, from cay.RunState, attempt int) error {
	res, err := s.exec(ctx, `
UPDATE runs SET state = $4, attempt = $5, due_at = $6, started_at = $7, begun_at = $8, ended_at = $9, sandbox = $10, exit_code = $11, error = $12, output = $13, sealed = $14, bytes = $15, woke = $16
WHERE id = $1 AND state = $2 AND attempt = $3`,
		run.ID, from, attempt, run.State, run.Attempt, millis(run.DueAt), millis(run.StartedAt), millis(run.BegunAt), millis(run.EndedAt),
		run.Sandbox, run.ExitCode, run.Error, run.Output, run.Sealed, run.Bytes, flag(run.Woke))
	if err != nil {
		return dbError(err)
	}
	if n, err := res.RowsAffected(); err != nil || n == 0 {
		return cmp.Or[error](err, cay.Errorf(cay.Conflict, "run %s is not %s any more", run.ID, from))
	}
	return nil
}

// PruneRuns forgets runs that are over.
func (s *DB) PruneRuns(ctx context.Context, before time.Time, most int) (int, error) {
	return s.inBatches(ctx, `DELETE FROM runs WHERE id IN (SELECT id FROM (
    SELECT id, queued_at, ROW_NUMBER() OVER (PARTITION BY trigger_id ORDER BY queued_at DESC, id DESC) AS place
    FROM runs WHERE state NOT IN ('waiting', 'running')) AS over_runs
WHERE queued_at < $1 OR place > $2 LIMIT $3)`, millis(before), most)
}

func scanTrigger(row scanner) (cay.Trigger, error) {
	var t cay.Trigger
	var texts triggerTexts
	var enabled, next, created, updated int64
	err := row.Scan(&t.ID, &t.Team, &t.Name, &t.Kind, &enabled, &texts.action, &t.Proof, &t.Sealed, &texts.events, &texts.filters, &t.Cron, &t.Zone, &next,
		&t.MaxRunning, &t.MaxWaiting, &t.Retries, &created, &updated, &t.Version, &texts.makers)
	if err != nil {
		return t, err
	}
	t.Enabled, t.Next, t.CreatedAt, t.UpdatedAt = enabled != 0, fromMillis(next), fromMillis(created), fromMillis(updated)
	for text, to := range map[string]any{texts.action: &t.Action, texts.events: &t.Events, texts.filters: &t.Filters, texts.makers: &t.Makers} {
		if err := json.Unmarshal([]byte(text), to); err != nil {
			return t, cay.Wrap(cay.Internal, err, "the record of trigger %s is damaged", t.ID)
		}
	}
	return t, nil
}

func scanRun(row scanner) (cay.Run, error) {
	var r cay.Run
	var askers string
	var queued, due, started, begun, ended, woke int64
	err := row.Scan(&r.ID, &r.Team, &r.Trigger, &r.Delivery, &r.Event, &r.State, &r.Attempt, &queued, &due, &started, &begun, &ended,
		&r.Sandbox, &r.ExitCode, &r.Error, &r.Output, &r.Sealed, &r.Bytes, &woke, &askers)
	r.Woke = woke != 0
	r.QueuedAt, r.DueAt, r.StartedAt, r.BegunAt, r.EndedAt = fromMillis(queued), fromMillis(due), fromMillis(started), fromMillis(begun), fromMillis(ended)
	return r, fromJSON(err, askers, &r.Askers)
}
