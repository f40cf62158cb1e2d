package node

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/cay-run/cay"
)

// recover takes over what an earlier node left: journals on disk, containers
// of the engine, slots of the network. It adopts what all three agree on and
// removes the rest.
func (n *Node) recover(ctx context.Context) error {
	for _, dir := range []string{n.cfg.Dir, n.cfg.Reserved} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return diskError(err)
		}
	}
	journals, err := names(n.cfg.Dir)
	if err != nil {
		return diskError(err)
	}
	listed, err := n.cfg.Engine.List(ctx)
	if err != nil {
		return cay.Wrap(cay.KindOf(err), err, "list the sandboxes of an earlier start")
	}
	alive := map[cay.InstanceID]bool{}
	for _, id := range listed {
		alive[id] = true
	}
	type remains struct {
		record
		whole   bool
		volumes []cay.VolumeID
	}
	var left []remains
	for _, name := range journals {
		id := cay.InstanceID(name)
		r, mark := readJournal(n.journal(id))
		volumes := n.attachFound(ctx, r.Spec, alive[id])
		if mark != "" && alive[id] && n.adopt(ctx, r, volumes, mark == pooledFile) {
			delete(alive, id)
			continue
		}
		if r.Spec.Instance != id { // the journal was cut off
			r = record{Spec: cay.InstanceSpec{Instance: id}, Slot: noSlot}
		}
		left = append(left, remains{r, mark == wholeFile, volumes})
	}
	// Those that live have their slots now, whatever other journals say.
	var ending []*leftover
	for _, r := range left {
		ending = append(ending, n.condemn(ctx, r.record, r.volumes, alive[r.Spec.Instance], r.whole))
		delete(alive, r.Spec.Instance)
	}
	for _, id := range listed {
		if alive[id] {
			ending = append(ending, n.condemn(ctx, record{Spec: cay.InstanceSpec{Instance: id}, Slot: noSlot}, nil, true, false))
		}
	}
	return n.sweep(ctx, ending)
}

func (n *Node) known(id cay.InstanceID) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.instances[id] != nil
}

// adopt makes an instance of an earlier node ours, or says that it cannot.
func (n *Node) adopt(ctx context.Context, r record, volumes []cay.VolumeID, pooled bool) bool {
	if pooled && n.pool.budget <= 0 {
		return false
	}
	id := r.Spec.Instance
	inst := newInstance(r.Spec)
	inst.volumes = volumes
	inst.started, inst.protocol, inst.boot, inst.notice = r.Started, r.Protocol, r.Boot, r.Notice
	n.holdFiles(inst, r)
	if err := n.cfg.Engine.Adopt(ctx, id); err != nil {
		n.unmapFiles(inst)
		n.cfg.Log.WarnContext(ctx, "a sandbox cannot be adopted", "sandbox", r.Spec.Sandbox, "instance", id, "err", err)
		return false
	}
	err := n.releaseHeld(id)
	if err == nil {
		inst.died, err = n.cfg.Engine.Watch(id)
	}
	if err == nil && len(volumes) < len(r.Spec.Volumes) {
		err = errors.New("not all of its volumes are there")
	}
	if err == nil {
		// Nearly last, so that a failure leaves the slot to Reclaim.
		inst.slot, err = n.cfg.Net.Adopt(ctx, r.Slot)
	}
	if err == nil {
		// The journal may be one change ahead of the packet filter.
		n.cfg.Egress.Set(inst.slot.Addr, r.Spec)
		err = n.openNetwork(ctx, inst.slot, r.Spec)
	}
	if err != nil {
		n.cfg.Log.WarnContext(ctx, "a sandbox cannot be adopted", "sandbox", r.Spec.Sandbox, "instance", id, "err", err)
		n.unmapFiles(inst)
		return false
	}
	n.lookAtLoading(ctx, id, inst)
	inst.holds = true
	inst.unused = n.cfg.Snapshots.Use(r.Spec.Snapshot)
	n.mu.Lock()
	n.instances[id] = inst
	n.mu.Unlock()
	_, found := n.Lookup(r.Spec.Sandbox)
	switch {
	case pooled:
		n.readopt(inst)
	case found: // two, left by a rollback: Route says which one is found
		n.ready(inst)
	default:
		n.show(inst)
	}
	n.work.Go(func() { n.tend(inst) })
	return true
}

