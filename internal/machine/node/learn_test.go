package node

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/guest"
)

// TestWorkingSet: the working set of a template comes from an instance of the
// node's own, that of a sandbox's snapshot from a sandbox of its team, and later
// starts get it.
func TestWorkingSet(t *testing.T) {
	const team = cay.TeamID("a")
	for _, tc := range []struct {
		name     string
		snapshot cay.Snapshot
		fails    error // of the engine's record
		code     bool  // it runs in the interpreter
		made     int   // instances, besides that of the caller
		learnt   bool
	}{
		{name: "template", made: 1, learnt: true},
		{name: "template with an interpreter", snapshot: cay.Snapshot{Boot: cay.Boot{Ports: []int{guest.InterpPort}}}, code: true, made: 1, learnt: true},
		{name: "snapshot of the team", snapshot: cay.Snapshot{Sandbox: "i1", Team: team}, learnt: true},
		{name: "snapshot of another team", snapshot: cay.Snapshot{Sandbox: "i1", Team: "b"}},
		{name: "an engine that restores eagerly", fails: cay.Errorf(cay.Conflict, "not by demand"), made: 1},
		{name: "an engine that fails", fails: errors.New("broken"), made: 1},
		{name: "a record without an end", fails: errEndless, made: 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := lazy(t, 100)
			synctest.Test(t, func(t *testing.T) {
				m.on("record", func() error {
					if tc.fails == errEndless {
						m.endless = true
						return nil
					}
					return tc.fails
				})
				n, err := Open(t.Context(), m.config())
				if err != nil {
					t.Fatal(err)
				}
				defer n.Close()
				s := m.ofSize(100)
				tc.snapshot.ID, tc.snapshot.Root, tc.snapshot.Files = s.Snapshot, "digest", []cay.SnapFile{{Name: "pages", Size: 100}}
				m.saved[s.Snapshot] = tc.snapshot
				s.Team = team
				for range 3 {
					s.Instance, s.Sandbox = cay.NewInstanceID(), cay.NewSandboxID()
					mustCreate(t, n, s)
				}
				time.Sleep(time.Minute)
				synctest.Wait()
				made := 0
				for _, e := range m.events {
					if e == "restore" {
						made++
					}
				}
				if made != 3+tc.made {
					t.Errorf("%d instances were made for 3 callers", made)
				}
				if got := slices.Contains(m.events, "code 1"); got != tc.code {
					t.Errorf("code was run: %v", got)
				}
				if want := tc.made == 1; slices.Contains(m.traced, !want) {
					t.Errorf("single pages were read where a working set was asked for: %v", m.traced)
				}
				path := workingSetOf("/snapshots/"+string(s.Snapshot), m.saved[s.Snapshot])
				if (path != "") != tc.learnt {
					t.Errorf("the working set is at %q", path)
				}
				s.Instance, s.Sandbox = cay.NewInstanceID(), cay.NewSandboxID()
				inst := mustCreate(t, n, s)
				if got := m.containers[inst.Spec.Instance].spec; got.WorkingSet != path || got.Trace {
					t.Errorf("a later start gets %q, single pages: %v; want %q", got.WorkingSet, got.Trace, path)
				}
				if n.coming != (need{}) || m.unfinished != 0 {
					t.Errorf("left: room %+v, %d unfinished snapshots", n.coming, m.unfinished)
				}
				for _, inst := range n.Instances() {
					if err := n.Kill(t.Context(), inst.Spec.Instance, cay.CauseAsked); err != nil {
						t.Error(err)
					}
				}
				nothingLeft(t, m, n)
			})
		})
	}
}

var errEndless = errors.New("endless")

// TestWorkingSetAfterACrash: an instance of the node's own is no sandbox's, and
// the next node removes it.
func TestWorkingSetAfterACrash(t *testing.T) {
	m := lazy(t, 100)
	first := m.open(t)
	second := stall(t, m, first, "record", func() error {
		first.learnTemplate("template", 0)
		return nil
	})
	nothingLeft(t, m, second)
	if left, err := filepath.Glob(filepath.Join(m.dir, "instances", "*")); err != nil || len(left) > 0 {
		t.Errorf("left: %s, %v", strings.Join(left, ", "), err)
	}
}
