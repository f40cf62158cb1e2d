package fs

import (
	"crypto/subtle"
	"net/http"
	"net/url"
	"time"

	"github.com/cay-run/cay/internal/guest"
)

// authorize lets a request in that carries the access token, or, where op is
// not empty, a signature made with it.
func authorize(h http.Header, q url.Values, op, token string, now time.Time) error {
	if token == "" {
		return nil
	}
	if given := h.Get("X-Access-Token"); given != "" {
		if subtle.ConstantTimeCompare([]byte(given), []byte(token)) != 1 {
			return unauthorized("access token in header 'X-Access-Token' does not match")
		}
		return nil
	}
	if op == "" {
		return unauthorized("missing access token in header 'X-Access-Token'")
	}
	s := guest.SignatureOf(q)
	switch {
	case s.Value == "":
		return unauthorized("missing signature query parameter")
	case !s.IsBy(op, token):
		return unauthorized("invalid signature")
	case s.Expired(now):
		return unauthorized("signature is already expired")
	}
	return nil
}
