package webhooks

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"strconv"
	"strings"
	"time"

	"github.com/cay-run/cay"
)

const (
	secretPrefix = "whsec_" // of Standard Webhooks: base64 follows
	secretLeast  = 8
	secretMost   = 512
	// overlap is how long the secret before signs too.
	overlap = 24 * time.Hour
)

// secrets are what signs the requests of a webhook.
type secrets struct {
	Secret string    `json:"secret"`
	Before string    `json:"before,omitempty"` // the one before
	Until  time.Time `json:"until,omitzero"`   // when that ends
}

// newSecret returns a secret of 32 random bytes.
func newSecret() string {
	var b [32]byte
	rand.Read(b[:])
	return secretPrefix + base64.StdEncoding.EncodeToString(b[:])
}

func placeOf(w cay.Webhook) string { return "webhook " + string(w.ID) }

// sealNew gives a webhook its first secret.
func (h *Hooks) sealNew(w *cay.Webhook, secret string) error {
	return h.seal(w, secrets{Secret: secret})
}

// sealNext gives a webhook another secret. The present one signs on for a
// while.
func (h *Hooks) sealNext(w *cay.Webhook, secret string, now time.Time) error {
	old, err := h.secretsOf(*w)
	if err != nil {
		return err
	}
	if old.Secret == secret {
		return cay.Errorf(cay.Invalid, "signatureSecret: is the present one")
	}
	return h.seal(w, secrets{Secret: secret, Before: old.Secret, Until: now.Add(overlap)})
}

func (h *Hooks) seal(w *cay.Webhook, s secrets) error {
	if n := len(s.Secret); n < secretLeast || n > secretMost {
		return cay.Errorf(cay.Invalid, "signatureSecret: must have %d to %d bytes", secretLeast, secretMost)
	}
	if text, ok := strings.CutPrefix(s.Secret, secretPrefix); ok {
		if _, err := base64.StdEncoding.DecodeString(text); err != nil {
			return cay.Errorf(cay.Invalid, "signatureSecret: base64 must follow %q", secretPrefix)
		}
	}
	plain, err := json.Marshal(s)
	if err != nil {
		return cay.Wrap(cay.Internal, err, "cannot record webhook %s", w.ID)
	}
	w.Sealed = h.sealer.Seal(plain, placeOf(*w))
	return nil
}

func (h *Hooks) secretsOf(w cay.Webhook) (s secrets, err error) {
	plain, err := h.sealer.Open(w.Sealed, placeOf(w))
	if err == nil {
		err = json.Unmarshal(plain, &s)
	}
	return s, err
}

// keyOf is what a secret means to Standard Webhooks: bytes in base64 behind the
// prefix, or the text itself.
func keyOf(secret string) []byte {
	if text, ok := strings.CutPrefix(secret, secretPrefix); ok {
		if key, err := base64.StdEncoding.DecodeString(text); err == nil {
			return key
		}
	}
	return []byte(secret)
}

// standard is the header webhook-signature: one signature for each secret that
// holds.
func (s secrets) standard(id string, at time.Time, body string) string {
	out := signStandard(s.Secret, id, at, body)
	if s.Before != "" && at.Before(s.Until) {
		out += " " + signStandard(s.Before, id, at, body)
	}
	return out
}

func signStandard(secret, id string, at time.Time, body string) string {
	mac := hmac.New(sha256.New, keyOf(secret))
	mac.Write([]byte(id + "." + strconv.FormatInt(at.Unix(), 10) + "." + body))
	return "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
}

// e2b is the header e2b-signature: a plain hash, as E2B's receivers expect. It
// is weaker than the other: a SHA-256 can be continued without its secret.
func (s secrets) e2b(body string) string {
	sum := sha256.Sum256([]byte(s.Secret + body))
	return base64.RawURLEncoding.EncodeToString(sum[:])
}
