package proxy

import (
	"encoding/base64"
	"net/http"
	"slices"
	"strings"

	"github.com/cay-run/cay/internal/auth"
	"github.com/cay-run/cay/internal/edge/doors"
)

// A client that sends its credentials to every address of the server sends
// them to the ports of sandboxes too, whose programs must not get them: they
// open the API, and other sandboxes.

// withoutCredentials takes Cay's own credentials out of a request's headers:
// those of the API and of volumes' files, which mean nothing in any sandbox, and
// the sandbox's own tokens but for the ports of the agent and the interpreter,
// which ask for them.
func (t *trip) withoutCredentials(h http.Header) {
	delete(h, "X-Api-Key")
	delete(h, "X-Admin-Token")
	for _, name := range []string{"X-Access-Token", "Authorization"} {
		if !slices.ContainsFunc(h[name], t.isCredential) {
			continue
		}
		if kept := slices.DeleteFunc(slices.Clone(h[name]), t.isCredential); len(kept) > 0 {
			h[name] = kept
		} else {
			delete(h, name)
		}
	}
}

// isCredential reports whether a header's value holds a credential that the
// port of a trip does not get: alone, as a bearer's, or as either half of a
// name and password.
func (t *trip) isCredential(value string) bool {
	value = strings.TrimSpace(value)
	if t.isSecret(value) {
		return true
	}
	scheme, rest, _ := strings.Cut(value, " ")
	rest = strings.TrimSpace(rest)
	if !strings.EqualFold(scheme, "basic") {
		return t.isSecret(rest)
	}
	pair, err := base64.StdEncoding.DecodeString(rest)
	if err != nil {
		pair, err = base64.RawStdEncoding.DecodeString(rest)
	}
	name, password, _ := strings.Cut(string(pair), ":")
	return err == nil && (t.isSecret(name) || t.isSecret(password))
}

func (t *trip) isSecret(s string) bool {
	if auth.IsKey(s) || auth.IsAccessToken(s) || auth.IsSession(s) || auth.IsVolumeToken(s) {
		return true
	}
	if s == "" || doors.Is(t.port) {
		return false
	}
	return same(s, t.target.AccessToken) || same(s, t.target.TrafficToken)
}
