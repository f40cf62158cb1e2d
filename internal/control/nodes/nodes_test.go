package nodes

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control/ledger"
	"github.com/cay-run/cay/internal/store"
)

// records are those of two nodes, of which the first leads and is drained. A renewal that was
// read in time may be answered late.
type records struct {
	store.Store
	late time.Duration

	mu    sync.Mutex
	lead  cay.NodeID
	stuck string // as the node told last
}

func (r *records) ReportNode(_ context.Context, n cay.Node, _ time.Duration) (store.NodeTold, error) {
	r.mu.Lock()
	lead := r.lead
	r.stuck = n.Stuck
	r.mu.Unlock()
	time.Sleep(r.late)
	return store.NodeTold{Drain: cay.DrainMove, Lead: lead, Now: time.Now()}, nil
}

func (r *records) LeaveLead(_ context.Context, node cay.NodeID) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.lead == node {
		r.lead = "" // and another node takes it when it looks
	}
	return nil
}

func (r *records) TakeLead(context.Context, cay.NodeID, time.Duration) (cay.NodeID, error) {
	panic("a node that is drained takes the lead, and another one can have it")
}

func (r *records) Nodes(context.Context) ([]cay.Node, error) {
	return []cay.Node{{ID: "first", State: cay.NodeReady, Drain: cay.DrainMove}, {ID: "second", State: cay.NodeReady}}, nil
}

func (r *records) EventCounters(context.Context) (map[cay.TeamID]int64, error) { return nil, nil }

// A node that gives the lead away ends what it does for all before, a template that it builds
// first, and takes up none of it again, though a renewal that was on its way names it still.
func TestLeaveLead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &records{lead: "first", late: 2 * time.Second}
		var begun, ended atomic.Int32
		start, built := time.Now(), time.Minute
		m := New(Config{
			Store: r, Ledger: ledger.New(ledger.Config{Store: r}), Self: cay.Node{ID: "first"},
			Use:     func() (cay.NodeUse, bool) { return cay.NodeUse{}, true },
			Drained: func(cay.Drain) {}, Renewed: func(context.Context, time.Duration) {}, Silent: func() {},
			EndLost: func(context.Context, cay.NodeID) error { return nil }, Busy: func() bool { // or it would give a lead away at once that it has not
				return time.Since(start) < built || ended.Load() > 0
			},
			Lead: func(ctx context.Context) {
				begun.Add(1)
				<-ctx.Done()
				time.Sleep(4 * time.Second) // a renewal is on its way when it is over
				ended.Add(1)
			},
			Log: slog.New(slog.DiscardHandler),
		})
		if err := m.Open(t.Context()); err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { m.Run(ctx) })
		time.Sleep(built - time.Second)
		if r.mu.Lock(); r.stuck == "" || r.lead != "first" {
			t.Errorf("while it builds it says %q, and %q leads", r.stuck, r.lead)
		}
		r.mu.Unlock()
		time.Sleep(time.Minute)
		if begun.Load() != 1 || ended.Load() != 1 || m.Lead() != "" {
			t.Errorf("it led %d times, ended %d times, and takes %q for the one that leads", begun.Load(), ended.Load(), m.Lead())
		}
		stop()
		running.Wait()
	})
}

// gone are the records of a cluster in which this node leads and others are gone.
type gone struct {
	store.Store
	lead    cay.NodeID
	members int // more of them
	looks   atomic.Int32
	drain   atomic.Bool
}

func (g *gone) ReportNode(context.Context, cay.Node, time.Duration) (store.NodeTold, error) {
	told := store.NodeTold{Lead: g.lead, Now: time.Now()}
	if g.drain.Load() {
		told.Drain = cay.DrainMove
	}
	return told, nil
}

func (g *gone) TakeLead(context.Context, cay.NodeID, time.Duration) (cay.NodeID, error) {
	return g.lead, nil
}

func (g *gone) Nodes(context.Context) ([]cay.Node, error) {
	g.looks.Add(1)
	list := []cay.Node{{ID: "first", State: cay.NodeReady}, {ID: "second", State: cay.NodeReady}, {ID: "old", Epoch: 3, State: cay.NodeGone}, {ID: "stuck", State: cay.NodeGone}}
	for i := range g.members {
		list = append(list, cay.Node{ID: cay.NodeID(fmt.Sprint(i)), State: cay.NodeReady})
	}
	return list, nil
}

