package auth

import (
	"context"
	"crypto/rsa"
	"strings"
	"time"
	"unicode"

	"golang.org/x/crypto/ssh"

	"github.com/cay-run/cay"
)

const (
	maxSSHKeys   = 100 // of a team
	maxSSHName   = 128
	maxPublicKey = 16 << 10
	minRSABits   = 2048
	maxRSABits   = 8192 // a longer one only costs time
)

// AddSSHKey has a public key, in the form of authorized_keys, open a team's
// sandboxes. Without a name it is called as its comment says.
func (a *Auth) AddSSHKey(ctx context.Context, who cay.Caller, name, public string) (cay.SSHKey, error) {
	// The key reaches what is inside, so its maker must.
	if err := who.May(cay.WriteKeys | cay.ExecSandboxes); err != nil {
		return cay.SSHKey{}, err
	}
	team := who.Team
	key, comment, err := parsePublic(public)
	if err != nil {
		return cay.SSHKey{}, err
	}
	if name = strings.TrimSpace(name); name == "" {
		name = strings.TrimSpace(comment)
	}
	if len(name) > maxSSHName || strings.ContainsFunc(name, unicode.IsControl) {
		return cay.SSHKey{}, cay.Errorf(cay.Invalid, "name: must be at most %d printable characters", maxSSHName)
	}
	by := who.Origins()
	record := cay.SSHKey{
		ID: cay.NewSSHKeyID(), Team: team, Name: name, Fingerprint: ssh.FingerprintSHA256(key),
		Public:    strings.TrimSpace(string(ssh.MarshalAuthorizedKey(key))),
		CreatedAt: time.Now().UTC().Truncate(time.Millisecond), AddedBy: &by,
	}
	err = a.store.AddSSHKey(ctx, record, maxSSHKeys)
	if cay.KindOf(err) == cay.Conflict {
		err = cay.Wrap(cay.Conflict, err, "publicKey: the team has the key %s already", record.Fingerprint)
	}
	return record, err
}

// parsePublic reads a public key of a kind that is safe to trust.
func parsePublic(text string) (key ssh.PublicKey, comment string, err error) {
	if len(text) > maxPublicKey {
		return nil, "", cay.Errorf(cay.Invalid, "publicKey: has more than %d bytes", maxPublicKey)
	}
	key, comment, options, rest, err := ssh.ParseAuthorizedKey([]byte(text))
	switch {
	case err != nil && strings.Contains(text, "PRIVATE KEY"):
		return nil, "", cay.Errorf(cay.Invalid, "publicKey: that is a private key, which has to stay secret").
			WithHint("send the file that ends in .pub")
	case err != nil:
		return nil, "", cay.Errorf(cay.Invalid, "publicKey: is no public key in the form of authorized_keys").
			WithHint("such as the content of ~/.ssh/id_ed25519.pub")
	case len(options) > 0 || strings.TrimSpace(string(rest)) != "":
		return nil, "", cay.Errorf(cay.Invalid, "publicKey: must be one key without options")
	}
	switch key.Type() {
	case ssh.KeyAlgoED25519, ssh.KeyAlgoECDSA256, ssh.KeyAlgoECDSA384, ssh.KeyAlgoECDSA521,
		ssh.KeyAlgoSKED25519, ssh.KeyAlgoSKECDSA256:
		return key, comment, nil
	case ssh.KeyAlgoRSA:
		if c, ok := key.(ssh.CryptoPublicKey); ok {
			if r, ok := c.CryptoPublicKey().(*rsa.PublicKey); ok && r.N.BitLen() >= minRSABits && r.N.BitLen() <= maxRSABits {
				return key, comment, nil
			}
		}
		return nil, "", cay.Errorf(cay.Invalid, "publicKey: an RSA key must have %d to %d bits", minRSABits, maxRSABits)
	}
	return nil, "", cay.Errorf(cay.Invalid, "publicKey: keys of type %s are not taken", key.Type()).
		WithHint("make one with: ssh-keygen -t ed25519")
}

// SSHKeys lists a team's keys, oldest first.
func (a *Auth) SSHKeys(ctx context.Context, who cay.Caller) ([]cay.SSHKey, error) {
	if err := who.May(cay.ReadKeys); err != nil {
		return nil, err
	}
	return a.store.SSHKeys(ctx, who.Team)
}

// RemoveSSHKey has a key open nothing from now on.
func (a *Auth) RemoveSSHKey(ctx context.Context, who cay.Caller, id cay.SSHKeyID) error {
	if err := who.May(cay.WriteKeys); err != nil {
		return err
	}
	return a.store.RemoveSSHKey(ctx, who.Team, id)
}

// SSHKeyAdder is the party that added a team's SSH key; nil where no record says it.
func (a *Auth) SSHKeyAdder(ctx context.Context, team cay.TeamID, fingerprint string) (*cay.Origins, error) {
	k, err := a.store.SSHKeyOf(ctx, team, fingerprint)
	return k.AddedBy, err
}

// SSHKeyOpens reports whether a team has the key of a fingerprint.
func (a *Auth) SSHKeyOpens(ctx context.Context, team cay.TeamID, fingerprint string) (bool, error) {
	return a.store.SSHKeyOpens(ctx, team, fingerprint)
}
