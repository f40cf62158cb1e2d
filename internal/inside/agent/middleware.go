package agent

import (
	"crypto/subtle"
	"encoding/json"
	"fmt"
	"net/http"
	"runtime/debug"
	"strings"

	"github.com/cay-run/cay/internal/inside/agent/fs"
	"github.com/cay-run/cay/internal/inside/agent/wire"
)

// methods are those that a route can have; they decide between 404 and 405.
var methods = []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodPatch}

// routed serves what mux has a route for, and says so in JSON where it has
// none.
func routed(mux *http.ServeMux) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, pattern := mux.Handler(r); pattern != "" {
			mux.ServeHTTP(w, r)
			return
		}
		var allowed []string
		for _, m := range methods {
			probe := &http.Request{Method: m, URL: r.URL, Host: r.Host}
			if _, pattern := mux.Handler(probe); pattern != "" {
				allowed = append(allowed, m)
			}
		}
		if len(allowed) == 0 {
			wire.Error(w, http.StatusNotFound, "not found: "+r.URL.Path)
			return
		}
		w.Header().Set("Allow", strings.Join(allowed, ", "))
		wire.Error(w, http.StatusMethodNotAllowed, "method not allowed: "+r.Method)
	})
}

// authorised lets calls through that carry the access token. /health is open,
// and /init and the files decide themselves.
func (a *Agent) authorised(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		open := r.URL.Path == "/health" || r.URL.Path == "/init" || fs.OwnAuth(r.URL.Path)
		if !open && !a.trusts(r) {
			wire.Error(w, http.StatusUnauthorized, "unauthorized access, please provide a valid access token or method signing if supported")
			return
		}
		next.ServeHTTP(w, r)
	})
}

// trusts reports whether a request carries the token, where there is one.
func (a *Agent) trusts(r *http.Request) bool {
	token := a.Token()
	return token == "" || subtle.ConstantTimeCompare([]byte(token), []byte(r.Header.Get("X-Access-Token"))) == 1
}

// cors lets web pages of any origin call everything and see every header. No
// cookie means anything here, so the wildcards cost nothing.
func cors(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Access-Control-Allow-Origin", "*")
		h.Set("Access-Control-Expose-Headers", "*")
		if r.Method == http.MethodOptions {
			h.Set("Access-Control-Allow-Methods", "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS")
			asked := r.Header.Get("Access-Control-Request-Headers")
			if asked == "" {
				asked = "*"
			}
			h.Set("Access-Control-Allow-Headers", asked)
			h.Set("Access-Control-Max-Age", "7200")
			h.Add("Vary", "Access-Control-Request-Headers")
			w.WriteHeader(http.StatusNoContent)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// uncompressed makes RPC answers go out as they are, whatever a client offers:
// a stream's frames must leave at once, and some clients offer more than they
// can read.
func uncompressed(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/process.") || strings.HasPrefix(r.URL.Path, "/filesystem.") {
			for _, name := range []string{"Accept-Encoding", "Connect-Accept-Encoding", "Grpc-Accept-Encoding"} {
				r.Header.Del(name)
			}
		}
		next.ServeHTTP(w, r)
	})
}

// recovered turns a panic into a line of the log and a 500. Once an answer has
// begun, only cutting it off tells the client.
func (a *Agent) recovered(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen := &beginning{ResponseWriter: w}
		defer func() {
			v := recover()
			if v == nil {
				return
			}
			if v == http.ErrAbortHandler {
				panic(v)
			}
			a.log.Error("handler panicked", "method", r.Method, "path", r.URL.Path,
				"panic", fmt.Sprint(v), "stack", string(debug.Stack()))
			if seen.begun {
				panic(http.ErrAbortHandler)
			}
			wire.Error(w, http.StatusInternalServerError, "internal error")
		}()
		next.ServeHTTP(seen, r)
	})
}

// beginning notes whether an answer has begun.
type beginning struct {
	http.ResponseWriter
	begun bool
}

func (b *beginning) WriteHeader(code int) {
	b.begun = true
	b.ResponseWriter.WriteHeader(code)
}

func (b *beginning) Write(p []byte) (int, error) {
	b.begun = true
	return b.ResponseWriter.Write(p)
}

// Flush sends what is buffered.
func (b *beginning) Flush() {
	b.begun = true
	_ = http.NewResponseController(b.ResponseWriter).Flush() // a writer that cannot has nothing buffered
}

// Unwrap lets http.ResponseController reach the connection.
func (b *beginning) Unwrap() http.ResponseWriter { return b.ResponseWriter }

// writeJSON answers 200 with v.
func writeJSON(w http.ResponseWriter, v any) {
	body, err := json.Marshal(v)
	if err != nil { // cannot happen: plain structs and maps
		panic(err)
	}
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	_, _ = w.Write(body) // the client is gone: nothing to do
}
