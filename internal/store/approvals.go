package store

import (
	"cmp"
	"context"
	"database/sql"
	"slices"
	"strings"
	"time"

	"github.com/cay-run/cay"
)

// Approvals are questions that wait for a decision, and the decisions.
type Approvals interface {
	// AddTokenHolder records a party that is given the token of a sandbox; TokenHolders lists them.
	AddTokenHolder(ctx context.Context, id cay.SandboxID, o cay.Origins) error
	TokenHolders(ctx context.Context, id cay.SandboxID) ([]cay.Origins, error)
	// AddApproval records a question, or returns the one that waits with the same
	// sandbox, kind, subject and body, which joined says; it has the askers of both then. Exhausted when the asking party
	// has mostOfAsker waiting, or the team most.
	AddApproval(ctx context.Context, a cay.Approval, mostOfAsker, most int) (out cay.Approval, joined bool, err error)
	// Approval finds a team's approval, ApprovalOf one of any team.
	Approval(ctx context.Context, team cay.TeamID, id cay.ApprovalID) (cay.Approval, error)
	ApprovalOf(ctx context.Context, id cay.ApprovalID) (cay.Approval, error)
	// Approvals lists approvals, the newest first.
	Approvals(ctx context.Context, q ApprovalQuery) ([]cay.Approval, error)
	// LastDecision finds the last yes or no about the subject of a sandbox's
	// question; one for this once only with the same body.
	LastDecision(ctx context.Context, q cay.Approval) (cay.Approval, error)
	// EndApproval records the state, the decision and its party. Conflict means that
	// the approval does not wait any more; a decision also conflicts with the end of
	// its time.
	EndApproval(ctx context.Context, a cay.Approval) error
	// UseApproval records that a yes to one time was used. Conflict means that it was
	// before.
	UseApproval(ctx context.Context, id cay.ApprovalID, at time.Time) error
	// LapsedApprovals lists approvals of all teams that wait though their time is
	// over, or their sandbox.
	LapsedApprovals(ctx context.Context, now time.Time, limit int) ([]cay.Approval, error)
	// NextLapse returns the earliest expiry of a waiting approval; zero for
	// never.
	NextLapse(ctx context.Context) (time.Time, error)
	// PruneApprovals forgets approvals that do not wait, from before a time and of
	// each team all but the newest. It keeps decisions for the life of a sandbox
	// that lives.
	PruneApprovals(ctx context.Context, before time.Time, most int) (int, error)
}

// ApprovalQuery says which of a team's approvals to list.
type ApprovalQuery struct {
	Team    cay.TeamID
	Sandbox cay.SandboxID     // empty means all
	State   cay.ApprovalState // empty means any
	After   *ApprovalCursor   // nil means from the newest
	Limit   int
}

// ApprovalCursor is a place in a list of approvals.
type ApprovalCursor struct {
	At time.Time
	ID cay.ApprovalID
}

const approvalColumns = `id, team, sandbox, kind, subject, title, body, risk, asked_kind, asked_id, asked_name, origin_key, origin_person, created_at, expires_at, ` +
	`state, decided_kind, decided_id, decided_name, decided_at, note, remember, used_at, askers`

// AddApproval records a question, or finds the same one, which waits.
func (s *DB) AddApproval(ctx context.Context, a cay.Approval, mostOfAsker, most int) (out cay.Approval, joined bool, err error) {
	err = s.tx(ctx, func(tx *sql.Tx) error {
		out, joined = a, false
		if err := s.holdTeam(ctx, tx, a.Team); err != nil {
			return err
		}
		if a.Subject != "" {
			row := tx.QueryRowContext(ctx, `SELECT `+approvalColumns+` FROM approvals
WHERE sandbox = $1 AND kind = $2 AND subject = $3 AND subject <> '' AND body = $4 AND team = $5 AND state = 'pending' AND expires_at > $6`,
				a.Sandbox, a.Kind, a.Subject, a.Body, a.Team, millis(a.CreatedAt))
			earlier, err := one(row, scanApproval, "approval", a.Subject)
			if err == nil {
				out, joined = earlier, true
				return s.joinApproval(ctx, tx, &out, a.Askers)
			}
			if cay.KindOf(err) != cay.NotFound {
				return err
			}
		}
		if err := roomForApproval(ctx, tx, a, mostOfAsker, most); err != nil {
			return err
		}
		var first cay.Origins // which a node of the release before looks at
		if len(a.Askers) > 0 {
			first = a.Askers[0]
		}
		_, err := tx.ExecContext(ctx, `INSERT INTO approvals (`+approvalColumns+`)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24)`,
			a.ID, a.Team, a.Sandbox, a.Kind, a.Subject, a.Title, a.Body, a.Risk, a.Asked.Kind, a.Asked.ID, a.Asked.Name, first.Key, first.Person,
			millis(a.CreatedAt), millis(a.ExpiresAt), a.State, a.Decided.Kind, a.Decided.ID, a.Decided.Name, millis(a.DecidedAt), a.Note, a.Remember, millis(a.UsedAt), asJSON(a.Askers))
		return err
	})
	return out, joined, err
}

