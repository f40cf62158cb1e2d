package lifecycle

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control/ledger"
	"github.com/cay-run/cay/internal/store"
)

// Has reports whether a sandbox that is not over is this node's. It waits, for as long
// as ctx lasts, for the end of the way of one that goes to another node.
func (c *Controller) Has(ctx context.Context, id cay.SandboxID) (bool, error) {
	for {
		e := c.entry(id)
		if e == nil {
			return false, nil
		}
		arrived := e.moving.Load()
		if arrived == nil {
			return true, nil
		}
		select {
		case <-*arrived:
		case <-ctx.Done():
			return false, errOnItsWay(id)
		}
	}
}

// errLeft refuses what came here when a sandbox had left.
func errLeft(id cay.SandboxID) error {
	return cay.Errorf(cay.Unavailable, "sandbox %s has just gone to another node", id).WithCode(cay.CodeNodeAway).WithHint("try again")
}

// errOnItsWay refuses what a sandbox cannot do between two nodes.
func errOnItsWay(id cay.SandboxID) error {
	return cay.Errorf(cay.Unavailable, "sandbox %s is on its way to another node", id).WithCode(cay.CodeNodeAway).
		WithHint("it goes on there by itself; try again in some seconds")
}

// Use tells what the sandboxes of this node take of it.
func (c *Controller) Use() cay.NodeUse {
	l := c.load()
	return cay.NodeUse{Running: l.Running, Starting: l.Starting, Paused: l.Paused, Stuck: c.stuck(), PromisedCPUs: l.CPUs, PromisedMB: l.MemoryMB}
}

// Drained has the node follow its record, which another member may have changed.
func (c *Controller) Drained(how cay.Drain) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.drain != how {
		for _, e := range c.live {
			e.moveFailed.Store(nil)
		}
	}
	if c.drain == cay.DrainNone && how != cay.DrainNone {
		c.left.forget() // the records know of what left before
	}
	c.drain = how
}

// drained is how this node is drained.
func (c *Controller) drained() cay.Drain {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.drain
}

// Adopt makes a paused sandbox this node's whose own node is gone. Conflict where it
// is not so, or another node was first; Unavailable with CodeProcessor where another
// node's processor can go on with its memory, and this one's cannot.
func (c *Controller) Adopt(ctx context.Context, id cay.SandboxID) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), ledger.EndWithin)
	defer cancel()
	if err := c.fits(ctx, id, c.elsewhere); err != nil {
		return err
	}
	s, err := c.store.AdoptSandbox(ctx, id, c.nodeID)
	if c.mine(err) != nil {
		return err
	}
	e := c.enterPaused(ctx, s)
	e.lost.Store(true)
	c.log.InfoContext(ctx, "a paused sandbox of a node that is gone is this node's now", "sandbox", id)
	return nil
}

// Take makes a paused sandbox with its log this node's that its node hands over, as that
// node knows it, and has it go on if it is moving. Unavailable means that nothing has
// changed.
func (c *Controller) Take(ctx context.Context, id cay.SandboxID, from cay.NodeID, version int64, log []byte) error {
	if c.drained() != cay.DrainNone {
		return cay.Errorf(cay.Unavailable, "this node is drained itself").WithCode(cay.CodeCapacity)
	}
	ctx = context.WithoutCancel(ctx)
	within, cancel := context.WithTimeout(ctx, ledger.EndWithin)
	defer cancel()
	if err := c.fits(within, id, func(context.Context, []string) bool { return true }); err != nil { // it stays where it is
		return err
	}
	s, err := c.store.TakeSandbox(within, id, from, version, c.nodeID)
	if c.mine(err) != nil {
		return err
	}
	if err := c.logs.Unpack(id, log); err != nil {
		c.log.WarnContext(ctx, "a sandbox comes from another node without its log", "sandbox", id, "err", err)
	}
	e := c.enterPaused(within, s)
	c.log.InfoContext(ctx, "a paused sandbox of another node is this node's now", "sandbox", id, "from", from, "goes on", s.Moving)
	if s.Moving {
		c.moved(ctx, e, c.goOn(ctx, e))
	}
	return nil
}

// fits refuses a paused sandbox whose memory this machine's processor cannot go on with, if
// another place is better for it.
func (c *Controller) fits(ctx context.Context, id cay.SandboxID, better func(ctx context.Context, features []string) bool) error {
	home, err := c.store.SandboxHome(ctx, id)
	if err != nil {
		return err
	}
	s, err := c.store.Sandbox(ctx, home.Team, id)
	if err != nil {
		return err
	}
	return c.restores(ctx, s.Snapshot, better)
}

