package store

import (
	"cmp"
	"context"
	"encoding/json"

	"github.com/cay-run/cay"
)

const secretColumns = `id, team, name, version, metadata, sealed, created_at, updated_at`

// AddSecret records a secret.
func (s *DB) AddSecret(ctx context.Context, x cay.Secret) error {
	metadata, err := json.Marshal(x.Metadata)
	if err != nil {
		return cay.Wrap(cay.Internal, err, "cannot record secret %s", x.ID)
	}
	_, err = s.exec(ctx,
		`INSERT INTO secrets (`+secretColumns+`) VALUES ($1, $2, $3, $4, $5, $6, $7, $8)`,
		x.ID, x.Team, x.Name, x.Version, string(metadata), x.Sealed, millis(x.CreatedAt), millis(x.UpdatedAt))
	return dbError(err)
}

// Secret finds a team's secret by its id or its name.
func (s *DB) Secret(ctx context.Context, team cay.TeamID, ref string) (cay.Secret, error) {
	row := s.r.QueryRowContext(ctx, `SELECT `+secretColumns+` FROM secrets
WHERE team = $1 AND (id = $2 OR name = $2) ORDER BY CASE WHEN id = $2 THEN 0 ELSE 1 END LIMIT 1`, team, ref)
	return one(row, scanSecret, "secret", ref)
}

// Secrets lists a team's secrets, oldest first.
func (s *DB) Secrets(ctx context.Context, team cay.TeamID) ([]cay.Secret, error) {
	rows, err := s.r.QueryContext(ctx,
		`SELECT `+secretColumns+` FROM secrets WHERE team = $1 ORDER BY created_at, id`, team)
	return collect(rows, err, scanSecret)
}

// UpdateSecret replaces a secret that still has the version before the new
// one's.
func (s *DB) UpdateSecret(ctx context.Context, x cay.Secret) error {
	metadata, err := json.Marshal(x.Metadata)
	if err != nil {
		return cay.Wrap(cay.Internal, err, "cannot record secret %s", x.ID)
	}
	res, err := s.exec(ctx, `
UPDATE secrets SET version = $1, metadata = $2, sealed = $3, updated_at = $4
WHERE team = $5 AND id = $6 AND version = $7`,
		x.Version, string(metadata), x.Sealed, millis(x.UpdatedAt), x.Team, x.ID, x.Version-1)
	if err != nil {
		return dbError(err)
	}
	if n, err := res.RowsAffected(); err != nil || n == 0 {
		return cmp.Or[error](err, cay.Errorf(cay.Conflict, "secret %q was changed or removed meanwhile", x.Name))
	}
	return nil
}

// RemoveSecret removes a team's secret.
func (s *DB) RemoveSecret(ctx context.Context, team cay.TeamID, id cay.SecretID) error {
	res, err := s.exec(ctx, `DELETE FROM secrets WHERE team = $1 AND id = $2`, team, id)
	if err != nil {
		return dbError(err)
	}
	if n, err := res.RowsAffected(); err != nil || n == 0 {
		return cmp.Or(err, notFound("secret", id))
	}
	return nil
}

func scanSecret(row scanner) (cay.Secret, error) {
	var x cay.Secret
	var metadata string
	var created, updated int64
	if err := row.Scan(&x.ID, &x.Team, &x.Name, &x.Version, &metadata, &x.Sealed, &created, &updated); err != nil {
		return x, err
	}
	x.CreatedAt, x.UpdatedAt = fromMillis(created), fromMillis(updated)
	if err := json.Unmarshal([]byte(metadata), &x.Metadata); err != nil {
		return x, cay.Wrap(cay.Internal, err, "the record of secret %s is damaged", x.ID)
	}
	return x, nil
}