// joinApproval adds parties to a question that waits.
func (s *DB) joinApproval(ctx context.Context, tx *sql.Tx, a *cay.Approval, askers []cay.Origins) error {
	n := len(a.Askers)
	for _, o := range askers {
		if !slices.Contains(a.Askers, o) {
			a.Askers = append(a.Askers, o)
		}
	}
	if len(a.Askers) == n {
		return nil
	}
	_, err := tx.ExecContext(ctx, `UPDATE approvals SET askers = $2 WHERE id = $1`, a.ID, asJSON(a.Askers))
	return err
}

// AddTokenHolder records a party that is given the token of a sandbox.
func (s *DB) AddTokenHolder(ctx context.Context, id cay.SandboxID, o cay.Origins) error {
	_, err := s.exec(ctx, `INSERT INTO token_holders (sandbox, key_id, person, exchange) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING`,
		id, o.Key, o.Person, o.Exchange)
	return dbError(err)
}

// TokenHolders lists the parties that were given the token of a sandbox.
func (s *DB) TokenHolders(ctx context.Context, id cay.SandboxID) ([]cay.Origins, error) {
	rows, err := s.r.QueryContext(ctx, `SELECT key_id, person, exchange FROM token_holders WHERE sandbox = $1 ORDER BY key_id, person`, id)
	return collect(rows, err, func(row scanner) (o cay.Origins, err error) { return o, row.Scan(&o.Key, &o.Person, &o.Exchange) })
}

// roomForApproval refuses one more question than an asking party, or a team, may
// have waiting.
func roomForApproval(ctx context.Context, tx *sql.Tx, a cay.Approval, mostOfAsker, most int) error {
	var own, all int
	err := tx.QueryRowContext(ctx, `SELECT COUNT(*), COALESCE(SUM(CASE WHEN asked_kind = $2 AND asked_id = $3 THEN 1 ELSE 0 END), 0)
FROM approvals WHERE team = $1 AND state = 'pending' AND expires_at > $4`, a.Team, a.Asked.Kind, a.Asked.ID, millis(a.CreatedAt)).Scan(&all, &own)
	switch {
	case err != nil:
		return err
	case own >= mostOfAsker:
		return cay.Errorf(cay.Exhausted, "%d questions of the same party wait for a decision, which is the most", own)
	case all >= most:
		return cay.Errorf(cay.Exhausted, "%d questions of the team wait for a decision, which is the most", all)
	}
	return nil
}

// Approval finds a team's approval.
func (s *DB) Approval(ctx context.Context, team cay.TeamID, id cay.ApprovalID) (cay.Approval, error) {
	row := s.r.QueryRowContext(ctx, `SELECT `+approvalColumns+` FROM approvals WHERE team = $1 AND id = $2`, team, id)
	return one(row, scanApproval, "approval", id)
}

// ApprovalOf finds an approval of any team.
func (s *DB) ApprovalOf(ctx context.Context, id cay.ApprovalID) (cay.Approval, error) {
	return one(s.r.QueryRowContext(ctx, `SELECT `+approvalColumns+` FROM approvals WHERE id = $1`, id), scanApproval, "approval", id)
}

// Approvals lists approvals, the newest first.
func (s *DB) Approvals(ctx context.Context, q ApprovalQuery) ([]cay.Approval, error) {
	c := &conditions{}
	c.where = append(c.where, "team = "+c.arg(q.Team))
	if q.Sandbox != "" {
		c.where = append(c.where, "sandbox = "+c.arg(q.Sandbox))
	}
	if q.State != "" {
		c.where = append(c.where, "state = "+c.arg(q.State))
	}
	if q.After != nil {
		at := c.arg(millis(q.After.At))
		c.where = append(c.where, "(created_at < "+at+" OR created_at = "+at+" AND id > "+c.arg(q.After.ID)+")")
	}
	rows, err := s.r.QueryContext(ctx,
		`SELECT `+approvalColumns+` FROM approvals WHERE `+strings.Join(c.where, " AND ")+` ORDER BY created_at DESC, id LIMIT `+c.arg(q.Limit), c.args...)
	return collect(rows, err, scanApproval)
}

