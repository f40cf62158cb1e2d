package proxy

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"net/http"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/guest"
)

// signedFiles finds the sandbox that a signed file URL belongs to. Where the
// SDK was given one address for all sandboxes such a URL names none, but only
// one sandbox's token makes its signature.
func (p *Proxy) signedFiles(r *http.Request) (route, verdict) {
	q := r.URL.Query()
	signature := q.Get("signature")
	if r.URL.Path != "/files" || signature == "" || p.cfg.Tokens == nil {
		return route{}, notOurs
	}
	user, expiry := q.Get("username"), q.Get("signature_expiration")
	ops := operations(r)
	if len(ops) == 0 {
		return route{}, notOurs
	}
	var found []cay.SandboxID
	for id, token := range p.cfg.Tokens() {
		for _, op := range ops {
			want := sign(q.Get("path"), op, user, token, expiry)
			if token != "" && subtle.ConstantTimeCompare([]byte(want), []byte(signature)) == 1 {
				found = append(found, id)
			}
		}
	}
	if len(found) != 1 {
		return route{}, broken
	}
	return route{id: found[0], port: guest.AgentPort}, ours
}

// operations names what a request's signature may be for.
func operations(r *http.Request) []string {
	method := r.Method
	if method == http.MethodOptions { // a browser asks before it calls
		method = r.Header.Get("Access-Control-Request-Method")
	}
	switch method {
	case http.MethodGet, http.MethodHead:
		return []string{"read"}
	case http.MethodPost:
		return []string{"write"}
	}
	return nil
}

// sign makes the signature of a file URL as the SDKs do.
func sign(path, op, user, token, expiry string) string {
	raw := path + ":" + op + ":" + user + ":" + token
	if expiry != "" {
		raw += ":" + expiry
	}
	sum := sha256.Sum256([]byte(raw))
	return "v1_" + base64.RawStdEncoding.EncodeToString(sum[:])
}
