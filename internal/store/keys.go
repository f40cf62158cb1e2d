package store

import (
	"context"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/cay-run/cay"
)

const keyColumns = `id, team, name, hash, mask, created_at, created_by, last_used, expires_at, grant_names, bounds, person, exchange`

// AddKey records a key.
func (s *DB) AddKey(ctx context.Context, k cay.APIKey) error {
	bounds, err := json.Marshal(k.Bounds)
	if err != nil {
		return cay.Wrap(cay.Internal, err, "cannot record key %s", k.ID)
	}
	_, err = s.exec(ctx,
		`INSERT INTO api_keys (`+keyColumns+`) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)`,
		k.ID, k.Team, k.Name, hex.EncodeToString(k.Hash[:]), k.Mask, millis(k.CreatedAt),
		k.CreatedBy, millis(k.LastUsed), millis(k.ExpiresAt), strings.Join(k.Grant, " "), string(bounds), k.Person, k.Exchange)
	return dbError(err)
}

// KeyByHash finds the key with that hash, and its team.
func (s *DB) KeyByHash(ctx context.Context, hash [32]byte) (k cay.APIKey, t cay.Team, err error) {
	row := s.r.QueryRowContext(ctx, `SELECT t.name, t.created_at, t.disabled_at, t.removed_at, k.`+
		strings.ReplaceAll(keyColumns, ", ", ", k.")+` FROM api_keys k JOIN teams t ON t.id = k.team WHERE k.hash = $1`,
		hex.EncodeToString(hash[:]))
	var created, disabled, removed int64
	k, err = one(row, func(row scanner) (cay.APIKey, error) {
		return scanKey(ahead{row, []any{&t.Name, &created, &disabled, &removed}})
	}, "key", "with this hash")
	t.ID, t.CreatedAt, t.DisabledAt, t.RemovedAt = k.Team, fromMillis(created), fromMillis(disabled), fromMillis(removed)
	return k, t, err
}

// ahead scans some columns before those that are asked for.
type ahead struct {
	scanner
	first []any
}

func (a ahead) Scan(dest ...any) error { return a.scanner.Scan(append(a.first, dest...)...) }

// Key finds a team's key.
func (s *DB) Key(ctx context.Context, team cay.TeamID, id cay.KeyID) (cay.APIKey, error) {
	row := s.r.QueryRowContext(ctx, `SELECT `+keyColumns+` FROM api_keys WHERE id = $1 AND ($2 = '' OR team = $2)`, id, team)
	return one(row, scanKey, "key", id)
}

// Keys lists a team's keys, oldest first.
func (s *DB) Keys(ctx context.Context, team cay.TeamID) ([]cay.APIKey, error) {
	rows, err := s.r.QueryContext(ctx,
		`SELECT `+keyColumns+` FROM api_keys WHERE team = $1 ORDER BY created_at, id`, team)
	return collect(rows, err, scanKey)
}

// KeysOfPerson lists the ids of the keys of all teams that go back to a person.
func (s *DB) KeysOfPerson(ctx context.Context, person cay.PersonID) ([]cay.KeyID, error) {
	rows, err := s.r.QueryContext(ctx, `SELECT id FROM api_keys WHERE person = $1 AND person <> '' ORDER BY id`, person)
	return collect(rows, err, func(row scanner) (id cay.KeyID, err error) { return id, row.Scan(&id) })
}

// UpdateKey replaces the name and the expiry of a team's key.
func (s *DB) UpdateKey(ctx context.Context, k cay.APIKey) error {
	res, err := s.exec(ctx, `UPDATE api_keys SET name = $1, expires_at = $2 WHERE team = $3 AND id = $4`,
		k.Name, millis(k.ExpiresAt), k.Team, k.ID)
	return changed("key", k.ID, res, err)
}

// KeysUsed notes when keys were last used.
func (s *DB) KeysUsed(ctx context.Context, at map[cay.KeyID]time.Time) error {
	return s.tx(ctx, func(tx *sql.Tx) error {
		for _, id := range slices.Sorted(maps.Keys(at)) { // in one order, whichever server does it
			used := at[id]
			if _, err := tx.ExecContext(ctx, `UPDATE api_keys SET last_used = $1 WHERE id = $2 AND last_used < $1`, millis(used), id); err != nil {
				return err
			}
		}
		return nil
	})
}

// RemoveKey removes a team's key.
func (s *DB) RemoveKey(ctx context.Context, team cay.TeamID, id cay.KeyID) error {
	res, err := s.exec(ctx, `DELETE FROM api_keys WHERE team = $1 AND id = $2`, team, id)
	return changed("key", id, res, err)
}

// PruneKeys forgets keys that expired before a time.
func (s *DB) PruneKeys(ctx context.Context, before time.Time) (int, error) {
	return s.inBatches(ctx, `DELETE FROM api_keys WHERE id IN
		(SELECT id FROM api_keys WHERE expires_at <> 0 AND expires_at < $1 LIMIT $2)`, millis(before))
}

func scanKey(row scanner) (cay.APIKey, error) {
	var k cay.APIKey
	var hash, grant, bounds string
	var created, used, expires int64
	err := row.Scan(&k.ID, &k.Team, &k.Name, &hash, &k.Mask, &created, &k.CreatedBy, &used, &expires, &grant, &bounds, &k.Person, &k.Exchange)
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
