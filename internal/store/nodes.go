package store

import (
	"context"
	"database/sql"
	"errors"
	"time"

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

// TakeNode leases a node's name to a machine.
func (s *DB) TakeNode(ctx context.Context, node cay.NodeID, machine string, lease time.Duration) (epoch int64, err error) {
	err = s.tx(ctx, func(tx *sql.Tx) error {
		now, err := s.now(ctx, tx)
		if err != nil {
			return err
		}
		err = tx.QueryRowContext(ctx, `INSERT INTO nodes (id, machine, epoch, lease_until) VALUES ($1, $2, 1, $3)
ON CONFLICT (id) DO UPDATE SET machine = excluded.machine, epoch = nodes.epoch + 1, lease_until = excluded.lease_until
WHERE nodes.machine = excluded.machine OR nodes.lease_until <= $4 RETURNING epoch`,
			node, machine, now+lease.Milliseconds(), now).Scan(&epoch)
		if !errors.Is(err, sql.ErrNoRows) {
			return err
		}
		var until int64
		if err := tx.QueryRowContext(ctx, `SELECT lease_until FROM nodes WHERE id = $1`, node).Scan(&until); err != nil {
			return err
		}
		left := time.Duration(until-now) * time.Millisecond
		return cay.Errorf(cay.Conflict, "another machine's server has the records: its lease ends in %s unless it renews it", left.Round(time.Second)).
			WithHint("stop that server, or give this one a database of its own; after the other machine's death wait until its lease ends")
	})
	return epoch, err
}

// RenewNode moves the end of a lease that nothing was put in the place of.
func (s *DB) RenewNode(ctx context.Context, node cay.NodeID, epoch int64, lease time.Duration) error {
	return s.tx(ctx, func(tx *sql.Tx) error {
		now, err := s.now(ctx, tx)
		if err != nil {
			return err
		}
		res, err := tx.ExecContext(ctx, `UPDATE nodes SET lease_until = $3 WHERE id = $1 AND epoch = $2`, node, epoch, now+lease.Milliseconds())
		if err != nil {
			return err
		}
		if n, err := res.RowsAffected(); err != nil || n > 0 {
			return err
		}
		return cay.Errorf(cay.Conflict, "another server has taken the records over")
	})
}

// LeaveNode ends a lease now, unless another has followed.
func (s *DB) LeaveNode(ctx context.Context, node cay.NodeID, epoch int64) error {
	_, err := s.exec(ctx, `UPDATE nodes SET lease_until = 0 WHERE id = $1 AND epoch = $2`, node, epoch)
	return err
}
