package node

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

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
	for _, name := range journals {
		id := cay.InstanceID(name)
		r, mark := readJournal(n.journal(id))
		if mark != "" && alive[id] && n.adopt(ctx, r, mark == pooledFile) {
			continue
		}
		if err := n.condemn(ctx, id, r, mark == wholeFile); err != nil {
			return err
		}
	}
	return n.sweep(ctx, listed)
}

// adopt makes an instance of an earlier node ours, or says that it cannot.
func (n *Node) adopt(ctx context.Context, r record, pooled bool) bool {
	if pooled && n.pool.budget <= 0 {
		return false
	}
	id := r.Spec.Instance
	inst := newInstance(r.Spec)
	inst.started, inst.protocol, inst.boot, inst.notice = r.Started, r.Protocol, r.Boot, r.Notice
	if err := n.cfg.Engine.Adopt(ctx, id); err != nil {
		n.cfg.Log.Warn("a sandbox cannot be adopted", "sandbox", r.Spec.Sandbox, "instance", id, "err", err)
		return false
	}
	err := n.releaseHeld(id)
	if err == nil {
		inst.died, err = n.cfg.Engine.Watch(id)
	}
	if err == nil {
		// Nearly last, so that a failure leaves the slot to Reclaim.
		inst.slot, err = n.cfg.Net.Adopt(ctx, r.Slot)
	}
	if err == nil {
		// The journal may be one change ahead of the packet filter.
		n.cfg.Egress.Set(inst.slot.Addr, r.Spec)
		err = n.cfg.Net.Apply(ctx, inst.slot, r.Spec.Network)
	}
	if err != nil {
		n.cfg.Log.Warn("a sandbox cannot be adopted", "sandbox", r.Spec.Sandbox, "instance", id, "err", err)
		return false
	}
	inst.holds = true
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

// condemn ends what cannot be adopted. Its slot is Reclaim's.
func (n *Node) condemn(ctx context.Context, id cay.InstanceID, r record, whole bool) error {
	n.cfg.Log.Info("removing what an earlier start left", "instance", id, "sandbox", r.Spec.Sandbox)
	r.Spec.Instance = id
	inst := newInstance(r.Spec)
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := n.clear(inst); err != nil {
		return cay.Wrap(cay.KindOf(err), err, "remove what an earlier start left of instance %s", id)
	}
	if whole { // it ran, so somebody waits to hear of its end
		inst.death = &cay.Death{Cause: cay.CauseHostLost, Detail: "not alive when the server started"}
		n.deaths.tell(inst.deathRecord())
	}
	return nil
}

// sweep removes what has no journal: containers, mounts and directories of
// template builds and of creates that a crash cut short, then slots.
func (n *Node) sweep(ctx context.Context, listed []cay.InstanceID) error {
	for _, id := range listed {
		if n.instances[id] != nil {
			continue
		}
		if err := n.cfg.Engine.Kill(ctx, id); err != nil {
			return cay.Wrap(cay.KindOf(err), err, "end the leftover container %s", id)
		}
	}
	left, err := names(n.cfg.Reserved)
	if err != nil {
		return diskError(err)
	}
	for _, name := range left {
		if n.instances[cay.InstanceID(name)] != nil {
			continue
		}
		if err := removeMounted(filepath.Join(n.cfg.Reserved, name)); err != nil {
			return cay.Wrap(cay.Internal, err, "remove the leftover mount %s", name)
		}
	}
	if err := n.cfg.Net.Reclaim(ctx); err != nil {
		return cay.Wrap(cay.KindOf(err), err, "free the network slots of an earlier start")
	}
	return nil
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
