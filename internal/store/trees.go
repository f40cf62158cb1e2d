package store

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/cay-run/cay"
)

const checkpointColumns = `id, team, tree, sandbox, parent, kind, label, auto, size, created_at, replicated_at, source`

// AddCheckpoint records a checkpoint at the end of its sandbox's branch.
func (s *DB) AddCheckpoint(ctx context.Context, c cay.Checkpoint, events ...cay.Event) (cay.Checkpoint, error) {
	source, err := json.Marshal(c.Source)
	if err != nil {
		return c, cay.Wrap(cay.Internal, err, "cannot record checkpoint %s", c.ID)
	}
	err = s.tx(ctx, func(tx *sql.Tx) error {
		if err := s.begin(ctx, tx, c.Team, events); err != nil {
			return err
		}
		b, err := branch(ctx, tx, c.Team, c.Sandbox)
		if err != nil {
			return err
		}
		c.Tree, c.Parent = b.Tree, b.Checkpoint
		_, err = tx.ExecContext(ctx, `INSERT INTO checkpoints (`+checkpointColumns+`, made_on)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)`,
			c.ID, c.Team, c.Tree, c.Sandbox, c.Parent, c.Kind, c.Label, flag(c.Auto), c.Size, millis(c.CreatedAt), millis(c.ReplicatedAt), s.seal.Seal(source, checkpointPlace(c.ID)), s.engine.self())
		if err != nil {
			return err
		}
		b.Checkpoint, b.Rewound = c.ID, false
		return putBranch(ctx, tx, b)
	})
	if err != nil {
		return c, err
	}
	return c, s.sync()
}

// checkpointPlace is where a checkpoint's source is sealed for. It holds the
// sandbox's environment.
func checkpointPlace(id cay.SnapshotID) string { return "checkpoint " + string(id) }

// Checkpoint finds a team's checkpoint.
func (s *DB) Checkpoint(ctx context.Context, team cay.TeamID, id cay.SnapshotID) (cay.Checkpoint, error) {
	row := s.r.QueryRowContext(ctx,
		`SELECT `+checkpointColumns+` FROM checkpoints WHERE team = $1 AND id = $2`, team, id)
	return one(row, s.scanCheckpoint, "checkpoint", id)
}

// Checkpoints lists checkpoints, oldest first.
func (s *DB) Checkpoints(ctx context.Context, q CheckpointQuery) ([]cay.Checkpoint, error) {
	c := &conditions{where: []string{"1 = 1"}}
	if q.Team != "" {
		c.where = append(c.where, "team = "+c.arg(q.Team))
	}
	if q.Tree != "" {
		c.where = append(c.where, "tree = "+c.arg(q.Tree))
	}
	if q.Sandbox != "" {
		c.where = append(c.where, "sandbox = "+c.arg(q.Sandbox))
	}
	rows, err := s.r.QueryContext(ctx, `SELECT `+checkpointColumns+` FROM checkpoints WHERE `+
		strings.Join(c.where, " AND ")+` ORDER BY created_at, id`, c.args...)
	return collect(rows, err, s.scanCheckpoint)
}

// CountCheckpoints counts those of a tree.
func (s *DB) CountCheckpoints(ctx context.Context, tree cay.SandboxID) (int, error) {
	var n int
	err := s.r.QueryRowContext(ctx, `SELECT COUNT(*) FROM checkpoints WHERE tree = $1`, tree).Scan(&n)
	return n, dbError(err)
}

// LabelCheckpoint changes the label of a team's checkpoint.
func (s *DB) LabelCheckpoint(ctx context.Context, team cay.TeamID, id cay.SnapshotID, label string) error {
	res, err := s.exec(ctx, `UPDATE checkpoints SET label = $1 WHERE team = $2 AND id = $3`, label, team, id)
	if err != nil {
		return dbError(err)
	}
	if n, err := res.RowsAffected(); err != nil || n == 0 {
		return cmp.Or(err, notFound("checkpoint", id))
	}
	return nil
}

// CheckpointReplicated records that the bucket has a team's checkpoint.
func (s *DB) CheckpointReplicated(ctx context.Context, team cay.TeamID, id cay.SnapshotID, at time.Time) error {
	_, err := s.exec(ctx, `UPDATE checkpoints SET replicated_at = $1 WHERE team = $2 AND id = $3`, millis(at), team, id)
	return dbError(err)
}

