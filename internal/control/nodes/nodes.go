// Package nodes has the use cases of a cluster's members: the lease of this node,
// the one that leads, the view of the others, and the place of a new sandbox.
//
// A member renews its lease by the database's clock, and stops to serve by its own
// before that lease is over. One of them leads: it does what is to be done once, and
// declares others gone that are silent.
package nodes

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control/ledger"
	"github.com/cay-run/cay/internal/store"
	"github.com/cay-run/cay/internal/ticks"
)

// Times are those of leases.
type Times struct {
	Renew  time.Duration // between two renewals
	Lease  time.Duration
	Silent time.Duration // before another member declares a node gone; longer than Lease
	View   time.Duration // between two looks at the other members
}

// Usual are the times of a cluster: a failover of the database, which takes 20 to 40
// seconds, costs nothing.
var Usual = Times{Renew: 5 * time.Second, Lease: time.Minute, Silent: 75 * time.Second, View: time.Second}

// margin is how much earlier than its lease a node stops: a twelfth, for clocks that
// run at other speeds and what takes a moment.
func (t Times) margin() time.Duration { return t.Lease / 12 }

// Config is what a Members needs.
type Config struct {
	Store  store.Store
	Ledger *ledger.Ledger
	Self   cay.Node // id, epoch, address and version
	// Front says that this node runs no sandboxes, and never leads; Alone, that it takes no
	// requests of clients, so that it needs no view of the others but while it leads or is drained.
	Front, Alone bool
	Times        Times
	// Use tells what this node has and whether it is ready for new sandboxes.
	Use func() (use cay.NodeUse, ready bool)
	// Drained has the node follow its record.
	Drained func(how cay.Drain)
	// Renewed is told for how long the lease holds, after each renewal.
	Renewed func(ctx context.Context, lasts time.Duration)
	// EndLost records the ends of what ran on a node that is gone, and has sandboxes go on
	// elsewhere that asked for it. It may be called again.
	EndLost func(ctx context.Context, node cay.NodeID) error
	// Lead does what one member does for all, until its context ends. Busy reports whether
	// some of it is at work that would be lost.
	Lead func(ctx context.Context)
	Busy func() bool
	// Silent is told that the lease is over, before another member may have the
	// sandboxes of this node; Lost, that the epoch is, after which Run ends.
	Silent func()
	Lost   func(err error)
	// Token makes a join token: its text, its digest and what it opens.
	Token func() (text, digest, bundle string, err error)
	Log   *slog.Logger
}

// Members is a cluster as one of its nodes sees it.
type Members struct {
	cfg      Config
	view     atomic.Pointer[map[cay.NodeID]cay.Node]
	lead     atomic.Pointer[cay.NodeID] // as of the last renewal
	deadline atomic.Int64               // of this node's lease, by the clock since the boot
	steady   atomic.Int64               // since when the database has answered without a gap
	last     atomic.Int64               // the last renewal that it answered
	drained  atomic.Bool                // as of the last renewal
	clock    atomic.Int64               // this machine's before the database's, as of the last renewal
	leaving  atomic.Bool                // this node gives the lead away

	mu     sync.Mutex
	placed map[cay.NodeID][]int64 // when this front placed sandboxes that the node has not told of yet
	ended  map[cay.NodeID]int64   // the epochs of nodes that are gone of which nothing is left to do
	ending map[cay.NodeID]bool    // whose ends are being recorded
}

// New returns the members as they are before the first look: Open follows.
func New(cfg Config) *Members {
	if cfg.Times == (Times{}) {
		cfg.Times = Usual
	}
	m := &Members{cfg: cfg, placed: map[cay.NodeID][]int64{}, ended: map[cay.NodeID]int64{}, ending: map[cay.NodeID]bool{}}
	m.view.Store(&map[cay.NodeID]cay.Node{})
	m.lead.Store(new(cay.NodeID))
	return m
}

// sinceBoot goes on while the machine is suspended.
func sinceBoot() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		panic(err) // Linux has had it since 2.6.39
	}
	return t.Nano()
}

