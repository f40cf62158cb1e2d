package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cay-run/cay"
)

// ErrTakenOver means that a later epoch of a server's node has begun: another
// server has the records, and nothing of this one's counts any more.
var ErrTakenOver = cay.Errorf(cay.Unavailable, "another server has taken the records over").
	WithHint("this server ends; the other one answers")

// SetDrain records whether a machine is drained, and how.
func (s *DB) SetDrain(ctx context.Context, node cay.NodeID, how cay.Drain) error {
	text, args := `DELETE FROM draining_nodes WHERE node = $1`, []any{node}
	if how != cay.DrainNone {
		text, args = `INSERT INTO draining_nodes (node, mode) VALUES ($1, $2) ON CONFLICT (node) DO UPDATE SET mode = excluded.mode`, append(args, how)
	}
	_, err := s.exec(ctx, text, args...)
	return dbError(err)
}

// drainColumn is the drain of the node of a row or a parameter.
func drainColumn(node string) string {
	return `COALESCE((SELECT d.mode FROM draining_nodes d WHERE d.node = ` + node + `), '')`
}

// Drain tells how a machine is drained.
func (s *DB) Drain(ctx context.Context, node cay.NodeID) (how cay.Drain, err error) {
	err = s.r.QueryRowContext(ctx, `SELECT `+drainColumn("$1"), node).Scan(&how)
	return how, dbError(err)
}

// Guard has each transaction from now on check in the database that the epoch of
// the node is its last one, and keep another from beginning until it is over. One
// that comes later fails with ErrTakenOver. A file has one server by the lock of
// its directory, and no guard.
func (s *DB) Guard(node cay.NodeID, epoch int64) { s.engine.guard(guard{node, epoch}) }

// TakeNode leases a node's name to a machine.
func (s *DB) TakeNode(ctx context.Context, node cay.NodeID, machine string, lease time.Duration) (epoch int64, err error) {
	var refused error
	err = s.tx(ctx, func(tx *sql.Tx) error {
		if refused, err = s.refuseNode(ctx, tx, node, machine, lease); refused != nil || err != nil {
			return err
		}
		if err := s.fence(ctx, tx, node); err != nil {
			return err
		}
		now, err := s.now(ctx, tx)
		if err != nil {
			return err
		}
		err = tx.QueryRowContext(ctx, `INSERT INTO nodes (id, machine, epoch, lease_until) VALUES ($1, $2, 1, $3)
ON CONFLICT (id) DO UPDATE SET machine = excluded.machine, epoch = nodes.epoch + 1, lease_until = excluded.lease_until
WHERE nodes.machine = excluded.machine OR nodes.lease_until <= $4 RETURNING epoch`,
			node, machine, now+lease.Milliseconds(), now).Scan(&epoch)
		if errors.Is(err, sql.ErrNoRows) { // it was renewed this moment
			refused, err = s.refuseNode(ctx, tx, node, machine, lease)
		}
		return err
	})
	if err == nil {
		err = refused
	}
	return epoch, err
}

// refuseNode says why a machine cannot have a node's name: another one's lease
// holds. A lease that ends later than one that began now was given before the
// database's clock was set back, and is made as long as that.
func (s *DB) refuseNode(ctx context.Context, tx *sql.Tx, node cay.NodeID, machine string, lease time.Duration) (refused, err error) {
	now, err := s.now(ctx, tx)
	if err != nil {
		return nil, err
	}
	var holder string
	var until int64
	err = tx.QueryRowContext(ctx, `SELECT machine, lease_until FROM nodes WHERE id = $1`, node).Scan(&holder, &until)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	if err != nil || holder == machine || until <= now {
		return nil, err
	}
	if most := now + lease.Milliseconds(); until > most {
		_, err = tx.ExecContext(ctx, `UPDATE nodes SET lease_until = $3 WHERE id = $1 AND lease_until = $2`, node, until, most)
		until = most
	}
	left := time.Duration(until-now) * time.Millisecond
	return cay.Errorf(cay.Conflict, "another machine's server has the records: its lease ends in %s unless it renews it", left.Round(time.Second)).
		WithHint("stop that server, or give this one a database of its own; after the other machine's death wait until its lease ends"), err
}

// fences is how often the transactions of a node are ended, a second each.
const fences = 10

// fence ends the transactions that a guard of the node lets pass, and keeps others
// from beginning until the end of tx. One may stand still with its server, which
// nothing else ends in time.
func (s *DB) fence(ctx context.Context, tx *sql.Tx, node cay.NodeID) error {
	if !s.engine.many() {
		return nil
	}
	key := guardKey(node)
	for runs := 1; ; runs++ {
		_, err := tx.ExecContext(ctx, `SELECT pg_terminate_backend(l.pid) FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
WHERE l.locktype = 'advisory' AND l.mode = 'ShareLock' AND l.granted AND l.objsubid = 1 AND l.pid <> pg_backend_pid()
AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
AND l.classid::bigint = ($1::bigint >> 32) & 4294967295 AND l.objid::bigint = $1::bigint & 4294967295
AND pg_has_role(a.usesysid, 'USAGE')`, key)
		if err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, `SAVEPOINT fence`); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, `SET LOCAL lock_timeout = '1s'`); err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, fmt.Sprintf(`SELECT pg_advisory_xact_lock(%d)`, key)) // without an argument it is sent at once
		var told *pgconn.PgError
		if err == nil || !errors.As(err, &told) || told.Code != lockTimeout || runs == fences {
			return err
		}
		if _, err := tx.ExecContext(ctx, `ROLLBACK TO SAVEPOINT fence`); err != nil {
			return err
		}
	}
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
		return ErrTakenOver
	})
}

// LeaveNode ends a lease now, unless another has followed.
func (s *DB) LeaveNode(ctx context.Context, node cay.NodeID, epoch int64) error {
	_, err := s.exec(ctx, `UPDATE nodes SET lease_until = 0 WHERE id = $1 AND epoch = $2`, node, epoch)
	if errors.Is(err, ErrTakenOver) {
		return nil
	}
	return err
}
