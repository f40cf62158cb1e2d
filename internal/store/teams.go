package store

import (
	"context"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"strings"

	"github.com/cay-run/cay"
)

const teamColumns = `id, name, created_at, disabled_at`

// AddTeam records a team.
func (s *SQLite) AddTeam(ctx context.Context, t cay.Team) error {
	_, err := s.w.ExecContext(ctx,
		`INSERT INTO teams (`+teamColumns+`) VALUES ($1, $2, $3, $4)`,
		t.ID, t.Name, millis(t.CreatedAt), millis(t.DisabledAt))
	return dbError(err)
}

// Teams lists all teams, oldest first.
func (s *SQLite) Teams(ctx context.Context) ([]cay.Team, error) {
	rows, err := s.r.QueryContext(ctx,
		`SELECT `+teamColumns+` FROM teams ORDER BY created_at, id`)
	return collect(rows, err, scanTeam)
}

// TeamByName finds a team by its exact name.
func (s *SQLite) TeamByName(ctx context.Context, name string) (cay.Team, error) {
	row := s.r.QueryRowContext(ctx,
		`SELECT `+teamColumns+` FROM teams WHERE name = $1`, name)
	return one(row, scanTeam, "team", name)
}

func scanTeam(row scanner) (cay.Team, error) {
	var t cay.Team
	var created, disabled int64
	err := row.Scan(&t.ID, &t.Name, &created, &disabled)
	t.CreatedAt, t.DisabledAt = fromMillis(created), fromMillis(disabled)
	return t, err
}

const keyColumns = `id, team, name, hash, mask, created_at, created_by, last_used, expires_at, grant_names, bounds`

// AddKey records a key.
func (s *SQLite) AddKey(ctx context.Context, k cay.APIKey) error {
	bounds, err := json.Marshal(k.Bounds)
	if err != nil {
		return cay.Wrap(cay.Internal, err, "cannot record key %s", k.ID)
	}
	_, err = s.w.ExecContext(ctx,
		`INSERT INTO api_keys (`+keyColumns+`) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)`,
		k.ID, k.Team, k.Name, hex.EncodeToString(k.Hash[:]), k.Mask, millis(k.CreatedAt),
		k.CreatedBy, millis(k.LastUsed), millis(k.ExpiresAt), strings.Join(k.Grant, " "), string(bounds))
	return dbError(err)
}

// KeyByHash finds the key with that hash, of any team.
func (s *SQLite) KeyByHash(ctx context.Context, hash [32]byte) (cay.APIKey, error) {
	row := s.r.QueryRowContext(ctx,
		`SELECT `+keyColumns+` FROM api_keys WHERE hash = $1`, hex.EncodeToString(hash[:]))
	return one(row, scanKey, "key", "with this hash")
}

// Keys lists a team's keys, oldest first.
func (s *SQLite) Keys(ctx context.Context, team cay.TeamID) ([]cay.APIKey, error) {
	rows, err := s.r.QueryContext(ctx,
		`SELECT `+keyColumns+` FROM api_keys WHERE team = $1 ORDER BY created_at, id`, team)
	return collect(rows, err, scanKey)
}

// RenameKey gives a team's key another name.
func (s *SQLite) RenameKey(ctx context.Context, team cay.TeamID, id cay.KeyID, name string) error {
	res, err := s.w.ExecContext(ctx, `UPDATE api_keys SET name = $1 WHERE team = $2 AND id = $3`, name, team, id)
	return oneKey(id, res, err)
}

// RemoveKey removes a team's key.
func (s *SQLite) RemoveKey(ctx context.Context, team cay.TeamID, id cay.KeyID) error {
	res, err := s.w.ExecContext(ctx, `DELETE FROM api_keys WHERE team = $1 AND id = $2`, team, id)
	return oneKey(id, res, err)
}

// oneKey says what became of a change of one key.
func oneKey(id cay.KeyID, res sql.Result, err error) error {
	if err != nil {
		return dbError(err)
	}
	if n, err := res.RowsAffected(); err != nil || n == 0 {
		return notFound("key", id)
	}
	return nil
}

func scanKey(row scanner) (cay.APIKey, error) {
	var k cay.APIKey
	var hash, grant, bounds string
	var created, used, expires int64
	err := row.Scan(&k.ID, &k.Team, &k.Name, &hash, &k.Mask, &created, &k.CreatedBy, &used, &expires, &grant, &bounds)
	if err != nil {
		return k, err
	}
	k.CreatedAt, k.LastUsed, k.ExpiresAt = fromMillis(created), fromMillis(used), fromMillis(expires)
	if grant != "" {
		k.Grant = strings.Fields(grant)
	}
	// A bound that cannot be read must not become none.
	if err := json.Unmarshal([]byte(bounds), &k.Bounds); err != nil {
		return k, cay.Wrap(cay.Internal, err, "the record of key %s is damaged", k.ID)
	}
	b, err := hex.DecodeString(hash)
	if err != nil || len(b) != len(k.Hash) {
		return k, cay.Errorf(cay.Internal, "the record of key %s is damaged", k.ID)
	}
	copy(k.Hash[:], b)
	return k, nil
}
