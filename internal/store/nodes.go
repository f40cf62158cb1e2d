package store

import (
	"context"

	"github.com/cay-run/cay"
)

// SetDraining records whether a machine is drained.
func (s *DB) SetDraining(ctx context.Context, node cay.NodeID, on bool) error {
	text := `DELETE FROM draining_nodes WHERE node = $1`
	if on {
		text = `INSERT INTO draining_nodes (node) VALUES ($1) ON CONFLICT (node) DO NOTHING`
	}
	_, err := s.exec(ctx, text, node)
	return dbError(err)
}

// Draining reports whether a machine is drained.
func (s *DB) Draining(ctx context.Context, node cay.NodeID) (bool, error) {
	var n int
	err := s.r.QueryRowContext(ctx, `SELECT COUNT(*) FROM draining_nodes WHERE node = $1`, node).Scan(&n)
	return n > 0, dbError(err)
}
