package operator

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/template/builtin"
	"github.com/cay-run/cay/internal/template/image"
)

// extraLine is a line that tells the operator how the build of an extra goes;
// the last one is Done or has an Error.
type extraLine struct {
	Step    string `json:"step,omitempty"`
	Percent int    `json:"percent,omitempty"`
	Done    bool   `json:"done,omitempty"`
	failure
}

func lastLine(err error) extraLine { return extraLine{Done: err == nil, failure: failed(err)} }

// extraRoutes add and remove templates, and tell how far those are that the
// server builds by itself. The build of an extra is cancelled when the client
// disconnects.
func (d *Desk) extraRoutes(routes *http.ServeMux) {
	routes.HandleFunc("POST /extras/{name}", func(w http.ResponseWriter, r *http.Request) {
		tellSteps(w, func(progress image.Progress) error {
			name := r.PathValue("name")
			return d.record(r.Context(), "extra.added", name, d.addExtra(r.Context(), name, progress))
		})
	})
	routes.HandleFunc("GET /backlog", func(w http.ResponseWriter, r *http.Request) {
		tellSteps(w, func(progress image.Progress) error {
			return d.cfg.Backlog.Wait(r.Context(), r.URL.Query()["name"], progress)
		})
	})
	routes.HandleFunc("DELETE /extras/{name}", func(w http.ResponseWriter, r *http.Request) {
		name := r.PathValue("name")
		answer(w, lastLine(d.record(r.Context(), "extra.removed", name, d.removeExtra(r.Context(), name))))
	})
}

// tellSteps answers with the steps of some work and how it ended.
func tellSteps(w http.ResponseWriter, work func(image.Progress) error) {
	var mu sync.Mutex
	stream := streamTo(w)
	tell := func(l extraLine) {
		mu.Lock()
		defer mu.Unlock()
		stream(l)
	}
	tell(lastLine(work(func(step string, percent int) { tell(extraLine{Step: step, Percent: percent}) })))
}

// addExtra builds a template that Cay brings but does not build by itself, and
// offers it. Later servers of this data directory have it too.
func (d *Desk) addExtra(ctx context.Context, name string, progress image.Progress) error {
	if err := d.checkExtra(ctx, name); err != nil {
		return err
	}
	built, err := d.cfg.Templates.Build(ctx, name, progress)
	if err != nil {
		return err
	}
	return d.cfg.Publish(ctx, built)
}

// checkExtra refuses what is no extra, and a name under which the first team
// has a template of its own.
func (d *Desk) checkExtra(ctx context.Context, name string) error {
	if !slices.Contains(builtin.Extras(), name) {
		return cay.Errorf(cay.NotFound, "Cay brings no template %.80q that must be asked for", name).
			WithHint("there is: %s", strings.Join(builtin.Extras(), ", "))
	}
	if slices.Contains(d.cfg.Templates.Wanted(), name) {
		return nil
	}
	switch t, err := d.cfg.Control.Template(ctx, cay.ForTeam(d.cfg.Team.ID), name); {
	case cay.KindOf(err) == cay.NotFound:
		return nil
	case err != nil:
		return err
	case t.Team == d.cfg.Team.ID:
		return cay.Errorf(cay.Conflict, "there is a template %q that was built here", name).
			WithHint("build it under another name, then: cay template delete %s", name)
	}
	return nil
}

// removeExtra takes an extra away. Its room on the disk is given back when
// nothing needs it any more.
func (d *Desk) removeExtra(ctx context.Context, name string) error {
	if !slices.Contains(builtin.Extras(), name) || !slices.Contains(d.cfg.Templates.Wanted(), name) {
		return cay.Errorf(cay.NotFound, "no template %.80q was added here", name)
	}
	if err := d.cfg.Control.RemoveTemplate(ctx, cay.ForTeam(d.cfg.Team.ID), name); err != nil && cay.KindOf(err) != cay.NotFound {
		return err
	}
	return d.cfg.Templates.Forget(name)
}
