package server_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/cay-run/cay/internal/machine/snapshot"
	"github.com/cay-run/cay/internal/server"
	"github.com/cay-run/cay/internal/server/servertest"
	"github.com/cay-run/cay/internal/template/builtin"
	"github.com/cay-run/cay/internal/template/image"
)

// heldImages makes images when it is let, by the name of the recipe.
type heldImages struct {
	builtin.Images
	began chan string
	let   chan struct{}
}

func (i heldImages) Build(ctx context.Context, r image.Recipe, files []image.File, p image.Progress) (string, error) {
	p(r.Name+": fetching packages", 40)
	i.began <- r.Name
	select {
	case <-i.let:
	case <-ctx.Done():
		return "", ctx.Err()
	}
	return i.Images.Build(ctx, r, files, p)
}

// A fresh server serves before it has a template: a create is told how far its template
// is, and that it may be sent again; the first one that is built stands for the code
// interpreter.
func TestServesBeforeItsTemplates(t *testing.T) {
	w := servertest.New(t)
	held := heldImages{began: make(chan string, 8), let: make(chan struct{}, 8)}
	s := w.Begin(func(on *server.Machine) {
		inner := on.Images
		on.Images = func(dir *snapshot.Dir) builtin.Images {
			held.Images = inner(dir)
			return held
		}
	})
	s.StandIn()
	w.Run(s)
	create := func() (int, string) {
		return call(t, w, w.Key, "POST", "/v2/sandboxes", `{"templateID":"code-interpreter-v1"}`)
	}
	if first := <-held.began; !strings.Contains(first, "python") {
		t.Errorf("the first template is %s", first)
	}
	code, text := create()
	if code != http.StatusServiceUnavailable || !strings.Contains(text, "template_building") {
		t.Errorf("before the template is there: %d %s", code, text)
	}
	held.let <- struct{}{}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	must(t, w.Operator().WaitForTemplates(ctx, []string{builtin.CodeInterpreterPython}, func(string, int) {}))
	if code, text := create(); code != http.StatusCreated {
		t.Errorf("once it is there: %d %s", code, text)
	}
	close(held.let)
	must(t, w.Operator().WaitForTemplates(ctx, nil, func(string, int) {}))
}
