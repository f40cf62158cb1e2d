package server

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/config"
)

// operatorSocket lies in the run directory. Only who may open it, root, is
// answered there: what concerns the whole machine is no team's business.
const operatorSocket = "operator.sock"

// report is the answer of a collection.
type report struct {
	Garbage []cay.Garbage `json:"garbage"`
	Error   string        `json:"error,omitempty"`
	Hint    string        `json:"hint,omitempty"`
}

// serveOperator answers on the socket until ctx ends.
func (s *Server) serveOperator(ctx context.Context) error {
	path := filepath.Join(s.cfg.Run, operatorSocket)
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) { // a killed server's
		return cay.Wrap(cay.Internal, err, "make room for %s", path)
	}
	l, err := new(net.ListenConfig).Listen(ctx, "unix", path)
	if err != nil {
		return cay.Wrap(cay.Internal, err, "listen on %s", path)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return errors.Join(cay.Wrap(cay.Internal, err, "close %s to others", path), l.Close())
	}
	routes := http.NewServeMux()
	routes.HandleFunc("POST /collect", func(w http.ResponseWriter, r *http.Request) {
		var out report
		garbage, err := s.Collect(r.Context(), r.URL.Query().Get("dry") != "")
		out.Garbage = append([]cay.Garbage{}, garbage...)
		var ours *cay.Error
		switch {
		case errors.As(err, &ours):
			out.Error, out.Hint = ours.Error(), ours.Hint
		case err != nil:
			out.Error = err.Error()
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(out) // who asked may be gone
	})
	s.packageRoutes(routes)
	s.extraRoutes(routes)
	face := &http.Server{Handler: routes, ReadHeaderTimeout: time.Minute}
	s.running.Go(func() {
		<-ctx.Done()
		face.Close()
	})
	s.running.Go(func() { _ = face.Serve(l) })
	return nil
}

// Collect asks the server of a configuration to remove what nothing needs, or
// with dry to say what it would remove.
func Collect(ctx context.Context, cfg config.Config, dry bool) ([]cay.Garbage, error) {
	route := "/collect"
	if dry {
		route += "?dry=1"
	}
	var out report
	if err := askOperator(ctx, cfg, http.MethodPost, route, &out); err != nil {
		return nil, err
	}
	if out.Error != "" {
		return out.Garbage, cay.Errorf(cay.Unavailable, "%s", out.Error).WithHint("%s", out.Hint)
	}
	return out.Garbage, nil
}

// askOperator calls a route of the operator's, and decodes its answer.
func askOperator(ctx context.Context, cfg config.Config, method, route string, out any) error {
	return callOperator(ctx, cfg, method, route, func(answer *json.Decoder) error { return answer.Decode(out) })
}

// callOperator calls a route of the operator's, and has its answer read.
func callOperator(ctx context.Context, cfg config.Config, method, route string, read func(*json.Decoder) error) error {
	path := filepath.Join(cfg.Run, operatorSocket)
	req, err := http.NewRequestWithContext(ctx, method, "http://server"+route, nil)
	if err != nil {
		return err
	}
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}}
	defer transport.CloseIdleConnections()
	resp, err := transport.RoundTrip(req)
	if errors.Is(err, os.ErrPermission) {
		return cay.Wrap(cay.Denied, err, "only the server's operator may ask for that").WithHint("run it as root")
	}
	if err != nil {
		return cay.Wrap(cay.Unavailable, err, "no server answers at %s", path).
			WithHint("start one with `cay up`, or set CAY_RUN_DIR to the server's")
	}
	defer resp.Body.Close()
	if err := read(json.NewDecoder(resp.Body)); err != nil {
		return cay.Wrap(cay.Unavailable, err, "the server's answer is unusable")
	}
	return nil
}
