package nodes

import (
	"context"
	"log/slog"
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

func (r *records) ReportNode(_ context.Context, n cay.Node, _ time.Duration) (cay.Drain, cay.NodeID, error) {
	r.mu.Lock()
	lead := r.lead
	r.stuck = n.Stuck
	r.mu.Unlock()
	time.Sleep(r.late)
	return cay.DrainMove, lead, nil
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
		running.Go(func() {
			if err := m.Run(ctx); err != nil {
				t.Error(err)
			}
		})
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