// holdFiles keeps the files that an instance of an earlier node may read, as long
// as it lives.
func (n *Node) holdFiles(inst *instance, r record) {
	if r.Demand {
		n.mapFiles(inst, func() int64 { return 0 })
	}
}

// noSlot is the slot of a leftover whose journal does not tell it.
const noSlot = -1

// leftover is an instance that cannot be adopted and is being ended.
type leftover struct {
	inst  *instance
	tried chan struct{} // closed when the first try to end it is over
	// anywhere is set when it lives and its slot is not known, or cannot be held
	// for it: no slot may be freed before it has ended.
	anywhere bool
}

// condemn begins to end an instance that cannot be adopted. One that cannot be
// ended now, a process that the kernel does not let go of, does not keep the
// server from starting: it is tried again in the background, and its address
// is not used before.
func (n *Node) condemn(ctx context.Context, r record, volumes []cay.VolumeID, alive, whole bool) *leftover {
	n.cfg.Log.InfoContext(ctx, "removing what an earlier start left", "instance", r.Spec.Instance, "sandbox", r.Spec.Sandbox)
	l := &leftover{inst: newInstance(r.Spec), tried: make(chan struct{}), anywhere: alive}
	inst := l.inst
	inst.volumes = volumes
	if alive {
		n.holdFiles(inst, r)
	}
	if alive && r.Slot != noSlot {
		var err error
		inst.slot, err = n.cfg.Net.Adopt(ctx, r.Slot)
		inst.holds, l.anywhere = err == nil, err != nil
	}
	if whole { // it ran: its sandbox is told of its end
		inst.death = &cay.Death{Cause: cay.CauseHostLost, Detail: "not alive when the server started"}
	}
	n.mu.Lock()
	n.instances[r.Spec.Instance] = inst
	n.mu.Unlock()
	n.work.Go(func() {
		var once sync.Once
		tried := func() { once.Do(func() { close(l.tried) }) }
		defer tried()
		if n.finishAfter(inst, tried) && whole {
			n.deaths.add(inst.deathRecord())
		}
	})
	return l
}

// sweep waits until each leftover was tried to be ended, and frees mounts and
// slots that nothing uses. It goes on in the background while something is
// still there.
func (n *Node) sweep(ctx context.Context, ending []*leftover) error {
	patience := time.NewTimer(sweepPatience)
	defer patience.Stop()
	for _, l := range ending {
		select {
		case <-l.tried:
		case <-patience.C:
			patience.Reset(0) // the others have had the time as well
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if err := n.sweepOnce(ctx, ending); err != nil {
		n.cfg.Log.WarnContext(ctx, "something of an earlier start is left; trying again", "err", err)
		n.work.Go(func() { n.sweepAlways(ending) })
	}
	return nil
}

// sweepPatience is how long a start waits for the ends of leftovers.
const sweepPatience = 15 * time.Second

func (n *Node) sweepAlways(ending []*leftover) {
	for {
		select {
		case <-n.ctx.Done():
			return
		case <-time.After(clearPause):
		}
		err := n.sweepOnce(n.ctx, ending)
		if err == nil {
			n.cfg.Log.Info("everything of an earlier start is removed")
			return
		}
	}
}

// sweepOnce removes mounts without a journal, of creates and builds
// that a crash cut short, then frees slots.
func (n *Node) sweepOnce(ctx context.Context, ending []*leftover) error {
	left, err := names(n.cfg.Reserved)
	if err != nil {
		return diskError(err)
	}
	var errs []error
	for _, name := range left {
		if n.known(cay.InstanceID(name)) {
			continue
		}
		if err := removeMounted(filepath.Join(n.cfg.Reserved, name)); err != nil {
			errs = append(errs, cay.Wrap(cay.Internal, err, "remove the leftover mount %s", name))
		}
	}
	for _, l := range ending {
		select {
		case <-l.inst.gone:
		default:
			if l.anywhere {
				return errors.Join(append(errs, cay.Errorf(cay.Internal, "instance %s has not ended, and may have any free slot", l.inst.spec.Instance))...)
			}
		}
	}
	if err := n.cfg.Snapshots.Sweep(); err != nil {
		errs = append(errs, cay.Wrap(cay.KindOf(err), err, "remove the files of removed snapshots"))
	}
	if err := n.cfg.Net.Reclaim(ctx); err != nil {
		errs = append(errs, cay.Wrap(cay.KindOf(err), err, "free the network slots of an earlier start"))
	}
	return errors.Join(errs...)
}

func names(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	out := make([]string, 0, len(entries))
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out, err
}
