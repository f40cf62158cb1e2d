// Package lifecycle holds the use cases of live sandboxes: create, extend,
// pause, resume, fork, roll back and kill. It is the only writer of a sandbox's
// state. Truth is in the store; the controller keeps the live sandboxes of its
// node in memory as well, with locks and deadlines, and the node does the work.
package lifecycle

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control/audit"
	"github.com/cay-run/cay/internal/control/ledger"
	"github.com/cay-run/cay/internal/control/logbook"
	"github.com/cay-run/cay/internal/guest"
	"github.com/cay-run/cay/internal/store"
	"github.com/cay-run/cay/internal/trail"
)

// Node runs sandboxes. Create leaves nothing behind when it fails; Kill of an
// unknown instance is no error; Deaths tells of every instance that ended,
// also of those that were killed or paused.
//
// The node may be another machine's: every call can fail, and events that it tells in
// order is asked for with a cursor.
type Node interface {
	// Where spec welcomes an instance that was made beforehand, Create may answer
	// with one, which has other ids than spec and the tokens that go with them.
	Create(ctx context.Context, spec cay.InstanceSpec) (cay.Instance, error)
	// Prepare is Create, but requests do not reach the instance before Route
	// has them reach it, in place of any other of its sandbox.
	Prepare(ctx context.Context, spec cay.InstanceSpec) (cay.Instance, error)
	Route(ctx context.Context, id cay.InstanceID) error
	// Pause saves an instance and ends it; Checkpoint saves it and lets it
	// run on. They take ids, team and sandbox of the record. An error means
	// that nothing was saved and the instance runs on, unless it died, which
	// Deaths tells.
	Pause(ctx context.Context, id cay.InstanceID, record cay.Snapshot) error
	Checkpoint(ctx context.Context, id cay.InstanceID, record cay.Snapshot) error
	// Snapshots lists what was saved of sandboxes.
	Snapshots(ctx context.Context) ([]cay.Snapshot, error)
	// Snapshot returns the record of a snapshot that is on this machine; Record of one
	// that can be got from elsewhere too.
	Snapshot(ctx context.Context, id cay.SnapshotID) (cay.Snapshot, error)
	Record(ctx context.Context, id cay.SnapshotID) (cay.Snapshot, error)
	// Fits says which feature of a processor this machine lacks for a snapshot's memory.
	Fits(ctx context.Context, s cay.Snapshot) error
	// Starts says why this machine can start a snapshot neither with its memory nor from its files.
	Starts(ctx context.Context, s cay.Snapshot) error
	// SavedBytes returns how many bytes a team has in snapshots of its sandboxes,
	// without some of them.
	SavedBytes(ctx context.Context, team cay.TeamID, but ...cay.SnapshotID) (int64, error)
	// Compare tells which files differ between two moments.
	Compare(ctx context.Context, before, after cay.Moment) (cay.Comparison, error)
	Kill(ctx context.Context, id cay.InstanceID, cause cay.Cause) error
	// SetNetwork replaces an instance's policy: all of it, or nothing.
	SetNetwork(ctx context.Context, id cay.InstanceID, p cay.NetworkPolicy) error
	Instances(ctx context.Context) ([]cay.Instance, error)
	// Connections lists what an instance tried to reach lately.
	Connections(ctx context.Context, id cay.InstanceID) ([]cay.Connection, error)
	Usage(ctx context.Context, id cay.InstanceID) (cay.Usage, error)
	// Responds asks the agent of an instance whether it answers. An error
	// means that it did not before ctx ended.
	Responds(ctx context.Context, id cay.InstanceID) error
	// Diary asks the guest what happened inside after an entry.
	// toagent.ErrNoDiary when it cannot tell.
	Diary(ctx context.Context, id cay.InstanceID, after int64) (guest.Diary, error)
	// Deaths tells how instances ended, after a cursor, and the cursor to ask
	// with next. It waits for one. Until it is asked with a later cursor, it
	// tells the same again.
	Deaths(ctx context.Context, after cay.Cursor) ([]cay.Death, cay.Cursor, error)
}

// Tokens derives the tokens of a sandbox from its id.
type Tokens interface {
	Access(id cay.SandboxID) string
	AccessAs(id cay.SandboxID, by cay.Origins) string
	Traffic(id cay.SandboxID) string
}

// MaxTimeout is the longest time that a sandbox can be given at once.
const MaxTimeout = 30 * 24 * time.Hour

const (
	createWithin = time.Minute      // a client waits no longer
	saveWithin   = 10 * time.Minute // a large memory on a slow disk
	retryAfter   = 5 * time.Second  // when an end failed, and twice that the next time
	retryMost    = 5 * time.Minute
	sweepEvery   = 5 * time.Second // metrics, and what node and store disagree on
	lookAgain    = time.Minute     // at deadlines, in case the clock was set
	pruneEvery   = time.Hour
)

