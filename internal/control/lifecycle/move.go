package lifecycle

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control/ledger"
	"github.com/cay-run/cay/internal/ticks"
)

// A node that is drained gives its sandboxes to other nodes: those that are paused once
// the bucket has them, and with DrainMove those that run, which are paused for the way
// and go on there with the memory that this node gives (left.go). Requests wait meanwhile
// (Has). One that cannot move keeps running here; the move is retried.

const (
	movesAtOnce = 4
	movesLook   = time.Second
	moveAgain   = 30 * time.Second
	// leastLeft is what a sandbox has of its time at least when it goes on.
	leastLeft = 10 * time.Second
	// handWithin is longer than a resume on another node may take.
	handWithin = 2 * createWithin
)

// moveFailed is the reason why a sandbox could not go, and when it is tried again.
type moveFailed struct {
	why  string
	next time.Time
}

// Hand gives a paused sandbox with its log to another node, and has it go on there if it is
// moving. It returns when that node has it. After an error that node may have it nonetheless.
type Hand func(ctx context.Context, s cay.Sandbox, log []byte) error

// MoveAlways gives the sandboxes of this node away while it is drained, and has those go on
// that are moving, until ctx ends. Without hand there is no other node.
func (c *Controller) MoveAlways(ctx context.Context, hand Hand, whole Whole) {
	var moves sync.WaitGroup
	defer moves.Wait()
	slots := make(chan struct{}, movesAtOnce)
	for range ticks.AtOnce(ctx, movesLook) {
		reading := c.awaitReaders(ctx, whole)
		for _, e := range c.toMove(hand != nil) {
			if len(slots)+reading >= movesAtOnce { // more would share the link, and all their guests wait
				break
			}
			select {
			case slots <- struct{}{}:
			default:
				continue
			}
			arrived := e.leaves()
			if arrived == nil {
				<-slots
				continue
			}
			moves.Go(func() {
				c.moved(ctx, e, c.moveAway(ctx, e, hand))
				arrived()
				<-slots
			})
		}
	}
}

// leaves has requests for a sandbox wait until it has arrived where it goes. It returns nil where it is
// on its way already.
func (e *entry) leaves() (arrived func()) {
	over := make(chan struct{})
	if !e.moving.CompareAndSwap(nil, &over) {
		return nil
	}
	return func() {
		e.moving.Store(nil)
		close(over)
	}
}

// giveWithin bounds the way of a sandbox to a node that asks for it.
const giveWithin = 2 * time.Minute

// Give gives a sandbox to the one node that hand leads to, and has it go on there if it runs. On an
// error it goes on here.
func (c *Controller) Give(ctx context.Context, id cay.SandboxID, hand Hand) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveWithin)
	defer cancel()
	e := c.entry(id)
	if e == nil {
		return ledger.NoSandbox(id)
	}
	if of := networkOf(e.sandbox()); of.Name != "" {
		return cay.Errorf(cay.Conflict, "sandbox %s is a member of network %s, and stays on its node", id, of.Name).
			WithCode(cay.CodeNetworkElsewhere).WithHint("have it leave the network first")
	}
	arrived := e.leaves()
	if arrived == nil {
		return errOnItsWay(id)
	}
	defer arrived()
	always := func() bool { return true }
	if err := c.pauseToMove(ctx, e, always); err != nil {
		return err
	}
	gone, err := c.handOver(ctx, e, hand, always)
	if gone {
		return nil
	}
	if err == nil { // it was resumed meanwhile
		err = cay.Errorf(cay.Unavailable, "sandbox %s did not go to another node: a request woke it meanwhile", id).WithCode(cay.CodeNodeAway)
	}
	return errors.Join(err, c.goOn(ctx, e))
}

// toMove lists what is to go now, those first that are paused; with nowhere to go, what is
// to go on here.
func (c *Controller) toMove(elsewhere bool) (out []*entry) {
	how := c.drained()
	if !elsewhere {
		how = cay.DrainNone
	}
	var run []*entry
	onTheWay := map[cay.PrivateNetwork]bool{}
	for _, e := range c.entries() {
		if e.moving.Load() != nil {
			onTheWay[networkOf(e.sandbox())] = true
			continue
		}
		if failed := e.moveFailed.Load(); failed != nil && time.Now().Before(failed.next) {
			continue
		}
		switch s := e.sandbox(); {
		case s.State == cay.Paused && (s.Moving || how != cay.DrainNone && !s.ReplicatedAt.IsZero()):
			out = append(out, e)
		case s.State == cay.Running && how == cay.DrainMove:
			run = append(run, e)
		}
	}
	return inTurn(append(out, run...), onTheWay)
}

// inTurn leaves one member of each private network, and none while one is on its way: the
// others follow it to its node.
func inTurn(going []*entry, onTheWay map[cay.PrivateNetwork]bool) []*entry {
	return slices.DeleteFunc(going, func(e *entry) bool {
		of := networkOf(e.sandbox())
		before := onTheWay[of]
		onTheWay[of] = of.Name != ""
		return before && of.Name != ""
	})
}

