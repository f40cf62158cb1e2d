package store

import (
	"context"
	"database/sql"
	"encoding/hex"
	"time"

	"github.com/cay-run/cay"
)

// UseToken records that a token was used, by its digest.
func (s *DB) UseToken(ctx context.Context, digest [32]byte, now, until time.Time) error {
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

const sessionColumns = `id, person, api_key, operator, hash, agent, address, created_at, used_at`

// ofOwner holds for the sessions of one owner, whose three names are the first
// parameters.
const ofOwner = `COALESCE(person, '') = $1 AND api_key = $2 AND operator = $3`

// AddSession records a session.
func (s *DB) AddSession(ctx context.Context, x cay.Session) error {
	_, err := s.exec(ctx, `INSERT INTO sessions (`+sessionColumns+`) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)`,
		x.ID, sql.NullString{String: string(x.Person), Valid: x.Person != ""}, x.Key, x.Operator, hex.EncodeToString(x.Hash[:]), x.Agent, x.Address, millis(x.CreatedAt), millis(x.UsedAt))
	return dbError(err)
}

// SessionByHash finds the session whose token has that hash.
func (s *DB) SessionByHash(ctx context.Context, hash [32]byte) (cay.Session, error) {
	row := s.r.QueryRowContext(ctx, `SELECT `+sessionColumns+` FROM sessions WHERE hash = $1`, hex.EncodeToString(hash[:]))
	return one(row, scanSession, "session", "with this hash")
}

// Session finds a session.
func (s *DB) Session(ctx context.Context, id cay.SessionID) (cay.Session, error) {
	row := s.r.QueryRowContext(ctx, `SELECT `+sessionColumns+` FROM sessions WHERE id = $1`, id)
	return one(row, scanSession, "session", id)
}

// Sessions lists the sessions of an owner, the newest first.
func (s *DB) Sessions(ctx context.Context, of cay.SessionOwner) ([]cay.Session, error) {
	rows, err := s.r.QueryContext(ctx, `SELECT `+sessionColumns+` FROM sessions WHERE `+ofOwner+` ORDER BY created_at DESC, id`, of.Person, of.Key, of.Operator)
	return collect(rows, err, scanSession)
}

// UseSession notes that a session was used.
func (s *DB) UseSession(ctx context.Context, id cay.SessionID, now time.Time) error {
	_, err := s.exec(ctx, `UPDATE sessions SET used_at = $1 WHERE id = $2 AND used_at < $3`, millis(now), id, millis(now))
	return dbError(err)
}

// RemoveSession ends a session of an owner.
func (s *DB) RemoveSession(ctx context.Context, of cay.SessionOwner, id cay.SessionID) error {
	res, err := s.exec(ctx, `DELETE FROM sessions WHERE `+ofOwner+` AND id = $4`, of.Person, of.Key, of.Operator, id)
	return changed("session", id, res, err)
}

// PruneSessions forgets the sessions that are over.
func (s *DB) PruneSessions(ctx context.Context, now time.Time) error {
	_, err := s.exec(ctx, `DELETE FROM sessions WHERE used_at <= $1 OR created_at <= $2`,
		millis(now.Add(-cay.SessionIdle)), millis(now.Add(-cay.SessionMost)))
	return dbError(err)
}

// PersonOf finds the person whom an issuer knows by a subject.
func (s *DB) PersonOf(ctx context.Context, issuer, subject string) (cay.PersonID, error) {
	row := s.r.QueryRowContext(ctx, `SELECT person FROM identities WHERE issuer = $1 AND subject = $2`, issuer, subject)
	return one(row, func(row scanner) (id cay.PersonID, err error) { return id, row.Scan(&id) }, "identity", subject)
}

// BindPerson records by which subject an issuer knows a person.
func (s *DB) BindPerson(ctx context.Context, issuer, subject string, person cay.PersonID) error {
	_, err := s.exec(ctx, `INSERT INTO identities (issuer, subject, person) VALUES ($1, $2, $3)`, issuer, subject, person)
	return dbError(err)
}

// LoginTeams lists the teams in which a person is by a rule of logins.
func (s *DB) LoginTeams(ctx context.Context, person cay.PersonID) ([]cay.TeamID, error) {
	rows, err := s.r.QueryContext(ctx, `SELECT team FROM login_members WHERE person = $1 ORDER BY team`, person)
	return collect(rows, err, func(row scanner) (id cay.TeamID, err error) { return id, row.Scan(&id) })
}

// SetLoginTeams replaces them.
func (s *DB) SetLoginTeams(ctx context.Context, person cay.PersonID, teams []cay.TeamID) error {
	return s.tx(ctx, func(tx *sql.Tx) error {
		if err := s.hold(ctx, tx, `SELECT id FROM people WHERE id = $1 FOR UPDATE`, person); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, `DELETE FROM login_members WHERE person = $1`, person); err != nil {
			return err
		}
		for _, team := range teams {
			if _, err := tx.ExecContext(ctx, `INSERT INTO login_members (person, team) VALUES ($1, $2)`, person, team); err != nil {
				return err
			}
		}
		return nil
	})
}

func scanSession(row scanner) (cay.Session, error) {
	var x cay.Session
	var hash string
	var person sql.NullString
	var created, used int64
	if err := row.Scan(&x.ID, &person, &x.Key, &x.Operator, &hash, &x.Agent, &x.Address, &created, &used); err != nil {
		return x, err
	}
	x.Person = cay.PersonID(person.String)
	x.CreatedAt, x.UsedAt = fromMillis(created), fromMillis(used)
	b, err := hex.DecodeString(hash)
	if err != nil || len(b) != len(x.Hash) {
		return x, cay.Errorf(cay.Internal, "the record of session %s is damaged", x.ID)
	}
	copy(x.Hash[:], b)
	return x, nil
}
