package node

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/guest/toagent"
	"github.com/cay-run/cay/internal/machine/vnet"
)

// instance is one incarnation. Its fields belong to its owner; slot, started
// and spec do not change once it is found by Lookup, but for the spec's
// network, which changes under the node's lock.
type instance struct {
	spec    cay.InstanceSpec
	unused  func() // lets the snapshot that it was started from be evicted
	slot    vnet.Slot
	holds   bool           // the slot
	volumes []cay.VolumeID // that are attached for it, as often as each is here
	routed  atomic.Bool    // Lookup has found it: clients may hold connections
	whole   bool           // it runs and is not over; guarded by the node's lock
	started time.Time
	line    *toagent.Client // to the agent; in the pool its connection is kept
	// protocol is what the agent inside speaks; snapshots record it.
	protocol int
	boot     cay.Boot       // what a start from its files needs; snapshots record it
	notice   string         // which part of its snapshot could not be restored
	pausing  bool           // or paused, so that its engine must not be stopped; guarded by the node
	keep     cay.SnapshotID // that its files are still to be added to, once it is paused
	kept     func()         // is called when they are, or cannot be
	// pooled is true while it has no owner; size is the memory, in bytes, that
	// it took when it was put into the pool.
	pooled atomic.Bool
	size   int64
	common bool   // many start from its snapshot: a template, or a named one
	lease  *Lease // of a build that has borrowed it; nil for a sandbox's and the pool's
	demand bool   // it was restored to load its memory by demand
	trace  bool   // a working set is recorded from it, and it has no client
	// maps is the snapshot whose files it reads while it runs, if any; pending is
	// how much of its memory, in bytes, it has not loaded of them, which the engine
	// can tell once it is restored. They are guarded by the node's lock.
	maps     cay.SnapshotID
	pending  int64
	restored bool
	// woken gets what came of waking it, once it is claimed.
	woken chan error

	jobs  chan job // what the owner is asked to do besides ending it
	died  <-chan cay.Death
	death *cay.Death // what came from died

	ctx  context.Context         // done, with the cause, when it is to end
	stop context.CancelCauseFunc // asks the owner to end it
	gone chan struct{}           // closed when all is given back
}

func newInstance(spec cay.InstanceSpec) *instance {
	inst := &instance{spec: spec, unused: func() {}, jobs: make(chan job), gone: make(chan struct{}), woken: make(chan error, 1)}
	inst.ctx, inst.stop = context.WithCancelCause(context.Background())
	return inst
}

// connect says how to reach the agent of an instance that has its slot.
func (i *instance) connect(kept bool) {
	i.disconnect()
	if kept {
		i.line = toagent.NewKept(i.slot.Addr)
	} else {
		i.line = toagent.New(i.slot.Addr)
	}
}

func (i *instance) disconnect() {
	if i.line != nil {
		i.line.Close()
	}
}

func (i *instance) public() cay.Instance {
	return cay.Instance{Spec: i.spec, Addr: i.slot.Addr, Started: i.started, Notice: i.notice}
}

func (i *instance) record() record {
	return record{Spec: i.spec, Slot: i.slot.Index, Started: i.started, Protocol: i.protocol, Boot: i.boot, Notice: i.notice, Demand: i.demand}
}

// asked is why an owner is told to end its instance.
type asked cay.Cause

func (a asked) Error() string { return "the sandbox was ended: " + string(a) }

// Kill ends an instance and returns when everything of it is given back. One
// that is unknown, or gone, is no error. When ctx ends first the kill goes on.
func (n *Node) Kill(ctx context.Context, id cay.InstanceID, cause cay.Cause) error {
	n.mu.Lock()
	inst := n.instances[id]
	n.mu.Unlock()
	if inst == nil {
		return nil
	}
	inst.stop(asked(cause))
	select {
	case <-inst.gone:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-n.ctx.Done():
		return cay.Errorf(cay.Unavailable, "the server is stopping")
	}
}

