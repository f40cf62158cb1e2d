package rest

import (
	"net/http"

	"github.com/go-chi/chi/v5"

	"github.com/cay-run/cay/internal/keys/identity"
)

// Identity is the issuer of sandboxes' identity tokens.
type Identity interface {
	Discovery() []byte
	Keys() ([]byte, error)
}

// mountIdentity adds the two documents that others read to check identity
// tokens. They are for every client, in browsers of any origin too, and hold
// nothing of a team.
func (s *server) mountIdentity(r chi.Router, id Identity) {
	r.Get(identity.DiscoveryPath, func(w http.ResponseWriter, _ *http.Request) {
		publish(w, id.Discovery())
	})
	r.Get(identity.KeysPath, func(w http.ResponseWriter, r *http.Request) {
		keys, err := id.Keys()
		if err != nil {
			s.fail(w, r, err)
			return
		}
		publish(w, keys)
	})
}

func publish(w http.ResponseWriter, document []byte) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "public, max-age=3600") // a key is published for longer before it signs
	h.Set("Access-Control-Allow-Origin", "*")
	_, _ = w.Write(document) // the client may be gone
}