// Config is what a Controller needs. Logs keeps what guests say. Logs and Log
// may be nil.
type Config struct {
	Ledger *ledger.Ledger
	Store  store.Store
	Node   Node
	NodeID cay.NodeID
	// Member says that other nodes have sandboxes in the records as well.
	Member bool
	// Leads reports whether this server does what one does for all.
	Leads func() bool
	// Elsewhere reports whether another node that takes sandboxes has a processor with such
	// features; nil on a machine alone.
	Elsewhere func(ctx context.Context, features []string) bool
	// Bring has another node hand a sandbox over to this one (Give); nil on a machine alone.
	Bring func(ctx context.Context, id cay.SandboxID) error

	Tokens Tokens
	Logs   *logbook.Book
	Audit  *audit.Log // nil counts nothing
	Log    *slog.Logger
	// Copies says that snapshots are copied to a bucket; Durable, that each pause that
	// was asked for waits for its copy.
	Copies, Durable bool
	// Hurry has the next copy begin at once; nil leaves it to its time.
	Hurry func()
	// CopiesFail is why copies do not get on, as was seen since a time; nil knows of nothing.
	CopiesFail func(since time.Time) error
	// Budgets are asked before anything runs; nil has none.
	Budgets Budgets
}

// Controller carries out the use cases of one node's sandboxes.
type Controller struct {
	started, failed atomic.Int64 // starts of sandboxes

	ledger *ledger.Ledger
	store  store.Store
	node   Node
	nodeID cay.NodeID
	tokens Tokens
	logs   *logbook.Book
	audit  *audit.Log
	log    *slog.Logger

	budgets Budgets

	copies, durable bool
	hurry           func()
	copiesFail      func(since time.Time) error
	member          bool // of a cluster
	leads           func() bool
	elsewhere       func(ctx context.Context, features []string) bool
	bring           func(ctx context.Context, id cay.SandboxID) error

	readers chan struct{}  // a token for each diary that is read in the background
	reading sync.WaitGroup // them
	leaving sync.WaitGroup // instances that end after another one has replaced them

	wake     chan struct{} // a deadline changed
	wakeAuto chan struct{} // an automatic checkpoint may be due

	mu   sync.RWMutex
	live map[cay.SandboxID]*entry // all that are not killed
	// teams are the same by their team: put and drop change both.
	teams map[cay.TeamID]map[cay.SandboxID]*entry
	ends  ends
	// starting are the places that are taken for sandboxes to come, orphans the
	// last deaths of instances that were not known.
	starting map[*starting]struct{}
	drain    cay.Drain  // but for DrainNone, no new sandboxes are taken
	drains   sync.Mutex // held by the one that changes it and its record
	left     left       // what went to other nodes
	orphans  []cay.Death
	// uncopied are checkpoints that the bucket lacks, as far as is known.
	uncopied map[cay.SnapshotID]cay.TeamID
	// claimed are idempotency keys that a create is at work with; each
	// channel is closed when it is done.
	claimed map[onceKey]chan struct{}

	unheld       atomic.Bool // the records may have sandboxes of this node that it does not know
	lookedForOwn time.Time   // of the sweep

	saves saves

	comparing, searching turns
}

// entry is a sandbox that is not killed. A change holds its lock from the
// decision to the record; a reader takes the record.
type entry struct {
	lock    chan struct{} // holds a value while locked
	current atomic.Pointer[cay.Sandbox]
	metrics history
	diary   diary
	reports allowance // of events that the guest causes
	toldEnd time.Time // the end that the last event told

	tree treeState

	moving     atomic.Pointer[chan struct{}] // closed when it is on another node, or stays; nil while it is not on its way
	moveFailed atomic.Pointer[moveFailed]    // nil unless its last move failed
	lost       atomic.Bool                   // its machine was lost, and it goes on by that

	ending      atomic.Bool              // Run is ending it
	endFailed   atomic.Pointer[endRetry] // nil unless its end failed
	pauseFailed string                   // why the last pause failed, if it did; guarded by the lock
	missed      int                      // sweeps in a row that did not find its instance

	unsure atomic.Bool                         // a change of its record may count or not
	born   func(context.Context) (bool, error) // whether it is recorded, where that is not known; guarded by the lock
	place  *cay.Branch                         // its place in its tree, where the record may have another one; guarded by the lock
	spares atomic.Pointer[[]cay.InstanceID]    // instances that the record may name: they end when it is known
}

