// Package control holds the use cases: create, list, extend, pause, resume,
// fork and kill sandboxes, take snapshots, find templates. It is the only writer of a sandbox's state. Truth
// is in the store; what lives is kept in memory as well, and a node does the
// work.
package control

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/disk"
	"github.com/cay-run/cay/internal/guest"
	"github.com/cay-run/cay/internal/logbook"
	"github.com/cay-run/cay/internal/store"
)

// Node runs sandboxes. Create leaves nothing behind when it fails; Kill of an
// unknown instance is no error; Deaths tells of every instance that ended,
// also of those that were killed or paused.
type Node interface {
	Create(ctx context.Context, spec cay.InstanceSpec) (cay.Instance, error)
	// Claim looks for an instance that was made beforehand of what shape
	// names: a snapshot, its template and build, limits. It is then to be
	// created or killed under the ids that it has.
	Claim(shape cay.InstanceSpec) (cay.SandboxID, cay.InstanceID, bool)
	// Prepare is Create, but requests do not reach the instance before Route
	// has them reach it, in place of any other of its sandbox.
	Prepare(ctx context.Context, spec cay.InstanceSpec) (cay.Instance, error)
	Route(id cay.InstanceID) error
	// Pause saves an instance and ends it; Checkpoint saves it and lets it
	// run on. Of the record it takes the ids and whose agent is inside. An
	// error means that nothing was saved and the instance runs on, unless it
	// died, which Deaths tells.
	Pause(ctx context.Context, id cay.InstanceID, record cay.Snapshot) error
	Checkpoint(ctx context.Context, id cay.InstanceID, record cay.Snapshot) error
	// Snapshots lists what was saved of sandboxes. RemoveSnapshot removes
	// such a one; any other is left alone.
	Snapshots() []cay.Snapshot
	// Snapshot returns the record of a snapshot.
	Snapshot(id cay.SnapshotID) (cay.Snapshot, error)
	RemoveSnapshot(ctx context.Context, id cay.SnapshotID) error
	// Compare tells which files differ between two moments.
	Compare(ctx context.Context, before, after cay.Moment) (cay.Comparison, error)

	// ImageExtents says where on the disk a root image is; nil where that is
	// not known.
	ImageExtents(digest string) []disk.Extent
	// ImageSize is how many bytes a root image takes on the disk.
	ImageSize(digest string) int64
	Kill(ctx context.Context, id cay.InstanceID, cause cay.Cause) error
	// SetNetwork replaces an instance's policy: all of it, or nothing.
	SetNetwork(ctx context.Context, id cay.InstanceID, p cay.NetworkPolicy) error
	Instances() []cay.Instance
	// Connections lists what an instance tried to reach lately.
	Connections(id cay.InstanceID) []cay.Connection
	Usage(ctx context.Context, id cay.InstanceID) (cay.Usage, error)
	// Diary asks the guest what happened inside after an entry.
	// guest.ErrNoDiary when it cannot tell.
	Diary(ctx context.Context, id cay.InstanceID, after int64) (guest.Diary, error)
	Deaths() <-chan cay.Death
}

// Tokens derives the tokens of a sandbox from its id.
type Tokens interface {
	Access(id cay.SandboxID) string
	Traffic(id cay.SandboxID) string
}

// MaxTimeout is the longest time that a sandbox can be given at once.
const MaxTimeout = 30 * 24 * time.Hour

const (
	createWithin = time.Minute      // a client waits no longer
	saveWithin   = 10 * time.Minute // a large memory on a slow disk
	endWithin    = 30 * time.Second // to record an end and have the node carry it out
	retryAfter   = 5 * time.Second  // when an end could not be recorded
	sweepEvery   = 5 * time.Second  // metrics, and what node and store disagree on
	lookAgain    = time.Minute      // at deadlines, in case the clock was set
	keepKilled   = 7 * 24 * time.Hour
	pruneEvery   = time.Hour
)

// Config is what a Control needs. Logs keeps what guests say. Logs and Log
// may be nil.
type Config struct {
	Store  store.Store
	Node   Node
	NodeID cay.NodeID
	Tokens Tokens
	Logs   *logbook.Book
	Sealer Sealer // nil keeps no secrets
	Log    *slog.Logger
	// TeamSandboxes and TeamMemoryMB bound what a team may have running at
	// once, in number and in what their templates promise; 0 is no bound.
	TeamSandboxes, TeamMemoryMB int
	// Builder builds templates; nil for a server that builds none. Reserved
	// are the names of templates that Cay brings, Extras those of them that are
	// there only when an operator asked for them.
	Builder  Builder
	Reserved []string
	Extras   []string
}

