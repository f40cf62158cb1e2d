package cay

import "time"

// SSHKeyID names a public key that opens a team's sandboxes over SSH.
type SSHKeyID string

// NewSSHKeyID returns a fresh UUID.
func NewSSHKeyID() SSHKeyID { return SSHKeyID(uuid()) }

// SSHKey is a public key whose owner may enter a team's sandboxes over SSH.
type SSHKey struct {
	ID          SSHKeyID
	Team        TeamID
	Name        string
	Fingerprint string // SHA256:…, unique in the team
	Public      string // in the form of authorized_keys, without a comment
	CreatedAt   time.Time
	AddedBy     *Origins // nil where no record has it
}