// tend owns a running instance until its end.
func (n *Node) tend(inst *instance) {
	for over := false; !over; {
		select {
		case d, ok := <-inst.died:
			if !ok { // an engine that forgot to say why
				d = cay.Death{Cause: cay.CauseEngine, Detail: "the engine lost sight of it"}
			}
			inst.death = &d
			over = true
		case <-inst.ctx.Done():
			over = true
		case j := <-inst.jobs:
			var err error
			over, err = j.do(inst)
			j.done <- err
		case <-n.ctx.Done():
			return // it lives on; the next Open adopts it
		}
	}
	if inst.death == nil {
		select {
		case d, ok := <-inst.died: // its own end says more than why we look
			if ok {
				inst.death = &d
			}
		default:
		}
	}
	if inst.death != nil && inst.death.Cause != cay.CauseAsked { // a kill that comes next would leave no record of it
		n.cfg.Log.Warn("an instance died", "sandbox", inst.spec.Sandbox, "instance", inst.spec.Instance,
			"cause", inst.death.Cause, "detail", inst.death.Detail, "trace", inst.death.Trace)
		inst.death.Trace = ""
	}
	d := inst.deathRecord()
	if inst.lease != nil {
		inst.lease.end(d)
	}
	n.retire(inst)
	n.unstock(inst)
	n.keepFiles(inst)
	finished := n.finish(inst)
	n.forgetEnded(inst)
	if finished && !inst.pooled.Load() && inst.lease == nil { // else no record names it
		n.deaths.add(d)
	}
}

// finish gives back all that an instance has, however often that takes, and
// lets go of it. It gives up only when the node closes; the next Open goes on.
func (n *Node) finish(inst *instance) bool { return n.finishAfter(inst, func() {}) }

// finishAfter is finish that calls tried after each try.
func (n *Node) finishAfter(inst *instance, tried func()) bool {
	for {
		err := n.clear(inst)
		if err == nil {
			break
		}
		n.cfg.Log.Error("a sandbox ended and something of it is left; trying again",
			"sandbox", inst.spec.Sandbox, "instance", inst.spec.Instance, "err", err)
		tried()
		select {
		case <-n.ctx.Done():
			return false
		case <-time.After(clearPause):
		}
	}
	n.mu.Lock()
	delete(n.instances, inst.spec.Instance)
	n.mu.Unlock()
	inst.unused()
	close(inst.gone)
	return true
}

// deathRecord says how an instance ended, from what is known of it.
func (i *instance) deathRecord() cay.Death {
	d := cay.Death{Cause: cay.CauseAsked}
	var why asked
	if i.death != nil {
		d = *i.death
	}
	if errors.As(context.Cause(i.ctx), &why) && i.death == nil {
		d.Cause = cay.Cause(why)
	}
	d.Instance, d.Sandbox = i.spec.Instance, i.spec.Sandbox
	if d.At.IsZero() {
		d.At = time.Now()
	}
	return d
}

// clear gives back an instance's resources, in the order that makes it safe: the
// engine first, then routes, then the address, then volumes, then the journal. It goes on after
// a failure, but never frees an address that a container may still have.
func (n *Node) clear(inst *instance) error {
	ctx, cancel := context.WithTimeout(context.Background(), clearTimeout)
	defer cancel()
	id := inst.spec.Instance
	err := n.cfg.Engine.Kill(ctx, id)
	if inst.routed.Load() {
		n.cfg.OnGone(inst.spec.Sandbox, id)
	}
	if err != nil {
		return fmt.Errorf("end its container: %w", err)
	}
	n.unmapFiles(inst)
	var errs []error
	inst.disconnect()
	if inst.holds {
		inst.holds = false // a slot that cannot be released is not used again
		n.cfg.Egress.Drop(inst.slot.Addr)
		if err := n.cfg.Net.Release(ctx, inst.slot); err != nil {
			errs = append(errs, fmt.Errorf("release network slot %d: %w", inst.slot.Index, err))
		}
	}
	err = removeMounted(n.reserved(id))
	if err == nil {
		n.detachVolumes(inst)
	}
	errs = append(errs, err, removeJournal(n.journal(id)))
	return errors.Join(errs...)
}

const (
	clearTimeout = time.Minute
	clearPause   = 5 * time.Second
)

// show lets Lookup find an instance.
func (n *Node) show(inst *instance) {
	inst.routed.Store(true)
	n.mu.Lock()
	defer n.mu.Unlock()
	inst.whole = true
	n.bySandbox[inst.spec.Sandbox] = inst
}

// hide makes Lookup lose an instance.
func (n *Node) hide(inst *instance) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.bySandbox[inst.spec.Sandbox] == inst {
		delete(n.bySandbox, inst.spec.Sandbox)
	}
}
