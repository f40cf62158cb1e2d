package operator

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/cache"
	"github.com/cay-run/cay/internal/machine/node"
	"github.com/cay-run/cay/internal/trail"
)

// Listen makes the socket. Only root may open it. A socket that a killed server
// left is replaced.
func (d *Desk) Listen(ctx context.Context) (net.Listener, error) {
	path := d.cfg.Host.Operator()
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, cay.Wrap(cay.Internal, err, "make room for %s", path)
	}
	l, err := new(net.ListenConfig).Listen(ctx, "unix", path)
	if err != nil {
		return nil, cay.Wrap(cay.Internal, err, "listen on %s", path)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(cay.Wrap(cay.Internal, err, "close %s to others", path), l.Close())
	}
	return l, nil
}

// Serve answers on the socket until ctx ends and every request has ended.
func (d *Desk) Serve(ctx context.Context, l net.Listener) {
	face := &http.Server{
		Handler: trail.Follow(trail.Operator, d.routes()), ReadHeaderTimeout: time.Minute,
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	over := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(over)
		_ = face.Shutdown(context.WithoutCancel(ctx)) // requests end with ctx
	})
	_ = face.Serve(l)
	if !stop() {
		<-over
	}
}

func (d *Desk) routes() http.Handler {
	routes := http.NewServeMux()
	routes.HandleFunc("POST /collect", func(w http.ResponseWriter, r *http.Request) {
		dry := r.URL.Query().Get("dry") != ""
		garbage, err := d.Collect(r.Context(), dry)
		if !dry {
			err = d.record(r.Context(), "garbage.collected", "", err)
		}
		answer(w, report{Garbage: append([]cay.Garbage{}, garbage...), failure: failed(err)})
	})
	routes.HandleFunc("POST /keys/{name}", func(w http.ResponseWriter, r *http.Request) {
		key, err := d.newKey(r.Context(), r.PathValue("name"))
		err = d.record(r.Context(), "key.created", r.PathValue("name"), err)
		answer(w, newKey{Key: key, failure: failed(err)})
	})
	routes.HandleFunc("GET /admin-token", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, newKey{Key: d.cfg.AdminToken})
	})
	routes.HandleFunc("GET /loading", func(w http.ResponseWriter, _ *http.Request) {
		loading, err := d.cfg.Node.Loading()
		answer(w, loadingReport{loading, failed(err)})
	})
	routes.HandleFunc("GET /cache", func(w http.ResponseWriter, _ *http.Request) {
		state, err := d.cfg.Cached()
		answer(w, cacheReport{state, failed(err)})
	})
	d.packageRoutes(routes)
	d.extraRoutes(routes)
	d.verifyRoutes(routes)
	d.backupRoutes(routes)
	d.auditRoutes(routes)
	return routes
}

// answer encodes an answer; a client that has left does not get it.
func answer(w http.ResponseWriter, out any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(out)
}

// streamTo returns what encodes one line of an answer at a time.
func streamTo(w http.ResponseWriter) func(any) {
	out, flush := json.NewEncoder(w), http.NewResponseController(w)
	return func(line any) { _ = errors.Join(out.Encode(line), flush.Flush()) }
}

// failure is how an error travels: kind, code and hint included.
type failure struct {
	Error string   `json:"error,omitempty"`
	Kind  cay.Kind `json:"kind,omitempty"`
	Code  string   `json:"code,omitempty"`
	Hint  string   `json:"hint,omitempty"`
}

func failed(err error) failure {
	if err == nil {
		return failure{}
	}
	out := failure{Error: err.Error(), Kind: cay.KindOf(err)}
	var ours *cay.Error
	if errors.As(err, &ours) {
		out.Code, out.Hint = ours.Code, ours.Hint
	}
	return out
}

func (f failure) err() error {
	if f.Error == "" {
		return nil
	}
	return &cay.Error{Kind: f.Kind, Code: f.Code, Msg: f.Error, Hint: f.Hint}
}

// report is the answer of a collection.
type report struct {
	Garbage []cay.Garbage `json:"garbage"`
	failure
}

// loadingReport is the answer to the question of what sandboxes may still load.
type loadingReport struct {
	node.Loading
	failure
}

// cacheReport is the answer to the question of what the cache holds.
type cacheReport struct {
	cache.State
	failure
}

// newKey is the answer to the wish for a key, or for the admin token.
type newKey struct {
	Key string `json:"key,omitempty"`
	failure
}
