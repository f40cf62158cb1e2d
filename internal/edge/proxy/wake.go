package proxy

import (
	"cmp"
	"crypto/subtle"
	"net/http"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/guest"
)

// wake has a paused sandbox run for a request that may enter it. When it
// reports neither that nor an error, it has answered.
func (p *Proxy) wake(w http.ResponseWriter, r *http.Request, at place, sleeper Target) (woken bool, err error) {
	if answered(w, r, at, sleeper) {
		return false, nil
	}
	if at.port == guest.AgentPort && preflight(w, r) {
		return false, nil
	}
	if at.port == guest.AgentPort && !opensAgent(r, sleeper.AccessToken) {
		return false, cay.Errorf(cay.Denied, "the request has no token of sandbox %s", at.id)
	}
	if err := p.cfg.Wake(r.Context(), at.id); err != nil {
		p.cfg.Log.WarnContext(r.Context(), "a sandbox could not be woken", "sandbox", at.id, "err", err)
		return false, err
	}
	return true, nil
}

// preflight answers a browser that asks whether a page may call the agent, and
// reports whether it did. The question carries no token and is worth no wake;
// the call that follows brings the one and is worth the other.
func preflight(w http.ResponseWriter, r *http.Request) bool {
	if r.Method != http.MethodOptions || r.Header.Get("Access-Control-Request-Method") == "" {
		return false
	}
	h := w.Header()
	h.Set("Access-Control-Allow-Origin", "*")
	h.Set("Access-Control-Allow-Methods", "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS")
	h.Set("Access-Control-Allow-Headers", cmp.Or(r.Header.Get("Access-Control-Request-Headers"), "*"))
	h.Set("Access-Control-Max-Age", "7200")
	h.Add("Vary", "Access-Control-Request-Headers")
	w.WriteHeader(http.StatusNoContent)
	return true
}

// opensAgent reports whether a request brings the credential that the agent
// will ask for: waking a sandbox costs more than refusing a stranger.
func opensAgent(r *http.Request, token string) bool {
	if token == "" {
		return true
	}
	if same(r.Header.Get("X-Access-Token"), token) {
		return true
	}
	op, signature := signatureOf(r)
	return op != "" && signature.IsBy(op, token) && !signature.Expired(time.Now())
}

func same(got, want string) bool {
	return subtle.ConstantTimeCompare([]byte(got), []byte(want)) == 1
}
