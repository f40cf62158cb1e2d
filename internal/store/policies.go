package store

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"

	"github.com/cay-run/cay"
)

// A policy may name a thousand domains, and a team's sandboxes mostly have the
// same ones. In the row of each, SQLite would write all of it again at every
// change of anything in the row. Therefore a long policy lies in a table of its
// own, once for a team, and rows name it by its digest.

// longPolicy is how many bytes make a policy long: those that a row takes
// without pages of its own.
const longPolicy = 1 << 10

// networkColumn reads the network of a row of sandboxes, wherever it lies.
const networkColumn = `COALESCE((SELECT p.text FROM policies p WHERE p.team = sandboxes.team AND p.digest = sandboxes.network), network)`

// place returns a row's column for a network that encode made a text of: the
// text, or the digest under which it is recorded. A sealed text differs each
// time, so it stays in the row.
func place(ctx context.Context, tx *sql.Tx, b cay.Sandbox, network string) (string, error) {
	if len(network) < longPolicy || isSecret(b.Network) {
		return network, nil
	}
	sum := sha256.Sum256([]byte(network))
	digest := "sha256:" + hex.EncodeToString(sum[:])
	_, err := tx.ExecContext(ctx,
		`INSERT INTO policies (team, digest, text) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING`, b.Team, digest, network)
	return digest, err
}

// isSecret reports whether a policy may hold secrets: a SOCKS password, headers.
func isSecret(p cay.NetworkPolicy) bool { return p.Proxy != nil || len(p.Rules) > 0 }

// prunePolicies forgets the policies that no sandbox has any more.
func prunePolicies(ctx context.Context, tx *sql.Tx) error {
	_, err := tx.ExecContext(ctx, `DELETE FROM policies WHERE NOT EXISTS
(SELECT 1 FROM sandboxes s WHERE s.team = policies.team AND s.network = policies.digest AND s.network LIKE 'sha256:%')`)
	return err
}
