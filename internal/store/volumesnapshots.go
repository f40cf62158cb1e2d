package store

import (
	"context"
	"database/sql"
	"strings"

	"github.com/cay-run/cay"
)

const volumeSnapshotColumns = `id, volume, team, name, size_mb, created_at`

// AddVolumeSnapshot records a snapshot of a volume.
func (s *DB) AddVolumeSnapshot(ctx context.Context, v cay.VolumeSnapshot, events ...cay.Event) error {
	return s.tx(ctx, func(tx *sql.Tx) error {
		res, err := tx.ExecContext(ctx, `INSERT INTO volume_snapshots (`+volumeSnapshotColumns+`)
SELECT $1, id, team, $2, $3, $4 FROM volumes WHERE id = $5 AND team = $6`,
			v.ID, v.Name, v.SizeMB, millis(v.CreatedAt), v.Volume, v.Team)
		if err := changed("volume", v.Volume, res, err); err != nil {
			return err
		}
		return s.addEvents(ctx, tx, events)
	})
}

// VolumeSnapshot finds a snapshot of a volume by its id or name.
func (s *DB) VolumeSnapshot(ctx context.Context, team cay.TeamID, volume cay.VolumeID, ref string) (cay.VolumeSnapshot, error) {
	row := s.r.QueryRowContext(ctx, `SELECT `+volumeSnapshotColumns+` FROM volume_snapshots WHERE team = $1 AND volume = $2 AND (name = $3 OR id = $3)`,
		team, volume, ref)
	return one(row, scanVolumeSnapshot, "snapshot", ref)
}

// VolumeSnapshots lists snapshots of a volume, of a team's volumes or of all,
// oldest first.
func (s *DB) VolumeSnapshots(ctx context.Context, team cay.TeamID, volume cay.VolumeID) ([]cay.VolumeSnapshot, error) {
	c := &conditions{where: []string{"1 = 1"}}
	if team != "" {
		c.where = append(c.where, "team = "+c.arg(team))
	}
	if volume != "" {
		c.where = append(c.where, "volume = "+c.arg(volume))
	}
	rows, err := s.r.QueryContext(ctx,
		`SELECT `+volumeSnapshotColumns+` FROM volume_snapshots WHERE `+strings.Join(c.where, " AND ")+` ORDER BY created_at, id`, c.args...)
	return collect(rows, err, scanVolumeSnapshot)
}

// RemoveVolumeSnapshot removes a snapshot of a team's volume.
func (s *DB) RemoveVolumeSnapshot(ctx context.Context, team cay.TeamID, id cay.VolumeID, events ...cay.Event) error {
	return s.tx(ctx, func(tx *sql.Tx) error {
		res, err := tx.ExecContext(ctx, `DELETE FROM volume_snapshots WHERE team = $1 AND id = $2`, team, id)
		if err := changed("snapshot", id, res, err); err != nil {
			return err
		}
		return s.addEvents(ctx, tx, events)
	})
}

func scanVolumeSnapshot(row scanner) (cay.VolumeSnapshot, error) {
	var v cay.VolumeSnapshot
	var created int64
	err := row.Scan(&v.ID, &v.Volume, &v.Team, &v.Name, &v.SizeMB, &created)
	v.CreatedAt = fromMillis(created)
	return v, err
}
