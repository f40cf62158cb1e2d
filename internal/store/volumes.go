package store

import (
	"context"
	"database/sql"
	"errors"

	"github.com/cay-run/cay"
)

const volumeColumns = `id, team, name, size_mb, created_at, version`

// AddVolume records a volume.
func (s *DB) AddVolume(ctx context.Context, v cay.Volume, events ...cay.Event) error {
	return s.tx(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO volumes (`+volumeColumns+`) VALUES ($1, $2, $3, $4, $5, $6)`,
			v.ID, v.Team, v.Name, v.SizeMB, millis(v.CreatedAt), v.Version)
		if err != nil {
			return err
		}
		return s.addEvents(ctx, tx, events)
	})
}

// Volume finds a team's volume by its id or its name, or one of any team by its
// id.
func (s *DB) Volume(ctx context.Context, team cay.TeamID, ref string) (cay.Volume, error) {
	row := s.r.QueryRowContext(ctx, `SELECT `+volumeColumns+` FROM volumes
WHERE (id = $2 OR name = $2) AND (team = $1 OR $1 = '' AND id = $2) ORDER BY CASE WHEN id = $2 THEN 0 ELSE 1 END LIMIT 1`, team, ref)
	return one(row, scanVolume, "volume", ref)
}

// Volumes lists a team's volumes, or those of all teams, oldest first.
func (s *DB) Volumes(ctx context.Context, team cay.TeamID) ([]cay.Volume, error) {
	if err := s.decide(ctx, team); err != nil {
		return nil, err
	}
	rows, err := s.r.QueryContext(ctx, `SELECT `+volumeColumns+` FROM volumes WHERE team = $1 OR $1 = '' ORDER BY created_at, id`, team)
	return collect(rows, err, scanVolume)
}

// UpdateVolume replaces a volume's size.
func (s *DB) UpdateVolume(ctx context.Context, v cay.Volume, events ...cay.Event) error {
	return s.tx(ctx, func(tx *sql.Tx) error {
		res, err := tx.ExecContext(ctx, `UPDATE volumes SET size_mb = $1, version = version + 1 WHERE team = $2 AND id = $3 AND version = $4`,
			v.SizeMB, v.Team, v.ID, v.Version)
		if err != nil {
			return err
		}
		if n, err := res.RowsAffected(); err != nil {
			return err
		} else if n == 0 {
			var recorded int64
			err := tx.QueryRowContext(ctx, `SELECT version FROM volumes WHERE team = $1 AND id = $2`, v.Team, v.ID).Scan(&recorded)
			if errors.Is(err, sql.ErrNoRows) {
				return notFound("volume", v.ID)
			}
			if err != nil {
				return err
			}
			return cay.Errorf(cay.Conflict, "volume %s has changed: version %d is recorded, %d was read", v.ID, recorded, v.Version)
		}
		return s.addEvents(ctx, tx, events)
	})
}

// RemoveVolume removes a team's volume.
func (s *DB) RemoveVolume(ctx context.Context, team cay.TeamID, id cay.VolumeID, events ...cay.Event) error {
	return s.tx(ctx, func(tx *sql.Tx) error {
		if err := s.holdTeam(ctx, tx, team); err != nil {
			return err
		}
		var snapshots int
		row := tx.QueryRowContext(ctx, `SELECT COUNT(*) FROM volume_snapshots WHERE team = $1 AND volume = $2`, team, id)
		if err := row.Scan(&snapshots); err != nil {
			return err
		}
		if snapshots > 0 {
			return cay.Errorf(cay.Conflict, "volume %s has %d snapshots", id, snapshots)
		}
		res, err := tx.ExecContext(ctx, `DELETE FROM volumes WHERE team = $1 AND id = $2`, team, id)
		if err := changed("volume", id, res, err); err != nil {
			return err
		}
		return s.addEvents(ctx, tx, events)
	})
}

// SandboxesWith lists the sandboxes that are not killed and were created with a
// mount of a volume.
func (s *DB) SandboxesWith(ctx context.Context, id cay.VolumeID) ([]cay.Sandbox, error) {
	rows, err := s.r.QueryContext(ctx, `SELECT `+sandboxSQL.read+` FROM sandboxes
WHERE id IN (SELECT sandbox FROM sandbox_volumes WHERE volume = $1) AND state <> 'killed' ORDER BY started_at, id`, id)
	return collect(rows, err, s.scanSandbox)
}

// addMounts notes which volumes a new sandbox mounts.
func addMounts(ctx context.Context, tx *sql.Tx, b cay.Sandbox) error {
	for _, m := range b.Volumes {
		_, err := tx.ExecContext(ctx, `INSERT INTO sandbox_volumes (sandbox, volume) VALUES ($1, $2) ON CONFLICT DO NOTHING`, b.ID, m.Volume)
		if err != nil {
			return err
		}
	}
	return nil
}

func scanVolume(row scanner) (cay.Volume, error) {
	var v cay.Volume
	var created int64
	err := row.Scan(&v.ID, &v.Team, &v.Name, &v.SizeMB, &created, &v.Version)
	v.CreatedAt = fromMillis(created)
	return v, err
}