func newEntry(s cay.Sandbox) *entry {
	e := &entry{lock: make(chan struct{}, 1), toldEnd: s.EndAt}
	e.current.Store(&s)
	return e
}

func (e *entry) acquire(ctx context.Context) error {
	select {
	case e.lock <- struct{}{}:
		return nil
	case <-ctx.Done():
		return cay.Wrap(cay.Unavailable, ctx.Err(), "sandbox %s is busy", e.sandbox().ID)
	}
}

func (e *entry) release() { <-e.lock }

// sandbox returns the record. Its maps are shared and never written.
func (e *entry) sandbox() cay.Sandbox { return *e.current.Load() }

// Open brings store and node to agree: a sandbox whose instance is gone is
// killed, or paused if it was saved; an instance or a snapshot that no record
// wants is removed. Run must follow.
func Open(ctx context.Context, cfg Config) (*Controller, error) {
	c := &Controller{
		ledger: cfg.Ledger, store: cfg.Store, node: cfg.Node, nodeID: cfg.NodeID, tokens: cfg.Tokens, logs: cfg.Logs, audit: cfg.Audit, log: cfg.Log,
		copies: cfg.Copies, durable: cfg.Durable, hurry: cfg.Hurry, copiesFail: cfg.CopiesFail,
		readers: make(chan struct{}, diaryReaders),
		wake:    make(chan struct{}, 1), wakeAuto: make(chan struct{}, 1),
		live: make(map[cay.SandboxID]*entry), teams: make(map[cay.TeamID]map[cay.SandboxID]*entry), starting: make(map[*starting]struct{}),
		claimed: make(map[onceKey]chan struct{}), uncopied: make(map[cay.SnapshotID]cay.TeamID), member: cfg.Member, leads: cfg.Leads, elsewhere: cfg.Elsewhere, bring: cfg.Bring,
	}
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	if c.budgets = cfg.Budgets; c.budgets == nil {
		c.budgets = unbound{}
	}
	var err error
	how, err := c.store.Drain(ctx, c.nodeID)
	if err != nil {
		return nil, err
	}
	c.Drained(how)
	return c, c.reconcile(ctx, cfg.Member)
}

// killed returns the record of a sandbox that ended. Its environment holds secrets
// and is of no more use.
func killed(s cay.Sandbox, cause cay.Cause, at time.Time) cay.Sandbox {
	s.State, s.Cause, s.EndedAt, s.Env = cay.Killed, cause, at.UTC().Truncate(time.Millisecond), nil
	return s
}

// find returns a team's living sandbox.
func (c *Controller) find(team cay.TeamID, id cay.SandboxID) (*entry, error) {
	c.mu.RLock()
	e := c.live[id]
	c.mu.RUnlock()
	if e == nil {
		return nil, ledger.NoSandbox(id)
	}
	if s := e.sandbox(); s.Team != team || s.State == cay.Creating {
		return nil, ledger.NoSandbox(id)
	}
	return e, nil
}

// living is find for a sandbox that may be another node's.
func (c *Controller) living(ctx context.Context, team cay.TeamID, id cay.SandboxID) (cay.Sandbox, error) {
	e, err := c.find(team, id)
	if err == nil {
		return e.sandbox(), nil
	}
	if !c.member {
		return cay.Sandbox{}, err
	}
	s, err := c.store.Sandbox(ctx, team, id)
	if err == nil && (s.State == cay.Killed || s.State == cay.Creating) {
		err = ledger.NoSandbox(id)
	}
	return s, err
}

// entries returns all that lives.
func (c *Controller) entries() []*entry {
	c.mu.RLock()
	defer c.mu.RUnlock()
	out := make([]*entry, 0, len(c.live))
	for _, e := range c.live {
		out = append(out, e)
	}
	return out
}

// Counts is how many sandboxes each team has, by state.
func (c *Controller) Counts() map[cay.TeamID]map[cay.State]int {
	out := make(map[cay.TeamID]map[cay.State]int)
	for _, e := range c.entries() {
		s := e.current.Load()
		if out[s.Team] == nil {
			out[s.Team] = make(map[cay.State]int)
		}
		out[s.Team][s.State]++
	}
	return out
}

// change runs f on a team's sandbox while no other caller changes it.
func (c *Controller) change(ctx context.Context, team cay.TeamID, id cay.SandboxID, f func(*entry, cay.Sandbox) error) error {
	e, err := c.find(team, id)
	if err != nil {
		return err
	}
	if err := e.acquire(ctx); err != nil {
		return err
	}
	defer e.release()
	if err := c.still(e, e.sandbox()); err != nil { // while this waited
		return err
	}
	if err := c.settled(ctx, e); err != nil {
		return err
	}
	return f(e, e.sandbox())
}

