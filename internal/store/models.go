package store

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"time"

	"github.com/cay-run/cay"
)

// Models are the providers of models that teams have, and the tokens that sandboxes
// exchange with them.
type Models interface {
	// AddModelProvider records a provider. Conflict means that the team has one of
	// its name, Exhausted that it has most.
	AddModelProvider(ctx context.Context, p cay.ModelProvider, most int) error
	// ModelProvider finds a team's provider.
	ModelProvider(ctx context.Context, team cay.TeamID, name string) (cay.ModelProvider, error)
	// ModelProviders lists a team's providers in the order in which they are asked.
	ModelProviders(ctx context.Context, team cay.TeamID) ([]cay.ModelProvider, error)
	// UpdateModelProvider replaces one that has the version before p's; Conflict
	// means that it has not.
	UpdateModelProvider(ctx context.Context, p cay.ModelProvider) error
	// RemoveModelProvider forgets a team's provider.
	RemoveModelProvider(ctx context.Context, team cay.TeamID, name string) error
	// CountModel counts tokens at a moment: of the sandbox in its life, and of its
	// account as AddUsage does.
	CountModel(ctx context.Context, s cay.Sandbox, at time.Time, input, output int64) error
	// ModelTokens returns how many tokens a sandbox has exchanged with models.
	ModelTokens(ctx context.Context, id cay.SandboxID) (int64, error)
}

const providerColumns = `team, name, wire, url, secret, models, place, enabled, timeout_ms, created_at, updated_at, version`

// AddModelProvider records a provider of a team that has fewer than most.
func (s *DB) AddModelProvider(ctx context.Context, p cay.ModelProvider, most int) error {
	models, err := json.Marshal(p.Models)
	if err != nil {
		return cay.Wrap(cay.Internal, err, "cannot record the models of provider %q", p.Name)
	}
	return s.tx(ctx, func(tx *sql.Tx) error {
		if err := s.holdTeam(ctx, tx, p.Team); err != nil {
			return err
		}
		var n int
		if err := tx.QueryRowContext(ctx, `SELECT COUNT(*) FROM model_providers WHERE team = $1`, p.Team).Scan(&n); err != nil {
			return err
		}
		if n >= most {
			return cay.Errorf(cay.Exhausted, "the team has %d providers of models, which is the most", n)
		}
		_, err := tx.ExecContext(ctx, `INSERT INTO model_providers (`+providerColumns+`) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)`,
			p.Team, p.Name, p.Wire, p.URL, p.Secret, string(models), p.Order, flag(p.Enabled), p.Timeout.Milliseconds(), millis(p.CreatedAt), millis(p.UpdatedAt), p.Version)
		return err
	})
}

// ModelProvider finds a team's provider.
func (s *DB) ModelProvider(ctx context.Context, team cay.TeamID, name string) (cay.ModelProvider, error) {
	row := s.r.QueryRowContext(ctx, `SELECT `+providerColumns+` FROM model_providers WHERE team = $1 AND name = $2`, team, name)
	return one(row, scanProvider, "provider", name)
}

// ModelProviders lists a team's providers in the order in which they are asked.
func (s *DB) ModelProviders(ctx context.Context, team cay.TeamID) ([]cay.ModelProvider, error) {
	rows, err := s.r.QueryContext(ctx, `SELECT `+providerColumns+` FROM model_providers WHERE team = $1 ORDER BY place, created_at, name`, team)
	return collect(rows, err, scanProvider)
}

// UpdateModelProvider replaces a provider that still has the version before the
// new one's.
func (s *DB) UpdateModelProvider(ctx context.Context, p cay.ModelProvider) error {
	models, err := json.Marshal(p.Models)
	if err != nil {
		return cay.Wrap(cay.Internal, err, "cannot record the models of provider %q", p.Name)
	}
	res, err := s.exec(ctx, `
UPDATE model_providers SET wire = $3, url = $4, secret = $5, models = $6, place = $7, enabled = $8, timeout_ms = $9, updated_at = $10, version = $11
WHERE team = $1 AND name = $2 AND version = $12`,
		p.Team, p.Name, p.Wire, p.URL, p.Secret, string(models), p.Order, flag(p.Enabled), p.Timeout.Milliseconds(), millis(p.UpdatedAt), p.Version, p.Version-1)
	if err != nil {
		return dbError(err)
	}
	if n, err := res.RowsAffected(); err != nil || n == 0 {
		return cmp.Or[error](err, cay.Errorf(cay.Conflict, "provider %q was changed or removed meanwhile", p.Name))
	}
	return nil
}

// RemoveModelProvider forgets a team's provider.
func (s *DB) RemoveModelProvider(ctx context.Context, team cay.TeamID, name string) error {
	res, err := s.exec(ctx, `DELETE FROM model_providers WHERE team = $1 AND name = $2`, team, name)
	if err != nil {
		return dbError(err)
	}
	if n, err := res.RowsAffected(); err != nil || n == 0 {
		return cmp.Or(err, notFound("provider", name))
	}
	return nil
}

// CountModel counts tokens of a sandbox, in its use and in its team's.
func (s *DB) CountModel(ctx context.Context, b cay.Sandbox, at time.Time, input, output int64) error {
	return s.tx(ctx, func(tx *sql.Tx) error {
		account, err := s.accountOf(ctx, tx, accountFor(b))
		if err != nil {
			return err
		}
		sum := tally{}
		sum.add(b.Team, account, millis(at), cay.Amounts{Input: input, Output: output})
		if err := s.addRows(ctx, tx, sum); err != nil {
			return err
		}
		// Of one whose record is forgotten, the team's use alone is counted.
		_, err = tx.ExecContext(ctx, `INSERT INTO model_use (sandbox, tokens) SELECT id, CAST($2 AS BIGINT) FROM sandboxes WHERE id = $1
ON CONFLICT (sandbox) DO UPDATE SET tokens = model_use.tokens + excluded.tokens`, b.ID, input+output)
		return err
	})
}

// ModelTokens returns how many tokens a sandbox has exchanged with models.
func (s *DB) ModelTokens(ctx context.Context, id cay.SandboxID) (n int64, err error) {
	err = s.r.QueryRowContext(ctx, `SELECT tokens FROM model_use WHERE sandbox = $1`, id).Scan(&n)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, nil
	}
	return n, dbError(err)
}

func scanProvider(row scanner) (cay.ModelProvider, error) {
	var p cay.ModelProvider
	var models string
	var enabled, timeout, created, updated int64
	err := row.Scan(&p.Team, &p.Name, &p.Wire, &p.URL, &p.Secret, &models, &p.Order, &enabled, &timeout, &created, &updated, &p.Version)
	if err != nil {
		return p, err
	}
	p.Enabled, p.Timeout, p.CreatedAt, p.UpdatedAt = enabled != 0, time.Duration(timeout)*time.Millisecond, fromMillis(created), fromMillis(updated)
	if err := json.Unmarshal([]byte(models), &p.Models); err != nil {
		return p, cay.Wrap(cay.Internal, err, "the record of provider %q is damaged", p.Name)
	}
	return p, nil
}
