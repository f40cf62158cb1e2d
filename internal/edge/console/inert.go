package console

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
)

// inert serves calls of the page's scripts, whose answers may hold what a guest
// says: none is a document, a script or a style of this origin, and none has a
// header that a browser applies beyond the answer.
func inert(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !called(r) {
			http.Error(w, "This address is for the console's own calls", http.StatusForbidden)
			return
		}
		next.ServeHTTP(&plain{ResponseWriter: w}, r)
	})
}

const inertPolicy = "sandbox; default-src 'none'; frame-ancestors 'none'"

// called reports whether a script asks with fetch or for a websocket, or a program; a
// navigation, a frame, an image and a worker say that they are one.
func called(r *http.Request) bool {
	dest := r.Header.Get("Sec-Fetch-Dest")
	return r.Method != http.MethodOptions && (dest == "" || dest == "empty" || dest == "websocket")
}

// guarded keeps the console's credentials from guests, and asks for a header that
// no other page can send.
func guarded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if scheme, _, _ := strings.Cut(r.Header.Get("Authorization"), " "); scheme != "" && !strings.EqualFold(scheme, "basic") {
			http.Error(w, "A guest is given no session and no key", http.StatusBadRequest)
			return
		}
		for _, name := range []string{"Cookie", "X-Api-Key", "X-Admin-Token", "X-Team-Id"} {
			r.Header.Del(name)
		}
		next.ServeHTTP(w, r)
	})
}

// kept are the headers of an answer that the page reads, and those that say how
// its body is read.
var kept = []string{
	"Content-Type", "Content-Length", "Content-Encoding", "Content-Range", "Accept-Ranges", "Etag", "Last-Modified", "Date", "Vary", "Trailer",
	"Retry-After", "Should-Retry", "X-Next-Token", "X-Request-Id", "Ratelimit-Limit", "Ratelimit-Remaining", "Ratelimit-Reset",
	"Cay-Replay", "Cay-Terminal-Size", // of a terminal
	// The guards of this origin.
	"Content-Security-Policy", "Cross-Origin-Opener-Policy", "Cross-Origin-Resource-Policy", "X-Frame-Options", "X-Content-Type-Options",
	"Referrer-Policy", "Permissions-Policy", "Cache-Control",
}

// switched are those of an answer that makes the connection a websocket, which is no
// document.
var switched = []string{"Upgrade", "Connection", "Sec-Websocket-Accept", "Sec-Websocket-Protocol"}

// plain takes all other headers out of an answer.
type plain struct {
	http.ResponseWriter
	begun bool
}

func (p *plain) WriteHeader(code int) {
	p.strip(code)
	p.begun = p.begun || code >= 200
	p.ResponseWriter.WriteHeader(code)
}

func (p *plain) Write(b []byte) (int, error) {
	if !p.begun {
		p.strip(http.StatusOK)
		p.begun = true
	}
	return p.ResponseWriter.Write(b)
}

// Unwrap is for http.ResponseController. A handler that flushes has written its
// head before.
func (p *plain) Unwrap() http.ResponseWriter { return p.ResponseWriter }

func (p *plain) strip(code int) {
	h := p.Header()
	for name := range h {
		if code == http.StatusSwitchingProtocols && slices.Contains(switched, name) {
			continue
		}
		if !slices.Contains(kept, name) && !strings.HasPrefix(name, http.TrailerPrefix) {
			delete(h, name)
		}
	}
	// A guest's own would be beside or in place of ours.
	guard(h)
	h.Set("Content-Security-Policy", inertPolicy)
	h.Set("Cache-Control", "no-store")
}

func writeJSON(w http.ResponseWriter, v any) { _ = json.NewEncoder(w).Encode(v) }
