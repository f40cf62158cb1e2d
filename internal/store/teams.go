package store

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/cay-run/cay"
)

const teamColumns = `id, name, created_at, disabled_at, removed_at`

// clearedTables are those whose rows ClearTeam removes, each before those that it
// refers to. Rows of keptTables outlive their team, or end with its sandboxes and
// templates. A test holds both lists to the schema.
var (
	clearedTables = []string{
		"webhook_attempts", "webhooks", "runs", "triggers", "approvals", "model_providers", "team_limits", "budgets",
		"login_members", "api_keys", "ssh_keys", "secrets", "idempotency_keys", "branches", "checkpoints", "members", "volume_snapshots", "volumes",
	}
	keptTables = []string{
		"events", "event_counters", "audit", "usage_accounts", "usage_labels", "usage_kept", "usage_rows", "team_minutes",
		"sandboxes", "sandbox_metadata", "policies", // for a week
		"templates", "template_names", "template_tags", "template_tag_assignments", "builds", "build_logs", "build_queue", // by RemoveTemplate
	}
)

// AddTeam records a team.
func (s *DB) AddTeam(ctx context.Context, t cay.Team) error {
	_, err := s.exec(ctx,
		`INSERT INTO teams (`+teamColumns+`) VALUES ($1, $2, $3, $4, $5)`,
		t.ID, t.Name, millis(t.CreatedAt), millis(t.DisabledAt), millis(t.RemovedAt))
	return dbError(err)
}

// Teams lists all teams that are not removed, oldest first.
func (s *DB) Teams(ctx context.Context) ([]cay.Team, error) {
	rows, err := s.r.QueryContext(ctx,
		`SELECT `+teamColumns+` FROM teams WHERE removed_at = 0 ORDER BY created_at, id`)
	return collect(rows, err, scanTeam)
}

// Team finds a team.
func (s *DB) Team(ctx context.Context, id cay.TeamID) (cay.Team, error) {
	row := s.r.QueryRowContext(ctx,
		`SELECT `+teamColumns+` FROM teams WHERE id = $1 AND removed_at = 0`, id)
	return one(row, scanTeam, "team", id)
}

// TeamByName finds a team by its exact name.
func (s *DB) TeamByName(ctx context.Context, name string) (cay.Team, error) {
	row := s.r.QueryRowContext(ctx,
		`SELECT `+teamColumns+` FROM teams WHERE name = $1 AND removed_at = 0`, name)
	return one(row, scanTeam, "team", name)
}

// UpdateTeam replaces a team's name and the time at which it was disabled.
func (s *DB) UpdateTeam(ctx context.Context, t cay.Team) error {
	res, err := s.exec(ctx, `UPDATE teams SET name = $1, disabled_at = $2 WHERE id = $3 AND removed_at = 0`,
		t.Name, millis(t.DisabledAt), t.ID)
	return changed("team", t.ID, res, err)
}

// RemoveTeam marks a team as removed. Its name goes on as one that no team can
// have.
func (s *DB) RemoveTeam(ctx context.Context, id cay.TeamID, at time.Time) error {
	res, err := s.exec(ctx, `UPDATE teams SET name = name || '~' || id, removed_at = $1 WHERE id = $2 AND removed_at = 0`,
		millis(at), id)
	return changed("team", id, res, err)
}

// RemovedTeams lists the removed teams that are not cleared yet.
func (s *DB) RemovedTeams(ctx context.Context) ([]cay.Team, error) {
	rows, err := s.r.QueryContext(ctx,
		`SELECT `+teamColumns+` FROM teams WHERE removed_at <> 0 AND cleared_at = 0 ORDER BY removed_at, id`)
	return collect(rows, err, scanTeam)
}

// ClearTeam forgets what a removed team had.
func (s *DB) ClearTeam(ctx context.Context, id cay.TeamID, done time.Time) error {
	return s.tx(ctx, func(tx *sql.Tx) error {
		for _, table := range clearedTables {
			if _, err := tx.ExecContext(ctx, `DELETE FROM `+table+` WHERE team = $1`, id); err != nil {
				return err
			}
		}
		res, err := tx.ExecContext(ctx, `UPDATE teams SET cleared_at = $1 WHERE id = $2 AND removed_at <> 0`, millis(done), id)
		return changed("team", id, res, err)
	})
}

// CountTeam counts what a team has.
func (s *DB) CountTeam(ctx context.Context, id cay.TeamID) (n TeamCount, err error) {
	row := s.r.QueryRowContext(ctx, `SELECT
		(SELECT COUNT(*) FROM sandboxes WHERE team = $1 AND state <> 'killed' AND state <> 'paused'),
		(SELECT COUNT(*) FROM sandboxes WHERE team = $1 AND state = 'paused'),
		(SELECT COUNT(*) FROM templates WHERE team = $1),
		(SELECT COUNT(*) FROM api_keys WHERE team = $1),
		(SELECT COUNT(*) FROM secrets WHERE team = $1),
		(SELECT COUNT(*) FROM volumes WHERE team = $1)`, id)
	err = row.Scan(&n.Running, &n.Paused, &n.Templates, &n.Keys, &n.Secrets, &n.Volumes)
	return n, dbError(err)
}

// changed says what became of a change of one record.
func changed(what string, id any, res sql.Result, err error) error {
	if err != nil {
		return dbError(err)
	}
	if n, err := res.RowsAffected(); err != nil || n == 0 {
		return cmp.Or(err, notFound(what, fmt.Sprint(id)))
	}
	return nil
}

func scanTeam(row scanner) (cay.Team, error) {
	var t cay.Team
	var created, disabled, removed int64
	err := row.Scan(&t.ID, &t.Name, &created, &disabled, &removed)
	t.CreatedAt, t.DisabledAt, t.RemovedAt = fromMillis(created), fromMillis(disabled), fromMillis(removed)
	return t, err
}
