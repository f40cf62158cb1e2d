package node

import (
	"context"
	"os"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/engine"
)

// streaming is a machine whose engine restores from snapshots that arrive.
type streaming struct {
	*machine
	streams int // that are open
}

func (s *streaming) Stream(func(context.Context, cay.SnapshotID) (engine.Arrival, error)) (func(), error) {
	if err := s.step("stream"); err != nil {
		return nil, err
	}
	s.streams++
	return func() { s.streams-- }, nil
}

// coming is a snapshot that arrives.
type coming cay.Snapshot

func (c coming) Snapshot() cay.Snapshot      { return cay.Snapshot(c) }
func (coming) Open(string) (*os.File, error) { panic("of the engine") }
func (coming) Await(context.Context, string, int64, int64) (all bool, err error) {
	panic("of the engine")
}
func (coming) Whole(context.Context) (string, error) { panic("of the engine") }

// TestStartsWhileItArrives: which starts begin before their snapshot is here, and
// which wait for all of it.
func TestStartsWhileItArrives(t *testing.T) {
	conflict := func() error { return cay.Errorf(cay.Conflict, "of another build") }
	for _, tc := range []struct {
		name    string
		streams bool // the engine can
		kind    cay.SnapshotKind
		files   bool // is to boot
		at      string
		want    bool
	}{
		{"memory", true, cay.MemorySnapshot, false, "", true},
		{"an engine that needs all of it", false, cay.MemorySnapshot, false, "", false},
		{"files alone", true, cay.FilesSnapshot, false, "", false},
		{"from its files", true, cay.MemorySnapshot, true, "", false},
		{"memory of another build", true, cay.MemorySnapshot, false, "canrestore", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := lazy(t, 100)
			m.ownLoading = engine.Eager
			s := m.ofSize(100)
			elsewhere := m.saved[s.Snapshot]
			elsewhere.Kind = tc.kind
			delete(m.saved, s.Snapshot)
			var here atomic.Bool
			m.on("get", func() error {
				if here.Load() {
					return nil
				}
				return cay.Errorf(cay.NotFound, "elsewhere")
			})
			s.Resume, s.FilesOnly = true, tc.files
			if tc.at != "" {
				m.on(tc.at, conflict)
			}
			fetched := 0
			cfg := m.config()
			e := &streaming{machine: m}
			if tc.streams {
				cfg.Engine = e
			}
			cfg.Fetch = func(context.Context, cay.SnapshotID) error {
				fetched++
				m.mu.Lock()
				defer m.mu.Unlock()
				m.saved[s.Snapshot] = elsewhere
				here.Store(true)
				return nil
			}
			cfg.Arrive = func(_ context.Context, id cay.SnapshotID) (engine.Arrival, error) {
				if id != s.Snapshot {
					t.Errorf("asked for snapshot %s", id)
				}
				return coming(elsewhere), nil
			}
			n, err := Open(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			inst := mustCreate(t, n, s)
			m.mu.Lock()
			spec := m.containers[inst.Spec.Instance].spec
			m.mu.Unlock()
			if spec.Arriving != tc.want || (fetched == 0) != tc.want {
				t.Errorf("arriving %v after %d fetches, want %v", spec.Arriving, fetched, tc.want)
			}
			if tc.want {
				// Its files are kept, and what it may load counts, until it has all.
				if h := m.held(s.Snapshot); h != 1 {
					t.Errorf("%d hold its files", h)
				}
				if l, err := n.Loading(); err != nil || l.Pending != 100 {
					t.Errorf("told %+v, %v", l, err)
				}
				if slices.Contains(m.events, "check") || slices.Contains(m.events, "check once") {
					t.Error("files that are not there are read")
				}
			}
			if err := n.Kill(t.Context(), inst.Spec.Instance, cay.CauseAsked); err != nil {
				t.Error(err)
			}
			nothingLeft(t, m, n)
			n.Close()
			if e.streams != 0 {
				t.Error("the engine is still served")
			}
		})
	}
}

// TestStartWhoseSnapshotDoesNotArrive says why, and leaves nothing.
func TestStartWhoseSnapshotDoesNotArrive(t *testing.T) {
	m := lazy(t, 100)
	s := m.ofSize(100)
	delete(m.saved, s.Snapshot)
	m.on("get", func() error { return cay.Errorf(cay.NotFound, "elsewhere") })
	away := cay.Errorf(cay.Unavailable, "the bucket does not answer")
	cfg := m.config()
	cfg.Engine = &streaming{machine: m}
	cfg.Fetch = func(context.Context, cay.SnapshotID) error { t.Error("fetched whole"); return away }
	cfg.Arrive = func(context.Context, cay.SnapshotID) (engine.Arrival, error) { return nil, away }
	n, err := Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	if _, err := n.Create(t.Context(), s); cay.KindOf(err) != cay.Unavailable {
		t.Errorf("created, %v", err)
	}
	nothingLeft(t, m, n)
}
