package store

import (
	"context"
	"database/sql"
	"encoding/hex"
	"time"

	"github.com/cay-run/cay"
)

// UseToken records that a token was used, by its digest.
func (s *SQLite) UseToken(ctx context.Context, digest [32]byte, now, until time.Time) error {
	err := s.tx(ctx, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, `DELETE FROM used_tokens WHERE until < $1`, millis(now)); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, `INSERT INTO used_tokens (digest, until) VALUES ($1, $2)`, hex.EncodeToString(digest[:]), millis(until))
		return err
	})
	if cay.KindOf(err) == cay.Conflict {
		return cay.Wrap(cay.Conflict, err, "the token was used before")
	}
	return err
}
