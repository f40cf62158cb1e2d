package proxy

import (
	"net/http"
	"time"

	"github.com/cay-run/cay/internal/guest"
)

// signedFiles finds the sandbox that a signed file URL belongs to. A URL of an
// SDK that knows one address for all sandboxes names none, but only one
// sandbox's token makes its signature.
//
// The search costs a digest for each sandbox and is open to strangers. So a
// signature that no token can have made, or whose time is over, starts none,
// and one search runs at a time.
func (p *Proxy) signedFiles(r *http.Request) (route, verdict) {
	op, s := signatureOf(r)
	if op == "" || s.Value == "" || p.cfg.Tokens == nil {
		return route{}, notOurs
	}
	if !s.Plausible() || s.Expired(time.Now()) {
		return route{}, broken
	}
	select {
	case p.search <- struct{}{}:
		defer func() { <-p.search }()
	case <-r.Context().Done():
		return route{}, broken
	}
	for id, token := range p.cfg.Tokens(r.Context()) {
		if token != "" && s.IsBy(op, token) {
			return route{id: id, port: guest.AgentPort}, ours
		}
	}
	return route{}, broken
}

// signatureOf reads a request's signature and the operation that it must
// allow, which is empty where none replaces the access token.
func signatureOf(r *http.Request) (op string, s guest.Signature) {
	method := r.Method
	if method == http.MethodOptions { // a browser asks before it calls
		method = r.Header.Get("Access-Control-Request-Method")
	}
	if op = guest.FileOperation(method, r.URL.Path); op == "" {
		return "", s
	}
	return op, guest.SignatureOf(r.URL.Query())
}