// Open renews the lease once and looks at the other members. Invalid where the clock of this
// machine is too far from the database's: the ends and waits of sandboxes that come from
// other nodes would be at other times here.
func (m *Members) Open(ctx context.Context) error {
	if err := m.renew(ctx); err != nil {
		return err
	}
	if off := m.Clock(); off.Abs() > cay.ClockMost {
		return cay.Errorf(cay.Invalid, "the clock of this machine is %s", cay.ClockWords(off)).
			WithHint("set it, and keep it by chrony or systemd-timesyncd: sandboxes that move between nodes would end at other times")
	}
	return m.look(ctx)
}

// Run renews the lease and keeps the view until ctx ends, or this node's epoch is over.
func (m *Members) Run(ctx context.Context) {
	var leading, led sync.WaitGroup
	defer leading.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	leading.Go(func() { m.keepView(ctx) })
	var lead context.Context
	var endLead context.CancelFunc
	silent := false
	for range ticks.AtOnce(ctx, m.cfg.Times.Renew) {
		err := m.renew(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, store.ErrTakenOver):
			m.deadline.Store(0)
			m.cfg.Silent()
			m.cfg.Lost(err)
			return
		case err != nil:
			m.cfg.Log.WarnContext(ctx, "cannot renew the lease of this node", "err", err)
		}
		if over := !m.Serves(); over && !silent {
			m.cfg.Log.ErrorContext(ctx, "the lease of this node is over: it serves nothing until it is renewed")
			m.cfg.Silent()
			silent = true
		} else if !over {
			silent = false
		}
		switch leads := err == nil && !m.leaving.Load() && m.takeLead(ctx); {
		case leads && m.handsOver():
			m.leaving.Store(true)
			if endLead != nil {
				endLead()
				endLead = nil
			}
			leading.Go(func() {
				led.Wait()
				m.leaveLead(ctx)
			})
		case leads && endLead == nil:
			m.cfg.Log.InfoContext(ctx, "this node leads the cluster")
			lead, endLead = context.WithCancel(ctx)
			while := lead // another one may come before this is done
			led.Add(1)
			leading.Go(func() {
				defer led.Done()
				m.cfg.Lead(while)
			})
		case endLead != nil && (!m.Serves() || err == nil && !leads):
			endLead()
			endLead = nil
		}
		if endLead != nil && err == nil {
			while := lead
			for _, n := range m.lost() {
				led.Add(1)
				leading.Go(func() {
					defer led.Done()
					m.endLost(while, n)
				})
			}
		}
	}
}

// renew moves the end of the lease. The deadline counts from before it was sent.
func (m *Members) renew(ctx context.Context) error {
	begun, leaving := sinceBoot(), m.leaving.Load()
	n := m.cfg.Self
	use, ready := m.cfg.Use()
	if use.Stuck == "" && m.drained.Load() && m.cfg.Busy() {
		use.Stuck = "a template is being built there"
	}
	if off := m.Clock(); off.Abs() > cay.ClockMost {
		use.Clock = off
	}
	n.NodeUse, n.State = use, cay.NodeStarting
	if ready {
		n.State = cay.NodeReady
	}
	within, cancel := context.WithTimeout(ctx, m.cfg.Times.Lease/6)
	defer cancel()
	asked := time.Now()
	told, err := m.cfg.Store.ReportNode(within, n, m.cfg.Times.Lease)
	if err != nil {
		return err
	}
	drain, lead := told.Drain, told.Lead
	m.compareClocks(ctx, asked, told.Now)
	if begun-m.last.Load() > int64(m.cfg.Times.Lease/4) {
		m.steady.Store(begun)
	}
	m.last.Store(begun)
	m.deadline.Store(begun + int64(m.cfg.Times.Lease-m.cfg.Times.margin()))
	if !leaving || lead != m.cfg.Self.ID { // else it may be from before the lead was given away
		m.lead.Store(&lead)
	}
	m.cfg.Renewed(ctx, time.Duration(m.deadline.Load()-sinceBoot()))
	if was := m.drained.Swap(drain != cay.DrainNone); m.cfg.Alone && !was && drain != cay.DrainNone {
		if err := m.look(within); err != nil { // it is about to give sandboxes to the others
			m.cfg.Log.WarnContext(ctx, "cannot look at the members of the cluster", "err", err)
		}
	}
	m.cfg.Drained(drain)
	return nil
}

