package store

import (
	"context"
	"database/sql"
	"time"

	"github.com/cay-run/cay"
)

// QueuedBuild is a build that waits, or that a node carries out.
type QueuedBuild struct {
	Build cay.BuildID
	Team  cay.TeamID
	Owner cay.NodeID // empty while it waits
	Over  bool       // the owner's lease has ended, by the database's clock
}

// BuildsOf counts a team's among the builds that wait or run.
func BuildsOf(queue []QueuedBuild, team cay.TeamID) int {
	n := 0
	for _, one := range queue {
		if one.Team == team {
			n++
		}
	}
	return n
}

// QueueBuild queues a build. Same is a digest of what it is made from; empty
// for one that is like no other.
func (s *DB) QueueBuild(ctx context.Context, b cay.Build, sealed, same string) error {
	return s.tx(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO build_queue (build, team, queued_at, sealed, same) VALUES ($1, $2, $3, $4, $5)`,
			b.ID, b.Team, millis(b.UpdatedAt), sealed, same)
		return err
	})
}

// QueuedBuilds lists all builds that wait or run.
func (s *DB) QueuedBuilds(ctx context.Context) ([]QueuedBuild, error) {
	if s.joined != nil { // whether another may wait is decided by it
		if err := s.hold(ctx, s.joined.tx, `LOCK TABLE build_queue IN SHARE ROW EXCLUSIVE MODE`); err != nil {
			return nil, dbError(err)
		}
	}
	now, err := s.now(ctx, s.r)
	if err != nil {
		return nil, dbError(err)
	}
	rows, err := s.r.QueryContext(ctx, `SELECT build, team, owner, lease_until FROM build_queue ORDER BY queued_at, build`)
	return collect(rows, err, func(row scanner) (q QueuedBuild, err error) {
		var until int64
		err = row.Scan(&q.Build, &q.Team, &q.Owner, &until)
		q.Over = q.Owner != "" && until <= now
		return q, err
	})
}

// TakeBuild leases the build whose turn it is. One that is the same as an earlier one
// of its team waits for the end of that.
func (s *DB) TakeBuild(ctx context.Context, owner cay.NodeID, most int, lease time.Duration) (b cay.Build, sealed string, err error) {
	err = s.tx(ctx, func(tx *sql.Tx) error {
		row := tx.QueryRowContext(ctx, `SELECT q.build, q.sealed FROM build_queue q
			WHERE q.owner = '' AND (SELECT count(*) FROM build_queue r WHERE r.team = q.team AND r.owner = $1) < $2
			AND (q.same = '' OR NOT EXISTS (SELECT 1 FROM build_queue e WHERE e.team = q.team AND e.same = q.same
				AND (e.queued_at < q.queued_at OR e.queued_at = q.queued_at AND e.build < q.build)))
			ORDER BY (SELECT count(*) FROM build_queue r WHERE r.team = q.team AND r.owner <> ''), q.queued_at, q.build LIMIT 1`+s.skipLocked(), owner, most)
		id, err := one(row, func(row scanner) (id cay.BuildID, err error) {
			err = row.Scan(&id, &sealed)
			return id, err
		}, "build", "waiting")
		if err != nil {
			return err
		}
		now, err := s.now(ctx, tx)
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, `UPDATE build_queue SET owner = $1, lease_until = $2, sealed = '' WHERE build = $3`,
			owner, now+lease.Milliseconds(), id)
		if err != nil {
			return err
		}
		b, err = scanBuild(tx.QueryRowContext(ctx, `SELECT `+buildColumns+` FROM builds WHERE id = $1`, id))
		return err
	})
	return b, sealed, err
}

// RenewBuild moves the end of a lease.
func (s *DB) RenewBuild(ctx context.Context, id cay.BuildID, owner cay.NodeID, lease time.Duration) error {
	now, err := s.now(ctx, s.r)
	if err != nil {
		return dbError(err)
	}
	return s.onLease(ctx, `UPDATE build_queue SET lease_until = $3 WHERE build = $1 AND owner = $2`, id, owner, now+lease.Milliseconds())
}

// EndBuild takes a build out of the queue.
func (s *DB) EndBuild(ctx context.Context, id cay.BuildID, owner cay.NodeID) error {
	return s.onLease(ctx, `DELETE FROM build_queue WHERE build = $1 AND owner = $2`, id, owner)
}

// onLease changes the row of a build that an owner has.
func (s *DB) onLease(ctx context.Context, text string, id cay.BuildID, args ...any) error {
	return s.tx(ctx, func(tx *sql.Tx) error {
		res, err := tx.ExecContext(ctx, text, append([]any{id}, args...)...)
		if err != nil {
			return err
		}
		n, err := res.RowsAffected()
		if err == nil && n == 0 {
			err = notFound("lease of build", id)
		}
		return err
	})
}