func (g *gone) EventCounters(context.Context) (map[cay.TeamID]int64, error) { return nil, nil }

// wrongClock are records whose clock is another one.
type wrongClock struct {
	gone
	off time.Duration
}

func (w *wrongClock) ReportNode(context.Context, cay.Node, time.Duration) (store.NodeTold, error) {
	time.Sleep(2 * time.Second) // on the way there and back
	defer time.Sleep(2 * time.Second)
	return store.NodeTold{Now: time.Now().Add(w.off).Truncate(time.Millisecond)}, nil
}

// A server does not begin where its clock is far from the database's, whatever the answer
// takes; one that runs goes on.
func TestClocks(t *testing.T) {
	for _, tt := range []struct {
		off  time.Duration // of the database's clock
		want string
	}{
		{0, ""},
		{11 * time.Second, ""}, // 9 s of them are sure
		{-11 * time.Second, ""},
		{time.Minute, "58s behind"},
		{-time.Hour, "59m58s ahead of"},
	} {
		synctest.Test(t, func(t *testing.T) {
			records := &wrongClock{off: tt.off}
			m := New(Config{
				Store: records, Ledger: ledger.New(ledger.Config{Store: records}), Self: cay.Node{ID: "first"}, Use: func() (cay.NodeUse, bool) { return cay.NodeUse{}, true },
				Drained: func(cay.Drain) {}, Renewed: func(context.Context, time.Duration) {}, Busy: func() bool { return false }, Log: slog.New(slog.DiscardHandler),
			})
			err := m.Open(t.Context())
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || cay.KindOf(err) != cay.Invalid || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("off by %v: %v", tt.off, err)
			}
			if err := m.renew(t.Context()); err != nil || !m.Serves() {
				t.Errorf("it does not go on: %v", err)
			}
		})
	}
}

// TestState: what a metrics page says of a cluster.
func TestState(t *testing.T) {
	m := New(Config{})
	m.view.Store(&map[cay.NodeID]cay.Node{
		"a": {State: cay.NodeReady, NodeUse: cay.NodeUse{MemoryMB: 1000, MemoryFreeMB: 900}},
		"b": {State: cay.NodeReady, NodeUse: cay.NodeUse{MemoryMB: 3000, MemoryFreeMB: 100}},
		"c": {State: cay.NodeReady, Silent: time.Minute, NodeUse: cay.NodeUse{MemoryMB: 1000, MemoryFreeMB: 1000}},
		"d": {State: cay.NodeReady, Drain: cay.DrainMove, NodeUse: cay.NodeUse{MemoryMB: 1000, MemoryFreeMB: 1000}},
		"e": {State: cay.NodeGone, Silent: time.Hour},
		"f": {State: cay.NodeStopped, Silent: time.Hour},
	})
	want := map[cay.NodeState]int{cay.NodeReady: 3, cay.NodeSilent: 1, cay.NodeGone: 1, cay.NodeStopped: 1}
	if s := m.State(); !maps.Equal(s.Nodes, want) || s.Draining != 1 || s.FreeShare != .25 || s.Leads || s.Lease != 0 {
		t.Errorf("%+v", s)
	}
	if s := New(Config{}).State(); s.FreeShare != 0 || len(s.Nodes) != 0 {
		t.Errorf("without a look: %+v", s)
	}
}