// restores refuses a snapshot whose memory this machine's processor cannot go on with, if
// another place is better for it.
func (c *Controller) restores(ctx context.Context, id cay.SnapshotID, better func(ctx context.Context, features []string) bool) error {
	record, err := c.node.Record(ctx, id)
	if err != nil { // its start tells
		return nil
	}
	why := c.node.Fits(ctx, record)
	if why == nil || better == nil || !better(ctx, record.CPUFeatures) {
		return nil
	}
	return cay.Wrap(cay.Unavailable, why, "another node can go on with it: %s", ledger.Visible(why)).WithCode(cay.CodeProcessor)
}

// enterPaused makes a paused sandbox known that has become this node's. The record says so, and no
// error changes that: where its place in its tree cannot be read now, a sweep reads it.
func (c *Controller) enterPaused(ctx context.Context, s cay.Sandbox) *entry {
	e := newEntry(s)
	branch, err := c.store.Branch(ctx, s.Team, s.ID)
	if err != nil {
		c.log.WarnContext(ctx, "the place of a sandbox in its tree is not known yet", "sandbox", s.ID, "err", err)
		e.unsure.Store(true)
	} else {
		e.enterTree(branch)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if known := c.live[s.ID]; known != nil {
		return known
	}
	c.put(e)
	return e
}

// mine has the next sweep look for sandboxes that this node has by the records alone, where
// it is not known whether one has become its.
func (c *Controller) mine(err error) error {
	if unsure(err) {
		c.unheld.Store(true)
	}
	return err
}

// lookForOwn is how often they are looked for besides.
const lookForOwn = 10 * time.Minute

// enterOwn makes the paused sandboxes known that the records say are this node's. One that is
// another node's by now, or over, is left again as its record is settled.
func (c *Controller) enterOwn(ctx context.Context) {
	if !c.member || !c.unheld.Swap(false) && time.Since(c.lookedForOwn) < lookForOwn {
		return
	}
	c.lookedForOwn = time.Now()
	ctx, cancel := context.WithTimeout(ctx, ledger.EndWithin)
	defer cancel()
	err := c.store.Settled(ctx)
	var rows []cay.Sandbox
	if err == nil {
		rows, err = c.store.SandboxesOf(ctx, c.nodeID)
	}
	if err != nil {
		c.log.WarnContext(ctx, "cannot look which sandboxes are this node's", "err", err)
		c.unheld.Store(true)
		return
	}
	for _, s := range rows {
		if s.State == cay.Paused && c.entry(s.ID) == nil {
			c.log.WarnContext(ctx, "a paused sandbox is this node's by its record, and was not known here", "sandbox", s.ID)
			c.enterPaused(ctx, s).unsure.Store(true)
		}
	}
}

// EndLost records the ends of what ran on a node that is gone. Sandboxes that are paused, or
// were about to run again, stay paused; those that are to go on are paused in what the bucket
// has of them. It returns those that wait for another node to go on there, and may be called
// again.
func (c *Controller) EndLost(ctx context.Context, node cay.NodeID) (moving []cay.Sandbox, err error) {
	rows, err := c.store.SandboxesOf(ctx, node)
	if err != nil {
		return nil, err
	}
	found, errs := make([]cay.Sandbox, len(rows)), make([]error, len(rows))
	var work errgroup.Group
	work.SetLimit(endsAtOnce)
	for i, before := range rows {
		work.Go(func() error {
			found[i], errs[i] = c.endLost(ctx, node, before)
			return nil
		})
	}
	_ = work.Wait() // errs has the errors of all
	for i, b := range found {
		if errs[i] == nil && b.State == cay.Paused && b.Moving {
			moving = append(moving, b)
		}
	}
	return moving, errors.Join(errs...)
}

// endsAtOnce is how many ends the leader records at the same time: commits of several
// teams reach the disk together.
const endsAtOnce = 8

// endLost records what became of one of them.
func (c *Controller) endLost(ctx context.Context, node cay.NodeID, before cay.Sandbox) (cay.Sandbox, error) {
	found := reconciled(before, nil, before.State == cay.Resuming)
	if found.State == before.State {
		return found, nil
	}
	event := foundEvent(found)
	record := func(tx store.Store) error {
		return errors.Join(tx.SkipUsage(ctx, found.ID), tx.UpdateSandbox(ctx, found, event))
	}
	if found.State == cay.Killed {
		event.Data["evidence"] = "node " + string(node) + " was silent for longer than its lease"
		if found.Cause == cay.CauseHostLost {
			back, err := c.comebackOf(ctx, before, inBucket)
			if err != nil {
				return before, err
			}
			if back != nil {
				found = back.sandbox
				record = func(tx store.Store) error { return back.record(ctx, tx) }
			}
		}
	}
	if err := c.store.Tx(ctx, record); err != nil {
		return before, err
	}
	c.log.WarnContext(ctx, "sandbox was on a node that is gone", "sandbox", found.ID, "node", node, "was", before.State, "is", found.State)
	c.ledger.Wake(found.Team)
	return found, nil
}
