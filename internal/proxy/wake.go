package proxy

import (
	"crypto/subtle"
	"net/http"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/guest"
)

// wake has a paused sandbox run for a request that may enter it. When it
// returns neither a lane nor an error, it has answered.
func (p *Proxy) wake(w http.ResponseWriter, r *http.Request, rt route, sleeper Target) (Target, *lane, error) {
	if a, no := refuse(r, rt, sleeper); no {
		a.write(w, r)
		return Target{}, nil, nil
	}
	if rt.port == guest.AgentPort && !opensAgent(r, sleeper.AccessToken) {
		return Target{}, nil, cay.Errorf(cay.Denied, "the request has no token of sandbox %s", rt.id)
	}
	if err := p.cfg.Wake(r.Context(), rt.id); err != nil {
		p.cfg.Log.Warn("a sandbox could not be woken", "sandbox", rt.id, "err", err)
		return Target{}, nil, err
	}
	return p.lane(rt.id)
}

// opensAgent reports whether a request brings what the agent will ask for:
// waking a sandbox costs more than refusing a stranger.
func opensAgent(r *http.Request, token string) bool {
	if token == "" {
		return true
	}
	if same(r.Header.Get("X-Access-Token"), token) {
		return true
	}
	q := r.URL.Query()
	signature := q.Get("signature")
	if r.URL.Path != "/files" || signature == "" {
		return false
	}
	for _, op := range operations(r) {
		if same(signature, sign(q.Get("path"), op, q.Get("username"), token, q.Get("signature_expiration"))) {
			return true
		}
	}
	return false
}

func same(got, want string) bool {
	return subtle.ConstantTimeCompare([]byte(got), []byte(want)) == 1
}