// still reports, as an error, a sandbox that is over, or another node's by now. The
// caller holds its lock.
func (c *Controller) still(e *entry, s cay.Sandbox) error {
	switch {
	case s.State == cay.Killed:
		return ledger.NoSandbox(s.ID)
	case c.entry(s.ID) != e:
		return errLeft(s.ID)
	}
	return nil
}

// save records a sandbox and what happened to it. The caller holds its lock. A
// caller that goes away must not leave memory and store apart, so this cannot
// be cancelled. The network stays as it is recorded: only changeNetwork changes
// it.
func (c *Controller) save(ctx context.Context, e *entry, s cay.Sandbox, events ...cay.Event) error {
	return c.record(ctx, e, s, func(ctx context.Context, s cay.Sandbox) error { return c.store.UpdateSandbox(ctx, s, events...) })
}

// record is save with what is to be written: the only way to change the record of a
// sandbox that lives (TestOneDoor). The version is the one that this server knows:
// Conflict when another one has changed the record.
func (c *Controller) record(ctx context.Context, e *entry, s cay.Sandbox, write func(context.Context, cay.Sandbox) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), ledger.EndWithin)
	defer cancel()
	s.Version, s.Reading = e.sandbox().Version, e.metrics.reading(e.sandbox().Instance)
	err := write(ctx, s)
	if cay.KindOf(err) == cay.Conflict {
		recorded, over := c.readBack(ctx, e)
		switch {
		case cay.KindOf(over) == cay.NotFound:
			return over
		case over == nil && e.unsure.Load() && recorded.Version != s.Version:
			s.Version = recorded.Version
			err = write(ctx, s)
		}
	}
	if err := e.noted(err); err != nil {
		return err
	}
	s.Version++
	e.current.Store(&s)
	c.ledger.Wake(s.Team)
	c.lookAtDeadlines()
	return nil
}

// lookAtDeadlines says that one may have changed.
func (c *Controller) lookAtDeadlines() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// end kills a sandbox. The caller holds its lock. The record comes first: if
// the server dies after it, the next one finds an instance that no record
// wants. Evidence, if any, is of the cause.
func (c *Controller) end(ctx context.Context, who cay.Caller, e *entry, cause cay.Cause, at time.Time, evidence string) (err error) {
	ctx, done := trail.Begin(ctx, trail.Kill)
	defer func() { done(err) }()
	c.look(ctx, e)
	was := e.sandbox()
	s := killed(was, cause, at)
	if err := c.save(ctx, e, s, ledger.NewEvent(who, s, cay.SandboxKilled, string(cause), "evidence", evidence)); err != nil {
		return err
	}
	c.over(ctx, e, was, s)
	return nil
}

// over ends the instance of a sandbox whose end is recorded. The caller holds its lock.
func (c *Controller) over(ctx context.Context, e *entry, was, s cay.Sandbox) {
	c.drop(s.ID)
	c.log.InfoContext(ctx, "sandbox ended", "sandbox", s.ID, "cause", s.Cause)
	if s.Cause == cay.CauseAsked || s.Cause == cay.CauseTimeout { // else no guest is there to answer
		c.readDiary(ctx, e, diaryLast)
	}
	c.stop(ctx, was.Instance, s.Cause)
	c.endSpares(ctx, e)
	c.ledger.Tidy(ctx, was.Snapshot)
	c.leaveTree(ctx, e, s)
}

// put makes a sandbox known. The caller holds c.mu, or is alone.
func (c *Controller) put(e *entry) {
	s := e.current.Load()
	c.live[s.ID] = e
	if c.teams[s.Team] == nil {
		c.teams[s.Team] = make(map[cay.SandboxID]*entry)
	}
	c.teams[s.Team][s.ID] = e
}

func (c *Controller) drop(id cay.SandboxID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.live[id]
	if e == nil {
		return
	}
	delete(c.live, id)
	s := e.current.Load()
	if s.State == cay.Killed {
		c.ends.note(id, s.Cause)
	}
	team := s.Team
	if delete(c.teams[team], id); len(c.teams[team]) == 0 {
		delete(c.teams, team)
	}
}

// stop has the node end an instance. After a failure the sweep tries again, for as
// long as the node has the instance.
func (c *Controller) stop(ctx context.Context, id cay.InstanceID, cause cay.Cause) {
	if id == "" { // it was paused
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), ledger.EndWithin)
	defer cancel()
	if err := c.node.Kill(ctx, id, cause); err != nil {
		c.log.ErrorContext(ctx, "cannot end an instance", "instance", id, "err", err)
	}
}

func (c *Controller) entry(id cay.SandboxID) *entry {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.live[id]
}
