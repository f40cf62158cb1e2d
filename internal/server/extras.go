package server

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/config"
	"github.com/cay-run/cay/internal/image"
	"github.com/cay-run/cay/internal/template"
)

// extraLine is one of the lines with which the operator is told how the build
// of an extra goes; the last one is Done or has an Error.
type extraLine struct {
	Step    string   `json:"step,omitempty"`
	Percent int      `json:"percent,omitempty"`
	Done    bool     `json:"done,omitempty"`
	Error   string   `json:"error,omitempty"`
	Hint    string   `json:"hint,omitempty"`
	Kind    cay.Kind `json:"kind,omitempty"`
}

// lastLine says how it ended.
func lastLine(err error) extraLine {
	if err == nil {
		return extraLine{Done: true}
	}
	out := extraLine{Error: err.Error(), Kind: cay.KindOf(err)}
	var ours *cay.Error
	if errors.As(err, &ours) {
		out.Hint = ours.Hint
	}
	return out
}

func (l extraLine) err() error {
	if l.Done {
		return nil
	}
	return cay.Errorf(l.Kind, "%s", l.Error).WithHint("%s", l.Hint)
}

// extraRoutes are the operator's. Who leaves ends the build.
func (s *Server) extraRoutes(routes *http.ServeMux) {
	routes.HandleFunc("POST /extras/{name}", func(w http.ResponseWriter, r *http.Request) {
		var mu sync.Mutex
		out, flush := json.NewEncoder(w), http.NewResponseController(w)
		tell := func(l extraLine) {
			mu.Lock()
			defer mu.Unlock()
			_ = errors.Join(out.Encode(l), flush.Flush()) // who asked may be gone
		}
		tell(lastLine(s.addExtra(r.Context(), r.PathValue("name"), func(step string, percent int) {
			tell(extraLine{Step: step, Percent: percent})
		})))
	})
	routes.HandleFunc("DELETE /extras/{name}", func(w http.ResponseWriter, r *http.Request) {
		_ = json.NewEncoder(w).Encode(lastLine(s.removeExtra(r.Context(), r.PathValue("name"))))
	})
}

// addExtra builds a template that Cay brings but does not build by itself, and
// offers it. Later servers of this data directory have it too.
func (s *Server) addExtra(ctx context.Context, name string, progress image.Progress) error {
	if err := s.checkExtra(ctx, name); err != nil {
		return err
	}
	built, err := s.templates.Build(ctx, name, progress)
	if err != nil {
		return err
	}
	return s.publish(ctx, built)
}

// checkExtra refuses what is no extra, and a name under which the first team
// has a template of its own.
func (s *Server) checkExtra(ctx context.Context, name string) error {
	if !slices.Contains(template.Extras(), name) {
		return cay.Errorf(cay.NotFound, "Cay brings no template %.80q that must be asked for", name).
			WithHint("there is: %s", strings.Join(template.Extras(), ", "))
	}
	if slices.Contains(s.templates.Wanted(), name) {
		return nil
	}
	switch t, err := s.control.Template(ctx, s.team.ID, name); {
	case cay.KindOf(err) == cay.NotFound:
		return nil
	case err != nil:
		return err
	case t.Team == s.team.ID:
		return cay.Errorf(cay.Conflict, "there is a template %q that was built here", name).
			WithHint("build it under another name, then: cay template delete %s", name)
	}
	return nil
}

// removeExtra takes an extra away. Its room on the disk is given back when
// nothing needs it any more.
func (s *Server) removeExtra(ctx context.Context, name string) error {
	if !slices.Contains(template.Extras(), name) || !slices.Contains(s.templates.Wanted(), name) {
		return cay.Errorf(cay.NotFound, "no template %.80q was added here", name)
	}
	if err := s.control.RemoveTemplate(ctx, s.team.ID, name); err != nil && cay.KindOf(err) != cay.NotFound {
		return err
	}
	return s.templates.Forget(name)
}

// AddExtra asks the server of a configuration to build one of the templates
// that Cay brings but does not build by itself.
func AddExtra(ctx context.Context, cfg config.Config, name string, progress image.Progress) error {
	return askExtra(ctx, cfg, http.MethodPost, name, progress)
}

// RemoveExtra asks it to take one away.
func RemoveExtra(ctx context.Context, cfg config.Config, name string) error {
	return askExtra(ctx, cfg, http.MethodDelete, name, func(string, int) {})
}

func askExtra(ctx context.Context, cfg config.Config, method, name string, progress image.Progress) error {
	var last extraLine
	err := callOperator(ctx, cfg, method, "/extras/"+url.PathEscape(name), func(answer *json.Decoder) error {
		for !last.Done && last.Error == "" {
			last = extraLine{}
			if err := answer.Decode(&last); err != nil {
				return err
			}
			if last.Step != "" {
				progress(last.Step, last.Percent)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return last.err()
}
