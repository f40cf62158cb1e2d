package control_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/auth"
	"github.com/cay-run/cay/internal/control"
	"github.com/cay-run/cay/internal/template/builtin"
)

// A template that the server is still building says how far it is, in place of
// that it is not there, and is listed.
func TestTemplatesThatAreBeingBuilt(t *testing.T) {
	w := newWorld(t)
	tokens, err := auth.NewTokens(make([]byte, 32))
	if err != nil {
		t.Fatal(err)
	}
	backlog := builtin.NewBacklog()
	w.c, err = control.Open(t.Context(), control.Config{
		Store: w.store, Node: w.node, NodeID: "n", Tokens: tokens, Logs: w.logs, Reserved: []string{"base", "desktop"}, Backlog: backlog,
	})
	if err != nil {
		t.Fatal(err)
	}
	state := func(name string) cay.BuildState {
		list, err := w.c.Templates(t.Context(), w.who())
		if err != nil {
			t.Fatal(err)
		}
		for _, one := range list {
			if one.Names[0] == name {
				return one.BuildState
			}
		}
		return ""
	}
	backlog.Begin([]string{"desktop", "base"})
	backlog.Progress("desktop: installing", 40)
	for _, ref := range []string{"desktop", "Desktop:default"} {
		_, err := w.c.Create(t.Context(), w.who(), cay.CreateSpec{Template: ref, Timeout: time.Hour})
		var ours *cay.Error
		if !errors.As(err, &ours) || ours.Code != cay.CodeTemplateBuilding || !strings.Contains(ours.Msg, "installing (40%)") || !cay.RetryOf(err).May {
			t.Errorf("%s: %v", ref, err)
		}
	}
	if _, err := w.c.Create(t.Context(), w.who(), cay.CreateSpec{Template: "none", Timeout: time.Hour}); cay.KindOf(err) != cay.NotFound {
		t.Errorf("one that is not there: %v", err)
	}
	if state("desktop") != cay.BuildBuilding || state("base") != cay.BuildBuilding {
		t.Errorf("desktop is %q, base %q", state("desktop"), state("base"))
	}
	w.create(time.Hour) // base has an older build, which serves
	backlog.Done("desktop")
	backlog.Done("base")
	if state("desktop") != "" || state("base") != cay.BuildReady {
		t.Errorf("then desktop is %q, base %q", state("desktop"), state("base"))
	}
}
