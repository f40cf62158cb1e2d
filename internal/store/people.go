package store

import (
	"context"
	"encoding/hex"

	"github.com/cay-run/cay"
)

const (
	personColumns = `id, email, name, created_at, disabled_at`
	memberColumns = `team, person, role, added_at`
	tokenColumns  = `id, person, name, hash, mask, created_at`
)

// AddPerson records a person.
func (s *DB) AddPerson(ctx context.Context, p cay.Person) error {
	_, err := s.exec(ctx, `INSERT INTO people (`+personColumns+`) VALUES ($1, $2, $3, $4, $5)`,
		p.ID, p.Email, p.Name, millis(p.CreatedAt), millis(p.DisabledAt))
	return dbError(err)
}

// UpdatePerson replaces a person's address, name and the time of being disabled.
func (s *DB) UpdatePerson(ctx context.Context, p cay.Person) error {
	res, err := s.exec(ctx, `UPDATE people SET email = $1, name = $2, disabled_at = $3 WHERE id = $4`,
		p.Email, p.Name, millis(p.DisabledAt), p.ID)
	return changed("person", p.ID, res, err)
}

// Person finds a person.
func (s *DB) Person(ctx context.Context, id cay.PersonID) (cay.Person, error) {
	row := s.r.QueryRowContext(ctx, `SELECT `+personColumns+` FROM people WHERE id = $1`, id)
	return one(row, scanPerson, "person", id)
}

// PersonByEmail finds the person of an address.
func (s *DB) PersonByEmail(ctx context.Context, email string) (cay.Person, error) {
	if s.joined != nil { // a person who is not found is made by what goes on
		if err := s.hold(ctx, s.joined.tx, `LOCK TABLE people IN SHARE ROW EXCLUSIVE MODE`); err != nil {
			return cay.Person{}, dbError(err)
		}
	}
	row := s.r.QueryRowContext(ctx, `SELECT `+personColumns+` FROM people WHERE email = $1`, email)
	return one(row, scanPerson, "person", email)
}

// People lists all people, by address.
func (s *DB) People(ctx context.Context) ([]cay.Person, error) {
	rows, err := s.r.QueryContext(ctx, `SELECT `+personColumns+` FROM people ORDER BY email`)
	return collect(rows, err, scanPerson)
}

// AddMember records a person's role in a team.
func (s *DB) AddMember(ctx context.Context, m cay.Member) error {
	_, err := s.exec(ctx, `INSERT INTO members (`+memberColumns+`) VALUES ($1, $2, $3, $4)`,
		m.Team, m.Person, m.Role, millis(m.AddedAt))
	return dbError(err)
}

// SetRole replaces a member's role.
func (s *DB) SetRole(ctx context.Context, team cay.TeamID, person cay.PersonID, role cay.Role) error {
	res, err := s.exec(ctx, `UPDATE members SET role = $1 WHERE team = $2 AND person = $3`, role, team, person)
	return changed("member", person, res, err)
}

// RemoveMember has a person be no member of a team any more.
func (s *DB) RemoveMember(ctx context.Context, team cay.TeamID, person cay.PersonID) error {
	res, err := s.exec(ctx, `DELETE FROM members WHERE team = $1 AND person = $2`, team, person)
	return changed("member", person, res, err)
}

// Members lists a team's members, in the order of their coming.
func (s *DB) Members(ctx context.Context, team cay.TeamID) ([]cay.Member, error) {
	if err := s.decide(ctx, team); err != nil {
		return nil, err
	}
	rows, err := s.r.QueryContext(ctx, `SELECT `+memberColumns+` FROM members WHERE team = $1 ORDER BY added_at, person`, team)
	return collect(rows, err, scanMember)
}

// Memberships lists the teams of a person that are not removed, the first one
// joined first.
func (s *DB) Memberships(ctx context.Context, person cay.PersonID) ([]cay.Member, error) {
	rows, err := s.r.QueryContext(ctx, `SELECT m.team, m.person, m.role, m.added_at FROM members m JOIN teams t ON t.id = m.team
		WHERE m.person = $1 AND t.removed_at = 0 ORDER BY m.added_at, m.team`, person)
	return collect(rows, err, scanMember)
}

// AddAccessToken records a token.
func (s *DB) AddAccessToken(ctx context.Context, t cay.AccessToken) error {
	_, err := s.exec(ctx, `INSERT INTO access_tokens (`+tokenColumns+`) VALUES ($1, $2, $3, $4, $5, $6)`,
		t.ID, t.Person, t.Name, hex.EncodeToString(t.Hash[:]), t.Mask, millis(t.CreatedAt))
	return dbError(err)
}

// AccessTokenByHash finds the token with that hash.
func (s *DB) AccessTokenByHash(ctx context.Context, hash [32]byte) (cay.AccessToken, error) {
	row := s.r.QueryRowContext(ctx, `SELECT `+tokenColumns+` FROM access_tokens WHERE hash = $1`, hex.EncodeToString(hash[:]))
	return one(row, scanToken, "access token", "with this hash")
}

// AccessTokens lists a person's tokens, oldest first.
func (s *DB) AccessTokens(ctx context.Context, person cay.PersonID) ([]cay.AccessToken, error) {
	rows, err := s.r.QueryContext(ctx, `SELECT `+tokenColumns+` FROM access_tokens WHERE person = $1 ORDER BY created_at, id`, person)
	return collect(rows, err, scanToken)
}

// RemoveAccessToken removes a person's token.
func (s *DB) RemoveAccessToken(ctx context.Context, person cay.PersonID, id string) error {
	res, err := s.exec(ctx, `DELETE FROM access_tokens WHERE person = $1 AND id = $2`, person, id)
	return changed("access token", id, res, err)
}

func scanPerson(row scanner) (cay.Person, error) {
	var p cay.Person
	var created, disabled int64
	err := row.Scan(&p.ID, &p.Email, &p.Name, &created, &disabled)
	p.CreatedAt, p.DisabledAt = fromMillis(created), fromMillis(disabled)
	return p, err
}

func scanMember(row scanner) (cay.Member, error) {
	var m cay.Member
	var added int64
	err := row.Scan(&m.Team, &m.Person, &m.Role, &added)
	m.AddedAt = fromMillis(added)
	return m, err
}

func scanToken(row scanner) (cay.AccessToken, error) {
	var t cay.AccessToken
	var hash string
	var created int64
	if err := row.Scan(&t.ID, &t.Person, &t.Name, &hash, &t.Mask, &created); err != nil {
		return t, err
	}
	t.CreatedAt = fromMillis(created)
	b, err := hex.DecodeString(hash)
	if err != nil || len(b) != len(t.Hash) {
		return t, cay.Errorf(cay.Internal, "the record of access token %s is damaged", t.ID)
	}
	copy(t.Hash[:], b)
	return t, nil
}
