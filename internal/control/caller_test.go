package control_test

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control"
	"github.com/cay-run/cay/internal/control/nodes"
)

// TestEveryUseCaseChecksScopes calls each use case as a caller without scopes:
// all refuse before they look at anything else. No use case takes a bare team,
// but those that no face offers.
func TestEveryUseCaseChecksScopes(t *testing.T) {
	w := newWorld(t)
	caller, team := reflect.TypeFor[cay.Caller](), reflect.TypeFor[cay.TeamID]()
	unscoped := map[string]bool{"SecretValue": true, "NewEvents": true}                                     // the egress proxy; a channel without content
	personal := map[string]bool{"CreateAccessToken": true, "AccessTokens": true, "RemoveAccessToken": true} // of the person who asks
	unscoped["TokensFor"] = true                                                                            // it gives none
	unscoped["TeamsOf"] = true                                                                              // any caller may know its own
	unscoped["LimitsOf"] = true                                                                             // the rates of REST
	unscoped["TeamChanged"] = true                                                                          // has what sends look at records again
	unscoped["Hold"] = true                                                                                 // a question of a guest, by egress
	checked := 0
	for _, part := range []any{w.c, w.c.Vols, w.c.Triggers, w.c.Approvals, nodes.New(nodes.Config{})} {
		c, before := reflect.ValueOf(part), checked
		for i := range c.NumMethod() {
			m := c.Type().Method(i)
			var args []reflect.Value
			takes := map[reflect.Type]bool{}
			for n := 1; n < m.Type.NumIn(); n++ {
				in := m.Type.In(n)
				takes[in] = true
				switch in {
				case caller:
					args = append(args, reflect.ValueOf(cay.Caller{Team: w.team.ID}))
				case reflect.TypeFor[context.Context]():
					args = append(args, reflect.ValueOf(t.Context()))
				default:
					args = append(args, reflect.Zero(in))
				}
			}
			if takes[team] && !unscoped[m.Name] {
				t.Errorf("%s takes a bare team", m.Name)
			}
			if !takes[caller] || unscoped[m.Name] {
				continue
			}
			checked++
			out := c.Method(i).Call(args)
			err, _ := out[len(out)-1].Interface().(error)
			var ours *cay.Error
			code := cay.CodeScope
			if personal[m.Name] {
				code = cay.CodePeopleOnly
			}
			if !errors.As(err, &ours) || ours.Kind != cay.Denied || ours.Code != code {
				t.Errorf("%s by a caller without scopes: %v", m.Name, err)
			}
		}
		if checked == before {
			t.Errorf("%T has no use case", part)
		}
	}
	if checked < 100 {
		t.Errorf("only %d use cases take a caller", checked)
	}
}

// A caller that may read sees a sandbox, and cannot change it.
func TestScopesAreApart(t *testing.T) {
	w := newWorld(t)
	s := w.create(time.Hour)
	reader := cay.Caller{Team: w.team.ID, Scopes: cay.ReadSandboxes}
	if _, err := w.c.Get(t.Context(), reader, s.ID); err != nil {
		t.Error(err)
	}
	if err := w.c.Kill(t.Context(), reader, s.ID); cay.KindOf(err) != cay.Denied {
		t.Errorf("Kill by a reader = %v", err)
	}
	writer := cay.Caller{Team: w.team.ID, Scopes: cay.WriteSandboxes}
	spec := w.spec(time.Hour)
	spec.IdempotencyKey = "k"
	for range 2 { // the second one finds the first
		if _, err := w.c.Create(t.Context(), writer, spec); err != nil {
			t.Errorf("Create by a writer = %v", err)
		}
	}
}

// The node's interface can be another machine's: every call can be given up and can
// fail, and values alone pass.
func TestANodeMayBeRemote(t *testing.T) {
	local := []reflect.Kind{reflect.Chan, reflect.Func, reflect.Pointer, reflect.UnsafePointer}
	node := reflect.TypeFor[control.Node]()
	for i := range node.NumMethod() {
		m := node.Method(i)
		if m.Type.NumIn() == 0 || m.Type.In(0) != reflect.TypeFor[context.Context]() {
			t.Errorf("%s takes no context", m.Name)
		}
		if m.Type.NumOut() == 0 || m.Type.Out(m.Type.NumOut()-1) != reflect.TypeFor[error]() {
			t.Errorf("%s returns no error", m.Name)
		}
		for n := range m.Type.NumIn() {
			if slices.Contains(local, m.Type.In(n).Kind()) {
				t.Errorf("%s takes a %s", m.Name, m.Type.In(n))
			}
		}
		for n := range m.Type.NumOut() {
			if slices.Contains(local, m.Type.Out(n).Kind()) {
				t.Errorf("%s returns a %s", m.Name, m.Type.Out(n))
			}
		}
	}
	if node.NumMethod() < 15 {
		t.Errorf("the node has %d methods", node.NumMethod())
	}
}