// LastDecision finds the last decision that may answer a question of a sandbox.
func (s *DB) LastDecision(ctx context.Context, q cay.Approval) (cay.Approval, error) {
	row := s.r.QueryRowContext(ctx, `SELECT `+approvalColumns+` FROM approvals
WHERE sandbox = $1 AND kind = $2 AND subject = $3 AND subject <> '' AND team = $4 AND state IN ('approved', 'denied') AND (remember <> 'once' OR body = $5)
ORDER BY decided_at DESC, created_at DESC LIMIT 1`, q.Sandbox, q.Kind, q.Subject, q.Team, q.Body)
	return one(row, scanApproval, "decision about", q.Subject)
}

// EndApproval records the end of an approval that waits.
func (s *DB) EndApproval(ctx context.Context, a cay.Approval) error {
	res, err := s.exec(ctx, `
UPDATE approvals SET state = $3, decided_kind = $4, decided_id = $5, decided_name = $6, decided_at = $7, note = $8, remember = $9
WHERE id = $1 AND team = $2 AND state = 'pending' AND ($3 = 'expired' OR expires_at > $7)`,
		a.ID, a.Team, a.State, a.Decided.Kind, a.Decided.ID, a.Decided.Name, millis(a.DecidedAt), a.Note, a.Remember)
	if err != nil {
		return dbError(err)
	}
	if n, err := res.RowsAffected(); err != nil || n == 0 {
		return cmp.Or[error](err, cay.Errorf(cay.Conflict, "approval %s does not wait any more", a.ID))
	}
	return nil
}

// UseApproval records that the yes to one time was used.
func (s *DB) UseApproval(ctx context.Context, id cay.ApprovalID, at time.Time) error {
	res, err := s.exec(ctx, `UPDATE approvals SET used_at = $2 WHERE id = $1 AND used_at = 0`, id, millis(at))
	if err != nil {
		return dbError(err)
	}
	if n, err := res.RowsAffected(); err != nil || n == 0 {
		return cmp.Or[error](err, cay.Errorf(cay.Conflict, "approval %s was used", id))
	}
	return nil
}

// LapsedApprovals lists approvals that wait and whose time, or sandbox, is over.
func (s *DB) LapsedApprovals(ctx context.Context, now time.Time, limit int) ([]cay.Approval, error) {
	rows, err := s.r.QueryContext(ctx, `SELECT `+approvalColumns+` FROM approvals a
WHERE state = 'pending' AND (expires_at <= $1 OR sandbox <> '' AND NOT EXISTS (SELECT 1 FROM sandboxes b WHERE b.id = a.sandbox AND b.state <> 'killed'))
ORDER BY expires_at, id LIMIT $2`, millis(now), limit)
	return collect(rows, err, scanApproval)
}

// NextLapse tells when the time of the next approval that waits is over; zero for
// never.
func (s *DB) NextLapse(ctx context.Context) (time.Time, error) {
	var at sql.NullInt64
	err := s.r.QueryRowContext(ctx, `SELECT MIN(expires_at) FROM approvals WHERE state = 'pending'`).Scan(&at)
	return fromMillis(at.Int64), dbError(err)
}

// PruneApprovals forgets approvals that are over, but for decisions that count for
// the life of a sandbox.
func (s *DB) PruneApprovals(ctx context.Context, before time.Time, most int) (int, error) {
	return s.inBatches(ctx, `DELETE FROM approvals WHERE id IN (SELECT id FROM (
    SELECT id, created_at, ROW_NUMBER() OVER (PARTITION BY team ORDER BY created_at DESC, id DESC) AS place
    FROM approvals a WHERE state <> 'pending' AND NOT (remember = 'sandbox' AND EXISTS (
        SELECT 1 FROM sandboxes b WHERE b.id = a.sandbox AND b.state <> 'killed'))) AS ended
WHERE created_at < $1 OR place > $2 LIMIT $3)`, millis(before), most)
}

func scanApproval(row scanner) (cay.Approval, error) {
	var a cay.Approval
	var first cay.Origins
	var askers string
	var created, expires, decided, used int64
	err := row.Scan(&a.ID, &a.Team, &a.Sandbox, &a.Kind, &a.Subject, &a.Title, &a.Body, &a.Risk, &a.Asked.Kind, &a.Asked.ID, &a.Asked.Name,
		&first.Key, &first.Person, &created, &expires, &a.State, &a.Decided.Kind, &a.Decided.ID, &a.Decided.Name, &decided, &a.Note, &a.Remember, &used, &askers)
	a.CreatedAt, a.ExpiresAt, a.DecidedAt, a.UsedAt = fromMillis(created), fromMillis(expires), fromMillis(decided), fromMillis(used)
	if err = fromJSON(err, askers, &a.Askers); a.Askers == nil && first != (cay.Origins{}) { // of a release before
		a.Askers = []cay.Origins{first}
	}
	return a, err
}
