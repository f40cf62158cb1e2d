package lifecycle

import (
	"context"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control/ledger"
	"github.com/cay-run/cay/internal/store"
)

// launch is a sandbox that is to start. Its snapshot is held by the caller.
type launch struct {
	sandbox cay.Sandbox
	warm    bool // an instance that was made beforehand will do; it brings its ids
	placed  bool // another node may make it, and this one refuses where that does it better
	timeout time.Duration
	branch  cay.Branch                  // where it is in a tree, and its automatic checkpoints
	created func(cay.Sandbox) cay.Event // its first event; the ids may be the node's
}

// first is the first event of a sandbox, of the time when it was asked for.
func (l launch) first(s cay.Sandbox) cay.Event {
	e := l.created(s)
	e.At = l.sandbox.StartedAt
	return e
}

// launch starts a sandbox. The node comes first and the record after it, in one
// transaction: until then the client knows of nothing, and a server that dies
// between the two leaves an instance that no record wants, which the next one
// ends.
func (c *Controller) launch(ctx context.Context, who cay.Caller, l launch) (_ cay.Sandbox, err error) {
	defer func() { c.counted(err) }()
	s := l.sandbox
	s.Node = c.nodeID
	s.Key = who.Key
	letGo, err := c.ledger.HoldVolumes(ctx, s.Team, s.Volumes)
	if err != nil {
		return cay.Sandbox{}, err
	}
	defer letGo()
	place, leave, err := c.reserve(s)
	if err != nil {
		return cay.Sandbox{}, err
	}
	defer leave()
	var ran cay.SandboxID // stays empty unless it runs
	settle, err := c.budgets.Reserve(ctx, s, true)
	if err != nil {
		return cay.Sandbox{}, err
	}
	defer func() { settle(ran) }()
	within, cancel := context.WithTimeout(ctx, createWithin)
	defer cancel()
	spec := c.instanceSpec(s)
	spec.Warm, spec.Elsewhere = l.warm, l.placed
	instance, err := c.node.Create(within, spec)
	if err != nil {
		if cay.CodeOf(err) != cay.CodeProcessor { // else it is made by another node
			c.recordFailed(ctx, who, s, l, err)
		}
		return cay.Sandbox{}, startError(err)
	}
	s.ID, s.Instance, s.Notice = instance.Spec.Sandbox, instance.Spec.Instance, instance.Notice
	e := newEntry(s)
	e.lock <- struct{}{}
	defer e.release()
	if err := c.enter(place, e); err != nil { // the sweep ends what no record wants
		return cay.Sandbox{}, err
	}
	if err = ctx.Err(); err == nil { // else no client is left to be told its id
		err = c.diedEarly(s.Instance)
	}
	if err == nil {
		s.State, s.StartedAt = cay.Running, ledger.Now()
		s.EndAt = s.StartedAt.Add(l.timeout)
		c.look(ctx, e)
		if err = c.recordLaunch(ctx, who, e, s, l); err == nil {
			ran = s.ID
			return s, nil
		}
		if unsure(err) {
			why := err
			e.born = func(ctx context.Context) (bool, error) { return c.born(ctx, who, s, l, why) }
			born, untold := e.born(context.WithoutCancel(ctx))
			switch {
			case untold != nil: // a sweep finds it out
				e.current.Store(&s)
				e.unsure.Store(true)
				return cay.Sandbox{}, startError(err)
			case born:
				e.born = nil
				c.launched(e, s, l)
				ran = s.ID
				return s, nil
			}
		}
	}
	gone := killed(s, cay.CauseFailedStart, ledger.Now())
	e.current.Store(&gone)
	c.drop(s.ID)
	if e.born == nil && cay.KindOf(err) != cay.Exhausted && cay.CodeOf(err) != cay.CodeKeyInProgress { // a create that a quota refuses, or that comes second, leaves no record
		c.recordFailed(ctx, who, s, l, err)
	}
	c.stop(ctx, s.Instance, cay.CauseFailedStart)
	return cay.Sandbox{}, startError(err)
}

// recordLaunch records a sandbox that runs. The caller holds its lock.
func (c *Controller) recordLaunch(ctx context.Context, who cay.Caller, e *entry, s cay.Sandbox, l launch) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), ledger.EndWithin)
	defer cancel()
	e.toldEnd = s.EndAt
	branch, member := l.branchOf(s)
	err := c.recordRunning(ctx, s, func(tx store.Store) error {
		err := tx.AddSandbox(ctx, s, l.first(s), ledger.NewEvent(who, s, cay.SandboxRunning, cay.ReasonAsked, "endAt", ledger.Stamp(s.EndAt), "notice", s.Notice))
		if err == nil && member {
			err = tx.PutBranch(ctx, branch)
		}
		return err
	})
	if err == nil {
		c.launched(e, s, l)
	}
	return err
}

// branchOf is the place of a sandbox in a tree, and whether it is recorded.
func (l launch) branchOf(s cay.Sandbox) (branch cay.Branch, member bool) {
	branch = l.branch
	branch.Sandbox, branch.Team = s.ID, s.Team
	if branch.Tree == "" {
		branch.Tree = s.ID
	}
	return branch, branch.Tree != s.ID || branch.Auto.On()
}

// launched notes a sandbox whose record says that it runs. The caller holds its lock.
func (c *Controller) launched(e *entry, s cay.Sandbox, l launch) {
	branch, member := l.branchOf(s)
	e.current.Store(&s)
	e.tree.member.Store(member)
	if branch.Auto.On() {
		e.setAuto(branch.Auto)
		c.lookAtCheckpoints()
	}
	c.ledger.Wake(s.Team)
	c.lookAtDeadlines()
}

// recordFailed records a sandbox that could not be started, so that its end has
// a cause.
func (c *Controller) recordFailed(ctx context.Context, who cay.Caller, s cay.Sandbox, l launch, why error) {
	if err := c.addFailed(ctx, who, s, l, why); err != nil {
		c.log.ErrorContext(ctx, "cannot record a failed start", "sandbox", s.ID, "err", err)
	}
}

func (c *Controller) addFailed(ctx context.Context, who cay.Caller, s cay.Sandbox, l launch, why error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), ledger.EndWithin)
	defer cancel()
	s = killed(s, cay.CauseFailedStart, ledger.Now())
	err := c.store.AddSandbox(ctx, s, l.first(s), ledger.NewEvent(who, s, cay.SandboxKilled, string(s.Cause), "evidence", ledger.Visible(why)))
	if err == nil {
		c.ledger.Wake(s.Team)
	}
	return err
}

// orphansMost is how many deaths are kept of instances that no record names:
// one of them may be about to be recorded.
const orphansMost = 256

// keepOrphan notes the death of an instance that is not known.
func (c *Controller) keepOrphan(d cay.Death) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.orphans) == orphansMost {
		c.orphans = append(c.orphans[:0], c.orphans[1:]...)
	}
	c.orphans = append(c.orphans, d)
}

// diedEarly is an error for an instance that died before it was known.
func (c *Controller) diedEarly(id cay.InstanceID) error {
	c.mu.RLock()
	defer c.mu.RUnlock()
	for _, d := range c.orphans {
		if d.Instance == id {
			return cay.Errorf(cay.Internal, "it died: %s (%s)", d.Cause, d.Detail)
		}
	}
	return nil
}