// A node that takes no requests of clients looks at the others while it needs them alone, a
// front less often at many, and the one that leads ends what a node took along until nothing is left to do.
func TestManyNodes(t *testing.T) {
	for _, tt := range []struct {
		name        string
		alone       bool
		lead        cay.NodeID
		drained     bool
		members     int
		looks       int32 // in 20 seconds, about
		ends, again int
	}{
		{"a front", false, "second", false, 0, 20, 0, 0},
		{"a front of 500 nodes", false, "second", false, 500, 7, 0, 0},
		{"a front of 3,000 nodes", false, "second", false, 3000, 4, 0, 0},
		{"a node", true, "second", false, 0, 0, 0, 0},
		{"a node that is drained", true, "second", true, 0, 20, 0, 0},
		{"a node that leads", true, "first", false, 0, 20, 1, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := &gone{lead: tt.lead, members: tt.members}
				var mu sync.Mutex
				ends := map[cay.NodeID]int{}
				var placed bool
				var m *Members
				m = New(Config{
					Store: g, Ledger: ledger.New(ledger.Config{Store: g}), Self: cay.Node{ID: "first"}, Alone: tt.alone,
					Use: func() (cay.NodeUse, bool) { return cay.NodeUse{}, true }, Busy: func() bool { return true },
					Drained: func(how cay.Drain) {
						if how != cay.DrainNone {
							_, placed = m.Place("base")
						}
					},
					Renewed: func(context.Context, time.Duration) {}, Silent: func() {}, Lead: func(ctx context.Context) { <-ctx.Done() },
					EndLost: func(_ context.Context, id cay.NodeID) error {
						mu.Lock()
						defer mu.Unlock()
						if ends[id]++; id == "stuck" {
							return cay.Errorf(cay.Unavailable, "no place for one of them")
						}
						return nil
					},
					Log: slog.New(slog.DiscardHandler),
				})
				if err := m.Open(t.Context()); err != nil {
					t.Fatal(err)
				}
				ctx, stop := context.WithCancel(t.Context())
				var running sync.WaitGroup
				running.Go(func() { m.Run(ctx) })
				time.Sleep(9500 * time.Millisecond)
				before := g.looks.Load()
				g.drain.Store(tt.drained)
				time.Sleep(20 * time.Second)
				stop()
				running.Wait()
				if looks := g.looks.Load() - before; max(looks-tt.looks, tt.looks-looks) > 1 || placed != tt.drained {
					t.Errorf("%d looks, and a place is known: %v", looks, placed)
				}
				if ends["old"] != tt.ends || ends["stuck"] < tt.again {
					t.Errorf("ended %v", ends)
				}
			})
		})
	}
}

// over are records that give this node's sandboxes to another server after a time.
type over struct {
	gone
	at      time.Time
	renewed atomic.Int32
}

func (o *over) ReportNode(ctx context.Context, n cay.Node, lease time.Duration) (store.NodeTold, error) {
	if time.Now().After(o.at) {
		return store.NodeTold{}, store.ErrTakenOver
	}
	o.renewed.Add(1)
	return o.gone.ReportNode(ctx, n, lease)
}

// The node that leads renews its lease and ends what other nodes took along while the ends of
// one wait for a bucket, and is told that its epoch is over though what it does as the leader
// takes long to end.
func TestLeadsBesideRenewals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		r := &over{gone: gone{lead: "first"}, at: start.Add(5 * time.Minute)}
		var ends, most, at atomic.Int32
		var toldAt atomic.Int64
		m := New(Config{
			Store: r, Ledger: ledger.New(ledger.Config{Store: r}), Self: cay.Node{ID: "first"},
			Use: func() (cay.NodeUse, bool) { return cay.NodeUse{}, true }, Busy: func() bool { return false },
			Drained: func(cay.Drain) {}, Renewed: func(context.Context, time.Duration) {}, Silent: func() {},
			Lost: func(err error) { toldAt.Store(int64(time.Since(start))) },
			EndLost: func(ctx context.Context, id cay.NodeID) error {
				if id != "stuck" {
					ends.Add(1)
					return nil
				}
				most.Store(max(most.Load(), at.Add(1)))
				defer at.Add(-1)
				<-ctx.Done() // the bucket does not answer
				return ctx.Err()
			},
			Lead: func(ctx context.Context) {
				<-ctx.Done()
				time.Sleep(10 * time.Minute)
			},
			Log: slog.New(slog.DiscardHandler),
		})
		if err := m.Open(t.Context()); err != nil {
			t.Fatal(err)
		}
		m.Run(t.Context())
		if n := r.renewed.Load(); n != 62 { // by Open, at once, and each five seconds
			t.Errorf("the lease was renewed %d times in 5 minutes", n)
		}
		if ends.Load() != 1 || most.Load() != 1 {
			t.Errorf("another node was ended %d times, and %d waited for the bucket at once", ends.Load(), most.Load())
		}
		if told := time.Duration(toldAt.Load()); told.Round(time.Minute) != 5*time.Minute {
			t.Errorf("told after %v that the epoch is over", told)
		}
	})
}
