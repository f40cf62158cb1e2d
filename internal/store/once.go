package store

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/cay-run/cay"
)

// addOnce records what a sandbox was asked for with, in place of an older request
// of that key: the one that it repeats, or one of before its time. Conflict means
// that another create of the key came first.
func addOnce(ctx context.Context, tx *sql.Tx, b cay.Sandbox) error {
	if b.Once.Key == "" {
		return nil
	}
	res, err := tx.ExecContext(ctx, `
INSERT INTO idempotency_keys (team, key, digest, sandbox, created_at) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (team, key) DO UPDATE SET digest = excluded.digest, sandbox = excluded.sandbox, created_at = excluded.created_at
WHERE idempotency_keys.sandbox = $6 OR idempotency_keys.sandbox = $4 OR idempotency_keys.created_at < $7`,
		b.Team, b.Once.Key, b.Once.Digest, b.ID, millis(b.StartedAt), b.Once.Repeats, millis(b.Once.Since))
	if err != nil {
		return err
	}
	if n, err := res.RowsAffected(); err != nil || n > 0 {
		return err
	}
	return cay.Errorf(cay.Conflict, "another create with the same Idempotency-Key came first").WithCode(cay.CodeKeyInProgress)
}

// CreatedWith finds what a team's key was last used for, at a time or later.
func (s *DB) CreatedWith(ctx context.Context, team cay.TeamID, key string, since time.Time) (cay.Once, cay.SandboxID, error) {
	once := cay.Once{Key: key}
	var id cay.SandboxID
	err := s.r.QueryRowContext(ctx,
		`SELECT digest, sandbox FROM idempotency_keys WHERE team = $1 AND key = $2 AND created_at >= $3`,
		team, key, millis(since)).Scan(&once.Digest, &id)
	if errors.Is(err, sql.ErrNoRows) {
		return cay.Once{}, "", notFound("idempotency key", key)
	}
	return once, id, dbError(err)
}

// PruneOnce forgets the keys of creates from before a time.
func (s *DB) PruneOnce(ctx context.Context, before time.Time) (int, error) {
	return s.inBatches(ctx, `DELETE FROM idempotency_keys WHERE (team, key) IN
(SELECT team, key FROM idempotency_keys WHERE created_at < $1 LIMIT $2)`, millis(before))
}