// networkOf is the private network of a sandbox, without its own name there.
func networkOf(s cay.Sandbox) cay.PrivateNetwork {
	if s.Network.Private == nil {
		return cay.PrivateNetwork{}
	}
	return cay.PrivateNetwork{Team: s.Network.Private.Team, Name: s.Network.Private.Name}
}

// moved notes how a move went.
func (c *Controller) moved(ctx context.Context, e *entry, err error) {
	if err == nil || ctx.Err() != nil {
		e.moveFailed.Store(nil)
		return
	}
	id := e.sandbox().ID
	c.log.WarnContext(ctx, "a sandbox does not go on elsewhere yet", "sandbox", id, "err", err)
	e.moveFailed.Store(&moveFailed{fmt.Sprintf("sandbox %s: %s", id, ledger.Visible(err)), time.Now().Add(moveAgain)})
}

// stuck says why some sandboxes do not leave; empty where all do.
func (c *Controller) stuck() string {
	if c.drained() == cay.DrainNone {
		return ""
	}
	why, more := "", 0
	for _, e := range c.entries() {
		if failed := e.moveFailed.Load(); failed != nil {
			if why == "" || failed.why < why {
				why = failed.why
			}
			more++
		}
	}
	if more > 1 {
		why += fmt.Sprintf(", and %d more", more-1)
	}
	return cmp.Or(why, c.left.stuck())
}

// moveAway brings a sandbox to another node.
func (c *Controller) moveAway(ctx context.Context, e *entry, hand Hand) error {
	if hand == nil {
		return c.goOn(ctx, e)
	}
	moves := func() bool { return c.drained() == cay.DrainMove }
	if err := c.pauseToMove(ctx, e, moves); err != nil {
		return err
	}
	gone, err := c.handOver(ctx, e, hand, func() bool { return c.drained() != cay.DrainNone })
	if !gone {
		err = errors.Join(err, c.goOn(ctx, e))
	}
	return err
}

// pauseToMove pauses a sandbox that runs, if it is to go.
func (c *Controller) pauseToMove(ctx context.Context, e *entry, goes func() bool) error {
	if err := e.acquire(ctx); err != nil {
		return err
	}
	defer e.release()
	if err := c.settled(ctx, e); err != nil {
		return err
	}
	s := e.sandbox()
	if !goes() || s.State != cay.Running {
		return nil
	}
	if err := c.responds(ctx, s); err != nil {
		return err // its memory would not be restored
	}
	s.Unresponsive, s.Moving = false, true
	return c.pause(ctx, cay.ForTeam(s.Team), e, s, cay.MemorySnapshot, cay.ReasonDrained)
}

// handOver gives a sandbox to another node, if it is still to go. One that is moving goes before
// the bucket has it: it would stand still for as long as the copy takes.
func (c *Controller) handOver(ctx context.Context, e *entry, hand Hand, goes func() bool) (gone bool, err error) {
	if err := e.acquire(ctx); err != nil {
		return false, err
	}
	defer e.release()
	if err := c.settled(ctx, e); err != nil {
		return false, err
	}
	s := e.sandbox()
	if !goes() || s.State != cay.Paused || !s.Moving && s.ReplicatedAt.IsZero() {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, handWithin)
	defer cancel()
	log, err := c.logs.Pack(s.ID)
	if err != nil {
		c.log.WarnContext(ctx, "a sandbox goes to another node without its log", "sandbox", s.ID, "err", err)
	}
	if err = hand(ctx, s, log); err != nil {
		// Another node may have it, or be about to: the record decides.
		if changed := c.save(ctx, e, s); cay.KindOf(changed) != cay.Conflict {
			return false, errors.Join(err, changed)
		}
	}
	c.left.put(s)
	c.drop(s.ID)
	c.log.InfoContext(ctx, "a sandbox is another node's now", "sandbox", s.ID)
	return true, nil
}

// goOn has a sandbox run again that was paused to go to another node, or lost its machine.
func (c *Controller) goOn(ctx context.Context, e *entry) error {
	ctx = context.WithoutCancel(ctx)
	if err := e.acquire(ctx); err != nil {
		return err
	}
	defer e.release()
	if err := c.settled(ctx, e); err != nil {
		return err
	}
	s := e.sandbox()
	if s.State != cay.Paused || !s.Moving {
		return nil
	}
	reason := cay.ReasonDrained
	if e.lost.Load() {
		reason = cay.ReasonHostLost
	}
	_, err := c.resume(ctx, cay.ForTeam(s.Team), e, s, max(s.EndAt.Sub(s.EndedAt), leastLeft), true, reason)
	if err != nil && cay.KindOf(err) != cay.Unavailable { // another try would end the same
		s = e.sandbox()
		s.Moving = false
		c.saveOutcome(ctx, e, s)
	}
	return err
}
