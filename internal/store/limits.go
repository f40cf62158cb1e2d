package store

import (
	"context"
	"database/sql"
	"encoding/json"

	"github.com/cay-run/cay"
)

// PutTeamLimits replaces all limits that are set for a team.
func (s *DB) PutTeamLimits(ctx context.Context, team cay.TeamID, limits cay.TeamLimits, events ...cay.Event) error {
	if limits == nil {
		limits = cay.TeamLimits{}
	}
	text, err := json.Marshal(limits)
	if err != nil {
		return cay.Wrap(cay.Internal, err, "cannot record the limits of team %s", team)
	}
	return s.tx(ctx, func(tx *sql.Tx) error {
		// It is not there: its row would lack its team.
		var n int
		if err := tx.QueryRowContext(ctx, `SELECT COUNT(*) FROM teams WHERE id = $1 AND removed_at = 0`, team).Scan(&n); err != nil {
			return err
		}
		if n == 0 {
			return notFound("team", team)
		}
		_, err := tx.ExecContext(ctx, `
INSERT INTO team_limits (team, limits) VALUES ($1, $2) ON CONFLICT (team) DO UPDATE SET limits = excluded.limits`,
			team, string(text))
		if err != nil {
			return err
		}
		return s.addEvents(ctx, tx, events)
	})
}

// AllTeamLimits returns the limits that are set, of all teams that have any.
func (s *DB) AllTeamLimits(ctx context.Context) (map[cay.TeamID]cay.TeamLimits, error) {
	rows, err := s.r.QueryContext(ctx, `SELECT team, limits FROM team_limits WHERE limits <> '{}'`)
	type row struct {
		team   cay.TeamID
		limits cay.TeamLimits
	}
	list, err := collect(rows, err, func(scan scanner) (one row, err error) {
		var text string
		if err := scan.Scan(&one.team, &text); err != nil {
			return one, err
		}
		// A limit that cannot be read must not become none.
		if err := json.Unmarshal([]byte(text), &one.limits); err != nil {
			return one, cay.Wrap(cay.Internal, err, "the record of the limits of team %s is damaged", one.team)
		}
		return one, nil
	})
	out := make(map[cay.TeamID]cay.TeamLimits, len(list))
	for _, one := range list {
		out[one.team] = one.limits
	}
	return out, err
}
