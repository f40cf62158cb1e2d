package rest

import (
	"net/http"
	"net/url"

	"github.com/go-chi/chi/v5"

	"github.com/cay-run/cay"
)

// pathIDs are the ids of the path that have one form each. Templates and
// secrets go by names as well, and are looked at where they are found.
var pathIDs = map[string]func(string) bool{
	"sandboxID":    func(s string) bool { return cay.ValidID(string(sandboxID(s))) },
	"checkpointID": cay.ValidID,
	"budgetID":     cay.ValidUUID,
	"buildID":      cay.ValidUUID,
	"keyID":        cay.ValidUUID,
	"webhookID":    cay.ValidUUID,
	"eventID":      cay.ValidUUID,
	"personID":     cay.ValidUUID,
}

// checkIDs refuses an id of the path that nothing can have, before anything is
// looked up.
func (s *server) checkIDs(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		params := chi.RouteContext(r.Context()).URLParams
		for i, name := range params.Keys {
			valid, checked := pathIDs[name]
			if !checked {
				continue
			}
			id, err := url.PathUnescape(params.Values[i])
			if err != nil || !valid(id) {
				s.fail(w, r, cay.Errorf(cay.Invalid, "%s: %.80q has not the form of an id", name, params.Values[i]))
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}
