package store

import (
	"cmp"
	"context"
	"database/sql"

	"github.com/cay-run/cay"
)

const sshKeyColumns = `id, team, name, fingerprint, public, created_at, added_by`

// AddSSHKey records a key.
func (s *DB) AddSSHKey(ctx context.Context, k cay.SSHKey, most int) error {
	return s.tx(ctx, func(tx *sql.Tx) error {
		if err := s.holdTeam(ctx, tx, k.Team); err != nil {
			return err
		}
		var n int
		if err := tx.QueryRowContext(ctx, `SELECT COUNT(*) FROM ssh_keys WHERE team = $1`, k.Team).Scan(&n); err != nil {
			return err
		}
		if n >= most {
			return cay.Errorf(cay.Exhausted, "a team has at most %d SSH keys", most).WithCode(cay.CodeTeamLimit).WithHint("remove one")
		}
		_, err := tx.ExecContext(ctx,
			`INSERT INTO ssh_keys (`+sshKeyColumns+`) VALUES ($1, $2, $3, $4, $5, $6, $7)`,
			k.ID, k.Team, k.Name, k.Fingerprint, k.Public, millis(k.CreatedAt), asJSON(k.AddedBy))
		return err
	})
}

// SSHKeys lists a team's keys, oldest first.
func (s *DB) SSHKeys(ctx context.Context, team cay.TeamID) ([]cay.SSHKey, error) {
	rows, err := s.r.QueryContext(ctx,
		`SELECT `+sshKeyColumns+` FROM ssh_keys WHERE team = $1 ORDER BY created_at, id`, team)
	return collect(rows, err, scanSSHKey)
}

// SSHKeyOpens reports whether a team has a key.
func (s *DB) SSHKeyOpens(ctx context.Context, team cay.TeamID, fingerprint string) (bool, error) {
	var n int
	err := s.r.QueryRowContext(ctx,
		`SELECT COUNT(*) FROM ssh_keys WHERE team = $1 AND fingerprint = $2`, team, fingerprint).Scan(&n)
	return n > 0, dbError(err)
}

// SSHKeyOf finds a team's key by its fingerprint.
func (s *DB) SSHKeyOf(ctx context.Context, team cay.TeamID, fingerprint string) (cay.SSHKey, error) {
	row := s.r.QueryRowContext(ctx, `SELECT `+sshKeyColumns+` FROM ssh_keys WHERE team = $1 AND fingerprint = $2`, team, fingerprint)
	return one(row, scanSSHKey, "SSH key", fingerprint)
}

// RemoveSSHKey removes a team's key.
func (s *DB) RemoveSSHKey(ctx context.Context, team cay.TeamID, id cay.SSHKeyID) error {
	res, err := s.exec(ctx, `DELETE FROM ssh_keys WHERE team = $1 AND id = $2`, team, id)
	if err != nil {
		return dbError(err)
	}
	if n, err := res.RowsAffected(); err != nil || n == 0 {
		return cmp.Or(err, notFound("SSH key", id))
	}
	return nil
}

func scanSSHKey(row scanner) (cay.SSHKey, error) {
	var k cay.SSHKey
	var created int64
	var addedBy string
	err := row.Scan(&k.ID, &k.Team, &k.Name, &k.Fingerprint, &k.Public, &created, &addedBy)
	k.CreatedAt = fromMillis(created)
	return k, fromJSON(err, addedBy, &k.AddedBy)
}