// Clock is how far the clock of this machine is before the database's at least; negative
// where it is behind.
func (m *Members) Clock() time.Duration { return time.Duration(m.clock.Load()) }

// compareClocks notes how far this machine's clock is from what the database told in answer
// to what was asked at a time.
func (m *Members) compareClocks(ctx context.Context, asked, told time.Time) {
	off := cay.ClockAhead(asked, told, time.Now())
	if was := time.Duration(m.clock.Swap(int64(off))); off.Abs() > cay.ClockMost && was.Abs() <= cay.ClockMost {
		m.cfg.Log.ErrorContext(ctx, "the clock of this machine is "+cay.ClockWords(off)+": set it")
	}
}

// Serves reports whether the lease of this node holds.
func (m *Members) Serves() bool { return sinceBoot() < m.deadline.Load() }

// Leads reports whether this node leads.
func (m *Members) Leads() bool { return m.Serves() && *m.lead.Load() == m.cfg.Self.ID }

// Lead is the node that leads, as of the last renewal; empty for none.
func (m *Members) Lead() cay.NodeID { return *m.lead.Load() }

// Self is this node.
func (m *Members) Self() cay.NodeID { return m.cfg.Self.ID }

// patient reports whether the database has answered for so long that a node which
// is silent has had the time to be heard.
func (m *Members) patient() bool {
	return sinceBoot()-m.steady.Load() > int64(m.cfg.Times.Silent)
}

// takeLead reports whether this node leads, and has it lead where no other does.
func (m *Members) takeLead(ctx context.Context) bool {
	lead := *m.lead.Load()
	if lead == m.cfg.Self.ID {
		return true
	}
	if m.cfg.Front || lead != "" && !m.patient() || m.drained.Load() && m.another() {
		return false
	}
	within, cancel := context.WithTimeout(ctx, m.cfg.Times.Lease/6) // the next renewal waits for it
	defer cancel()
	lead, err := m.cfg.Store.TakeLead(within, m.cfg.Self.ID, m.cfg.Times.Silent)
	if err != nil {
		m.cfg.Log.WarnContext(ctx, "cannot ask which node leads", "err", err)
		return false
	}
	m.lead.Store(&lead)
	return lead == m.cfg.Self.ID
}

// another reports whether there is another member that can lead.
func (m *Members) another() bool {
	for id, n := range *m.view.Load() {
		if id != m.cfg.Self.ID && n.Takes() {
			return true
		}
	}
	return false
}

// handsOver reports whether this node, which leads, gives the lead away: it is drained,
// another one can have it, and nothing is lost with it.
func (m *Members) handsOver() bool { return m.drained.Load() && m.another() && !m.cfg.Busy() }

// leaveLead has none lead, until another member does.
func (m *Members) leaveLead(ctx context.Context) {
	defer m.leaving.Store(false)
	if err := m.cfg.Store.LeaveLead(ctx, m.cfg.Self.ID); err != nil {
		m.cfg.Log.WarnContext(ctx, "cannot give the lead away; it is tried again", "err", err)
		return
	}
	m.lead.Store(new(cay.NodeID))
	m.cfg.Log.InfoContext(ctx, "this node is drained, and another one leads the cluster from now on")
}

// lost are the nodes whose ends are to be recorded, each of which is given to endLost.
func (m *Members) lost() (out []cay.Node) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for id, n := range *m.view.Load() {
		gone := n.State == cay.NodeGone
		if id == m.cfg.Self.ID || n.State == cay.NodeJoined || m.ending[id] || !gone && (n.Silent <= m.cfg.Times.Silent || !m.patient()) {
			continue
		}
		if epoch, ok := m.ended[id]; gone && ok && epoch == n.Epoch {
			continue
		}
		m.ending[id] = true
		out = append(out, n)
	}
	return out
}

