package control_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/store"
)

// hushed is a store that is silent about some changes of records: they count, or not, and
// the answer is that they may.
type hushed struct {
	store.Store
	at *hush
}

type hush struct {
	changes int  // that are left without an answer
	count   bool // whether they count
	away    int  // changes and reads that fail after that
}

func (h hushed) Tx(ctx context.Context, f func(store.Store) error) error {
	return h.maybe(func() error { return h.Store.Tx(ctx, f) })
}

func (h hushed) AddSandbox(ctx context.Context, s cay.Sandbox, events ...cay.Event) error {
	return h.maybe(func() error { return h.Store.AddSandbox(ctx, s, events...) })
}

func (h hushed) UpdateSandbox(ctx context.Context, s cay.Sandbox, events ...cay.Event) error {
	return h.maybe(func() error { return h.Store.UpdateSandbox(ctx, s, events...) })
}

func (h hushed) Sandbox(ctx context.Context, team cay.TeamID, id cay.SandboxID) (out cay.Sandbox, err error) {
	if h.at.changes > 0 || h.at.away == 0 {
		return h.Store.Sandbox(ctx, team, id)
	}
	h.at.away--
	return out, cay.Errorf(cay.Unavailable, "PostgreSQL does not answer")
}

func (h hushed) maybe(change func() error) error {
	switch at := h.at; {
	case at.changes > 0:
		if at.changes--; at.count {
			if err := change(); err != nil {
				return err
			}
		}
		return cay.Errorf(cay.Unavailable, "PostgreSQL has not confirmed a change, which may count or not")
	case at.away > 0:
		at.away--
		return cay.Errorf(cay.Unavailable, "PostgreSQL does not answer")
	}
	return change()
}

// A change whose answer never comes leaves no sandbox that can never be changed again, no
// record without an instance and no instance without a record.
func TestUnconfirmed(t *testing.T) {
	calls := map[string]func(w *world, s cay.Sandbox) error{
		"create": func(w *world, _ cay.Sandbox) error {
			_, err := w.c.Create(w.Context(), w.who(), w.spec(time.Hour))
			return err
		},
		"create once": func(w *world, _ cay.Sandbox) error {
			_, err := w.c.Create(w.Context(), w.who(), w.once("k"))
			return err
		},
		"timeout": func(w *world, s cay.Sandbox) error {
			return w.c.SetTimeout(w.Context(), w.who(), s.ID, 2*time.Hour)
		},
		"pause": func(w *world, s cay.Sandbox) error {
			return w.c.Pause(w.Context(), w.who(), s.ID, cay.MemorySnapshot, false)
		},
		"resume": func(w *world, s cay.Sandbox) error {
			_, _, err := w.c.Connect(w.Context(), w.who(), s.ID, time.Hour, true)
			return err
		},
		"kill": func(w *world, s cay.Sandbox) error { return w.c.Kill(w.Context(), w.who(), s.ID) },
	}
	for what, call := range calls {
		for _, h := range []hush{{changes: 1, count: true}, {changes: 1, count: true, away: 3}, {changes: 2, away: 3}} {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				at := &hush{}
				w.c = w.open(hushed{w.store, at})
				w.run()
				s := w.create(time.Hour)
				if what == "resume" {
					if err := w.c.Pause(t.Context(), w.who(), s.ID, cay.MemorySnapshot, false); err != nil {
						t.Fatal(err)
					}
				}
				*at = h
				first := call(w, s)
				time.Sleep(time.Minute)
				synctest.Wait()
				w.agrees(what, h)
				if what == "create once" {
					again, err := w.c.Create(t.Context(), w.who(), w.once("k"))
					if err != nil || again.State != cay.Running {
						t.Errorf("%+v: again: %+v, %v", h, again.State, err)
					}
				}
				switch err := w.c.Kill(t.Context(), w.who(), s.ID); {
				case cay.KindOf(err) == cay.NotFound && what == "kill":
				case err != nil:
					t.Errorf("%s, %+v, which answered %v: it cannot be ended: %v", what, h, first, err)
				}
				w.agrees(what, h)
			})
		}
	}
}

// agrees checks that the records of what runs are those of the instances.
func (w *world) agrees(what string, h hush) {
	w.Helper()
	rows, err := w.store.Sandboxes(w.Context(), store.SandboxQuery{Team: w.team.ID})
	if err != nil {
		w.Fatal(err)
	}
	running := map[cay.InstanceID]bool{}
	for _, row := range rows {
		switch row.State {
		case cay.Running:
			running[row.Instance] = true
		case cay.Paused, cay.Killed:
		default:
			w.Errorf("%s, %+v: a sandbox is recorded as %s", what, h, row.State)
		}
	}
	alive := w.node.Alive()
	for _, i := range alive {
		if !running[i.Spec.Instance] {
			w.Errorf("%s, %+v: an instance lives of which no record says so", what, h)
		}
	}
	if len(alive) != len(running) {
		w.Errorf("%s, %+v: %d run by the records, %d instances live", what, h, len(running), len(alive))
	}
}