// Control carries the use cases out.
type Control struct {
	store  store.Store
	node   Node
	nodeID cay.NodeID
	tokens Tokens
	logs   *logbook.Book
	sealer Sealer
	log    *slog.Logger
	most   quota

	readers chan struct{}  // a token for each diary that is read in the background
	reading sync.WaitGroup // them

	wake     chan struct{} // a deadline changed
	wakeAuto chan struct{} // an automatic checkpoint may be due
	told     hub           // events were recorded

	mu   sync.RWMutex
	live map[cay.SandboxID]*entry // all that are not killed
	pins map[cay.SnapshotID]int   // snapshots that are at work but in no record
	// claimed are idempotency keys that a create is at work with; each
	// channel is closed when it is done.
	claimed map[onceKey]chan struct{}

	builds    builds
	comparing turns

	// collecting is held for writing while a snapshot is found unused and
	// removed, and for reading from the choice of a snapshot to its record.
	collecting sync.RWMutex
}

// entry is a sandbox that is not killed. Who changes it holds its lock from
// the decision to the record; who reads it takes what is recorded.
type entry struct {
	lock    chan struct{} // holds a value while locked
	current atomic.Pointer[cay.Sandbox]
	metrics history
	diary   diary
	reports allowance   // of events that the guest causes
	toldEnd time.Time   // the end that the last event told
	later   *unrecorded // nil once it is recorded

	tree treeState

	ending   atomic.Bool  // Run is ending it
	notUntil atomic.Int64 // Unix milliseconds before which Run does not try again
	missed   int          // sweeps in a row that did not find its instance
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
func Open(ctx context.Context, cfg Config) (*Control, error) {
	c := &Control{
		store: cfg.Store, node: cfg.Node, nodeID: cfg.NodeID, tokens: cfg.Tokens, sealer: cfg.Sealer, logs: cfg.Logs, log: cfg.Log,
		most:    quota{cfg.TeamSandboxes, cfg.TeamMemoryMB},
		readers: make(chan struct{}, diaryReaders),
		wake:    make(chan struct{}, 1), wakeAuto: make(chan struct{}, 1),
		live:    make(map[cay.SandboxID]*entry),
		pins:    make(map[cay.SnapshotID]int),
		claimed: make(map[onceKey]chan struct{}),
	}
	c.builds.open(cfg)
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	if err := c.reconcile(ctx); err != nil {
		return nil, err
	}
	if err := c.endLostBuilds(ctx); err != nil {
		return nil, err
	}
	return c, nil
}

func (c *Control) reconcile(ctx context.Context) error {
	rows, err := c.store.LiveSandboxes(ctx)
	if err != nil {
		return err
	}
	unclaimed := make(map[cay.InstanceID]cay.Instance)
	for _, i := range c.node.Instances() {
		unclaimed[i.Spec.Instance] = i
	}
	snapshots := c.node.Snapshots()
	saved := make(map[cay.SnapshotID]bool)
	for _, s := range snapshots {
		saved[s.ID] = true
	}
	for _, s := range rows {
		var instance *cay.Instance
		if i, ok := unclaimed[s.Instance]; ok {
			instance = &i
		}
		found := settled(s, instance, saved[s.Snapshot])
		found, changed := inForce(found, instance)
		var events []cay.Event
		if found.State == cay.Running {
			delete(unclaimed, s.Instance)
		}
		if found.State != s.State {
			c.log.Warn("sandbox was left half way", "sandbox", s.ID, "was", s.State, "is", found.State, "cause", found.Cause)
			changed = true
			events = append(events, foundEvent(ctx, found))
		}
		if changed {
			if err := c.store.UpdateNetwork(ctx, found, events...); err != nil {
				return err
			}
		}
		if found.State != cay.Killed {
			c.live[s.ID] = newEntry(found)
		}
	}
	if err := c.reconcileTrees(ctx); err != nil {
		return err
	}
	for id, i := range unclaimed {
		c.log.Warn("instance has no record", "instance", id, "sandbox", i.Spec.Sandbox)
		c.stop(ctx, id, cay.CauseHostLost)
	}
	for _, s := range snapshots {
		c.discard(ctx, s.ID)
	}
	return nil
}

// settled returns what has become of a sandbox while no server was there.
// What was under way and not done is undone where that can be: a pause whose
// guest lives did not happen, nor did a resume, of which nobody was told.
func settled(s cay.Sandbox, instance *cay.Instance, saved bool) cay.Sandbox {
	switch {
	case s.State == cay.Paused:
	case s.State == cay.Running && instance != nil:
	case s.State == cay.Pausing && instance != nil:
		s.State, s.Snapshot = cay.Running, instance.Spec.Snapshot
	case (s.State == cay.Pausing || s.State == cay.Resuming) && saved:
		s = paused(s)
	case s.State == cay.Creating: // nobody was told of it
		s = killed(s, cay.CauseFailedStart, now())
	default:
		s = killed(s, cay.CauseHostLost, now())
	}
	return s
}

// now has the precision of all recorded times.
func now() time.Time { return time.Now().UTC().Truncate(time.Millisecond) }

// killed returns the record of a sandbox that ended. What it was given as
// environment holds secrets and is of no more use.
func killed(s cay.Sandbox, cause cay.Cause, at time.Time) cay.Sandbox {
	s.State, s.Cause, s.EndedAt, s.Env = cay.Killed, cause, at.UTC().Truncate(time.Millisecond), nil
	return s
}

func errNoSandbox(id cay.SandboxID) error {
	return cay.Errorf(cay.NotFound, "sandbox %q not found: it doesn't exist or you don't have access to it", string(id))
}

// find returns a team's living sandbox.
func (c *Control) find(team cay.TeamID, id cay.SandboxID) (*entry, error) {
	c.mu.RLock()
	e := c.live[id]
	c.mu.RUnlock()
	if e == nil {
		return nil, errNoSandbox(id)
	}
	if s := e.sandbox(); s.Team != team || s.State == cay.Creating {
		return nil, errNoSandbox(id)
	}
	return e, nil
}

// entries returns all that lives.
func (c *Control) entries() []*entry {
	c.mu.RLock()
	defer c.mu.RUnlock()
	out := make([]*entry, 0, len(c.live))
	for _, e := range c.live {
		out = append(out, e)
	}
	return out
}

// change runs f on a team's sandbox while nobody else changes it.
func (c *Control) change(ctx context.Context, team cay.TeamID, id cay.SandboxID, f func(*entry, cay.Sandbox) error) error {
	e, err := c.find(team, id)
	if err != nil {
		return err
	}
	if err := e.acquire(ctx); err != nil {
		return err
	}
	defer e.release()
	s := e.sandbox()
	if s.State == cay.Killed { // while this waited
		return errNoSandbox(id)
	}
	return f(e, s)
}

// save records a sandbox and what happened to it. The caller holds its lock. A
// caller that goes away must not leave memory and store apart, so this cannot
// be cancelled. The network stays as it is recorded: only changeNetwork changes
// it.
func (c *Control) save(ctx context.Context, e *entry, s cay.Sandbox, events ...cay.Event) error {
	return c.record(ctx, c.store.UpdateSandbox, e, s, events)
}

// record is save with what the store is to replace, unless there is no record
// yet.
func (c *Control) record(ctx context.Context, update func(context.Context, cay.Sandbox, ...cay.Event) error, e *entry, s cay.Sandbox, events []cay.Event) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endWithin)
	defer cancel()
	if e.later != nil {
		update, events = c.store.AddSandbox, append(e.later.events, events...)
	}
	if err := update(ctx, s, events...); err != nil {
		return err
	}
	e.forgetLater()
	e.current.Store(&s)
	if len(events) > 0 {
		c.told.wake(s.Team)
	}
	select {
	case c.wake <- struct{}{}:
	default:
	}
	return nil
}

