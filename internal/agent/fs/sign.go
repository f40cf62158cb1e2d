package fs

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// The operations that a signature can allow.
const (
	opRead     = "read"
	opWrite    = "write"
	opReadTar  = "read-tar"
	opWriteTar = "write-tar"
)

// sign returns the signature of an operation on a path by an account. expiry
// is in Unix seconds as the query has it, empty for none.
func sign(path, op, account, token, expiry string) string {
	raw := path + ":" + op + ":" + account + ":" + token
	if expiry != "" {
		raw += ":" + expiry
	}
	sum := sha256.Sum256([]byte(raw))
	return "v1_" + base64.RawStdEncoding.EncodeToString(sum[:])
}

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
	given := q.Get("signature")
	if given == "" {
		return unauthorized("missing signature query parameter")
	}
	expiry := q.Get("signature_expiration")
	want := sign(q.Get("path"), op, q.Get("username"), token, expiry)
	if subtle.ConstantTimeCompare([]byte(given), []byte(want)) != 1 {
		return unauthorized("invalid signature")
	}
	if expiry == "" {
		return nil
	}
	// Who signs nonsense gets it refused.
	if at, err := strconv.ParseInt(expiry, 10, 64); err != nil || at < now.Unix() {
		return unauthorized("signature is already expired")
	}
	return nil
}