// RemoveCheckpoint forgets a checkpoint. Its children come from its parent then.
func (s *DB) RemoveCheckpoint(ctx context.Context, team cay.TeamID, id cay.SnapshotID) error {
	return s.tx(ctx, func(tx *sql.Tx) error {
		if err := s.holdTeam(ctx, tx, team); err != nil {
			return err
		}
		var parent cay.SnapshotID
		err := tx.QueryRowContext(ctx, `SELECT parent FROM checkpoints WHERE team = $1 AND id = $2`, team, id).Scan(&parent)
		if errors.Is(err, sql.ErrNoRows) {
			return notFound("checkpoint", id)
		}
		if err != nil {
			return err
		}
		for _, text := range []string{
			`UPDATE checkpoints SET parent = $1 WHERE parent = $2`,
			`UPDATE branches SET checkpoint = $1 WHERE checkpoint = $2`,
		} {
			if _, err := tx.ExecContext(ctx, text, parent, id); err != nil {
				return err
			}
		}
		_, err = tx.ExecContext(ctx, `DELETE FROM checkpoints WHERE id = $1`, id)
		return err
	})
}

// GiveCheckpoints makes all checkpoints of one sandbox another's.
func (s *DB) GiveCheckpoints(ctx context.Context, team cay.TeamID, from, to cay.SandboxID) error {
	_, err := s.exec(ctx, `UPDATE checkpoints SET sandbox = $1 WHERE team = $2 AND sandbox = $3`, to, team, from)
	return dbError(err)
}

// Branch finds where a team's sandbox is in its tree.
func (s *DB) Branch(ctx context.Context, team cay.TeamID, id cay.SandboxID) (cay.Branch, error) {
	if err := s.decide(ctx, team); err != nil {
		return cay.Branch{}, err
	}
	b, err := branch(ctx, s.r, team, id)
	return b, dbError(err)
}

// Branches lists the branches of sandboxes that are not killed.
func (s *DB) Branches(ctx context.Context, tree cay.SandboxID) ([]cay.Branch, error) {
	rows, err := s.r.QueryContext(ctx, `
SELECT b.sandbox, b.team, b.tree, b.checkpoint, b.auto, b.rewound FROM branches b JOIN sandboxes s ON s.id = b.sandbox
WHERE s.state <> $1 AND (b.tree = $2 OR $2 = '') ORDER BY s.started_at, s.id`, cay.Killed, tree)
	return collect(rows, err, scanBranch)
}

// PutBranch records where a sandbox is, or replaces that.
func (s *DB) PutBranch(ctx context.Context, b cay.Branch) error {
	return s.tx(ctx, func(tx *sql.Tx) error { return putBranch(ctx, tx, b) })
}

// branch reads where a sandbox is: without a record at the start of its own
// tree.
func branch(ctx context.Context, q reader, team cay.TeamID, id cay.SandboxID) (cay.Branch, error) {
	b, err := scanBranch(q.QueryRowContext(ctx,
		`SELECT sandbox, team, tree, checkpoint, auto, rewound FROM branches WHERE team = $1 AND sandbox = $2`, team, id))
	if errors.Is(err, sql.ErrNoRows) {
		return cay.Branch{Sandbox: id, Team: team, Tree: id}, nil
	}
	return b, err
}

func putBranch(ctx context.Context, tx *sql.Tx, b cay.Branch) error {
	auto, err := json.Marshal(b.Auto)
	if err != nil {
		return cay.Wrap(cay.Internal, err, "cannot record the branch of sandbox %s", b.Sandbox)
	}
	_, err = tx.ExecContext(ctx, `
INSERT INTO branches (sandbox, team, tree, checkpoint, auto, rewound) VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (sandbox) DO UPDATE SET tree = excluded.tree, checkpoint = excluded.checkpoint, auto = excluded.auto, rewound = excluded.rewound`,
		b.Sandbox, b.Team, b.Tree, b.Checkpoint, string(auto), flag(b.Rewound))
	return err
}

func scanBranch(row scanner) (cay.Branch, error) {
	var b cay.Branch
	var auto string
	var rewound int64
	if err := row.Scan(&b.Sandbox, &b.Team, &b.Tree, &b.Checkpoint, &auto, &rewound); err != nil {
		return b, err
	}
	b.Rewound = rewound != 0
	if err := json.Unmarshal([]byte(auto), &b.Auto); err != nil {
		return b, cay.Wrap(cay.Internal, err, "the branch of sandbox %s is damaged", b.Sandbox)
	}
	return b, nil
}

func (s *DB) scanCheckpoint(row scanner) (cay.Checkpoint, error) {
	var c cay.Checkpoint
	var auto, created, replicated int64
	var source string
	err := row.Scan(&c.ID, &c.Team, &c.Tree, &c.Sandbox, &c.Parent, &c.Kind, &c.Label, &auto, &c.Size, &created, &replicated, &source)
	if err != nil {
		return c, err
	}
	c.Auto, c.CreatedAt, c.ReplicatedAt = auto != 0, fromMillis(created), fromMillis(replicated)
	text, err := s.clear(source, checkpointPlace(c.ID))
	if err != nil {
		return c, err
	}
	if err := json.Unmarshal(text, &c.Source); err != nil {
		return c, cay.Wrap(cay.Internal, err, "the record of checkpoint %s is damaged", c.ID)
	}
	return c, nil
}
