package auth

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"path/filepath"
	"strings"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/keys/seal"
)

const (
	secretFile = "secret.key"
	secretLen  = 32
)

// Tokens derives the tokens of sandboxes from their ids and one secret, so
// that a sandbox has the same tokens for life and no record holds them.
type Tokens struct{ secret []byte }

// NewTokens returns Tokens over a secret of at least 32 bytes.
func NewTokens(secret []byte) (*Tokens, error) {
	if len(secret) < secretLen {
		return nil, cay.Errorf(cay.Invalid, "the server's secret has %d bytes, fewer than %d", len(secret), secretLen)
	}
	return &Tokens{secret: append([]byte(nil), secret...)}, nil
}

// OpenTokens reads the secret from the data directory and makes it at the
// first start.
func OpenTokens(dataDir string) (*Tokens, error) {
	path := filepath.Join(dataDir, secretFile)
	secret, err := seal.Secret(path)
	if err != nil {
		return nil, err
	}
	if len(secret) != secretLen {
		return nil, cay.Errorf(cay.Internal, "the server's secret %s is damaged: %d bytes, not %d", path, len(secret), secretLen).
			WithHint("restore it from a backup; removing it changes the tokens of all sandboxes")
	}
	return NewTokens(secret)
}

// Access returns the token that a secure sandbox's agent asks for.
func (t *Tokens) Access(id cay.SandboxID) string { return t.derive("access", id) }

// asMark is between an access token and the party that has it alone.
const asMark = "~"

// AccessAs returns an access token that says which key or person uses it. It is for
// clients of Cay's own: signed addresses of files are made of the plain token before the
// mark.
func (t *Tokens) AccessAs(id cay.SandboxID, by cay.Origins) string {
	name := string(by.Key) + asMark + string(by.Person)
	if by.Key != "" {
		name = string(by.Key) + asMark
	}
	return t.Access(id) + asMark + name + asMark + t.derive("party", cay.SandboxID(string(id)+"/"+name))
}

// AccessOf returns the plain access token of a sandbox that a token stands for, and the
// party that has it alone, if it is one of AccessAs.
func (t *Tokens) AccessOf(id cay.SandboxID, token string) (access string, by cay.Origins, marked bool) {
	parts := strings.Split(token, asMark)
	if len(parts) != 4 {
		return token, by, false
	}
	by = cay.Origins{Key: cay.KeyID(parts[1]), Person: cay.PersonID(parts[2])}
	if !equal(token, t.AccessAs(id, by)) {
		return token, cay.Origins{}, false
	}
	return parts[0], by, true
}

// Traffic returns the token that the proxy asks for where a sandbox's ports
// are not public.
func (t *Tokens) Traffic(id cay.SandboxID) string { return t.derive("traffic", id) }

// Volume returns the token that opens the files of a team's volume. It names the
// team, which its check gives back.
func (t *Tokens) Volume(team cay.TeamID, id cay.VolumeID) string {
	return string(team) + "." + t.derive("volume", cay.SandboxID(string(team)+"/"+string(id)))
}

// IsVolumeToken reports whether a text has the form of a volume's token.
func IsVolumeToken(s string) bool {
	team, mac, _ := strings.Cut(s, ".")
	return cay.ValidUUID(team) && hasForm(mac, "", sha256.Size)
}

// Owner returns the team whose volume a token opens. It compares in constant
// time.
func (t *Tokens) Owner(id cay.VolumeID, token string) (team cay.TeamID, ok bool) {
	name, _, _ := strings.Cut(token, ".")
	team = cay.TeamID(name)
	return team, equal(token, t.Volume(team, id))
}

// CheckAccess reports in constant time whether token is the access token.
func (t *Tokens) CheckAccess(id cay.SandboxID, token string) bool {
	return equal(token, t.Access(id))
}

// CheckTraffic reports in constant time whether token is the traffic token.
func (t *Tokens) CheckTraffic(id cay.SandboxID, token string) bool {
	return equal(token, t.Traffic(id))
}

func equal(a, b string) bool {
	return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1
}

func (t *Tokens) derive(use string, id cay.SandboxID) string {
	mac := hmac.New(sha256.New, t.secret)
	mac.Write([]byte("cay " + use + " token\x00" + string(id)))
	return hex.EncodeToString(mac.Sum(nil))
}

// Sign returns a signature of a text, for links that carry their own
// permission.
func (t *Tokens) Sign(text string) string { return t.derive("link", cay.SandboxID(text)) }

// CheckSign reports in constant time whether a signature is of the text.
func (t *Tokens) CheckSign(text, signature string) bool { return equal(signature, t.Sign(text)) }