// endLost declares a node gone that is silent, and records the ends of what ran there. It
// runs beside renewals: the bucket and other nodes, which it asks, may take longer than a lease.
func (m *Members) endLost(ctx context.Context, n cay.Node) {
	done := false
	defer func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.ending, n.ID)
		if done {
			m.ended[n.ID] = n.Epoch
		}
	}()
	gone := n.State == cay.NodeGone
	if !gone {
		lost, err := m.cfg.Store.LoseNode(ctx, n.ID, m.cfg.Times.Silent)
		if err != nil {
			m.cfg.Log.WarnContext(ctx, "cannot declare a node gone", "node", n.ID, "err", err)
		}
		if !lost {
			return
		}
		m.cfg.Log.WarnContext(ctx, "node is gone: it was silent for longer than its lease", "node", n.ID)
	}
	err := m.cfg.EndLost(ctx, n.ID)
	if err != nil && ctx.Err() == nil {
		m.cfg.Log.ErrorContext(ctx, "cannot record what ended with a node", "node", n.ID, "err", err)
	}
	done = err == nil && gone // the epoch is the last one then
}

// keepView looks at the other members again and again.
func (m *Members) keepView(ctx context.Context) {
	tick := time.NewTicker(m.cfg.Times.View)
	defer tick.Stop()
	follower := m.cfg.Ledger.Follower()
	for wait := 0; ; wait-- {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if wait <= 0 {
			if err := m.look(ctx); err != nil && ctx.Err() == nil {
				m.cfg.Log.DebugContext(ctx, "cannot look at the members of the cluster", "err", err)
			}
			wait = m.looksIn()
		}
		if !m.Leads() && !m.cfg.Ledger.Awaited() { // streams of one sandbox are on its node
			continue
		}
		if _, err := follower.Look(ctx); err != nil && ctx.Err() == nil {
			m.cfg.Log.DebugContext(ctx, "cannot look for events of other nodes", "err", err)
		}
	}
}

// looksIn is in how many times View the next look is: one for each viewAtOnce members,
// and renewal by renewal at most, before which most of them tell nothing new.
func (m *Members) looksIn() int {
	most := max(1, int(m.cfg.Times.Renew/m.cfg.Times.View))
	return min(most, 1+len(*m.view.Load())/viewAtOnce)
}

// viewAtOnce is how many members are read each View.
const viewAtOnce = 200

// look reads the view. A node that needs none asks the records for each member
// instead: a thousand nodes do not read a thousand rows each second.
func (m *Members) look(ctx context.Context) error {
	now := sinceBoot()
	var list []cay.Node
	if !m.cfg.Alone || m.Leads() || m.drained.Load() {
		var err error
		if list, err = m.cfg.Store.Nodes(ctx); err != nil {
			return err
		}
	}
	view := make(map[cay.NodeID]cay.Node, len(list))
	for _, n := range list {
		view[n.ID] = n
	}
	m.view.Store(&view)
	m.mu.Lock()
	defer m.mu.Unlock()
	for id, times := range m.placed {
		m.placed[id] = slices.DeleteFunc(times, func(at int64) bool { return at < now-int64(view[id].Silent) })
	}
	return nil
}

// Node finds a member in the view, else in the records.
func (m *Members) Node(ctx context.Context, id cay.NodeID) (cay.Node, error) {
	if n, ok := (*m.view.Load())[id]; ok {
		return n, nil
	}
	return m.cfg.Store.Node(ctx, id)
}

// Admit refuses a certificate that no member has.
func (m *Members) Admit(id cay.NodeID, fingerprint string) error {
	if n, ok := (*m.view.Load())[id]; ok && n.Fingerprint == fingerprint {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	n, err := m.cfg.Store.Node(ctx, id) // it may have joined this moment
	if err == nil && n.Fingerprint != fingerprint {
		err = cay.Errorf(cay.Denied, "the certificate is not node %s's", id)
	}
	return err
}

// Serving lists the nodes whose servers may serve.
func (m *Members) Serving() (out []cay.NodeID) {
	for id, n := range *m.view.Load() {
		if m.serves(n) {
			out = append(out, id)
		}
	}
	return out
}

func (m *Members) serves(n cay.Node) bool {
	return n.ID == m.cfg.Self.ID || (n.State == cay.NodeReady || n.State == cay.NodeStarting) && n.Silent < m.cfg.Times.Lease
}

// Away lists the nodes that have run sandboxes and whose servers do not serve.
func (m *Members) Away() (out []cay.NodeID) {
	for id, n := range *m.view.Load() {
		if !m.serves(n) && n.State != cay.NodeJoined && !n.Front {
			out = append(out, id)
		}
	}
	return out
}