// end kills a sandbox. The caller holds its lock. The record comes first: if
// the server dies after it, the next one finds an instance that no record
// wants. Evidence, if any, is of the cause.
func (c *Control) end(ctx context.Context, e *entry, cause cay.Cause, at time.Time, evidence string) error {
	s := killed(e.sandbox(), cause, at)
	if err := c.save(ctx, e, s, event(ctx, s, cay.SandboxKilled, string(cause), "evidence", evidence)); err != nil {
		return err
	}
	c.drop(s.ID)
	c.log.Info("sandbox ended", "sandbox", s.ID, "cause", cause)
	if cause == cay.CauseAsked || cause == cay.CauseTimeout { // else nobody is there to answer
		c.readDiary(ctx, e, diaryLast)
	}
	c.stop(ctx, s.Instance, cause)
	c.discard(ctx, s.Snapshot)
	c.leaveTree(ctx, e, s)
	return nil
}

func (c *Control) drop(id cay.SandboxID) {
	c.mu.Lock()
	delete(c.live, id)
	c.mu.Unlock()
}

// stop has the node end an instance. What fails here is tried again by the
// sweep, for as long as the node has the instance.
func (c *Control) stop(ctx context.Context, id cay.InstanceID, cause cay.Cause) {
	if id == "" { // it was paused
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endWithin)
	defer cancel()
	if err := c.node.Kill(ctx, id, cause); err != nil {
		c.log.Error("cannot end an instance", "instance", id, "error", err)
	}
}
