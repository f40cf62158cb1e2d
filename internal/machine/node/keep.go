package node

import (
	"context"
	"sync"
	"time"

	"github.com/cay-run/cay"
)

// maxLeaving bounds the paused instances whose files are still to be kept. Each has
// its memory, its tasks and its network slot until then, and no count of what runs
// has it: pauses that outrun the disk would leave no room for creates.
const maxLeaving = 32

// leave waits for a place among those. The returned function gives it back.
func (n *Node) leave(ctx context.Context) (func(), error) {
	select {
	case n.leaving <- struct{}{}:
		return sync.OnceFunc(func() { <-n.leaving }), nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-n.ctx.Done():
		return nil, cay.Errorf(cay.Unavailable, "the server is stopping")
	}
}

// promiseFiles says that the files of an instance, which is paused, are to be
// added to its memory snapshot: a caller that needs them waits. kept is called when
// that is over.
func (n *Node) promiseFiles(inst *instance, id cay.SnapshotID, kept func()) {
	unused := n.cfg.Snapshots.Use(id)
	inst.keep, inst.kept = id, func() { unused(); kept() }
	n.mu.Lock()
	n.keeping[id] = make(chan struct{})
	n.ended[id] = inst.gone
	n.mu.Unlock()
}

// keepFiles does it, with the guest still stopped in place. A failure costs only
// the way back without memory.
func (n *Node) keepFiles(inst *instance) {
	if inst.keep == "" {
		return
	}
	defer inst.kept()
	defer func() {
		n.mu.Lock()
		close(n.keeping[inst.keep])
		delete(n.keeping, inst.keep)
		n.mu.Unlock()
	}()
	if inst.death != nil {
		return
	}
	select {
	case n.copies <- struct{}{}:
		defer func() { <-n.copies }()
	case <-n.ctx.Done():
		return
	}
	begun := time.Now()
	if err := n.addFiles(inst.spec.Instance, inst.keep); err != nil {
		if cay.KindOf(err) != cay.NotFound { // it was resumed and saved again, or is over
			n.cfg.Log.Warn("a paused sandbox has no files beside its memory", "sandbox", inst.spec.Sandbox, "snapshot", inst.keep, "err", err)
		}
		return
	}
	n.cfg.Log.Debug("files kept beside memory", "sandbox", inst.spec.Sandbox, "snapshot", inst.keep, "took", time.Since(begun))
}

func (n *Node) addFiles(from cay.InstanceID, to cay.SnapshotID) error {
	tmp, err := n.cfg.Snapshots.Begin()
	if err != nil {
		return err
	}
	defer func() {
		if err := n.cfg.Snapshots.Abort(tmp); err != nil {
			n.cfg.Log.Warn("an unfinished snapshot could not be removed", "path", tmp, "err", err)
		}
	}()
	s, err := n.cfg.Engine.SnapshotFiles(context.Background(), from, tmp)
	if err != nil {
		return err
	}
	return n.cfg.Snapshots.Attach(tmp, to, layerOf(s))
}

// forgetEnded is for an instance that is gone.
func (n *Node) forgetEnded(inst *instance) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.ended, inst.keep)
}

// awaitLocks waits until the instance that was paused into a snapshot is gone, and with it
// the locks that it has on volumes: the engine takes them again where it restores.
func (n *Node) awaitLocks(ctx context.Context, id cay.SnapshotID) error {
	n.mu.Lock()
	gone := n.ended[id]
	n.mu.Unlock()
	if gone == nil {
		return nil
	}
	select {
	case <-gone:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// awaitFiles waits until a snapshot that was just taken has all that is to be
// in it.
func (n *Node) awaitFiles(ctx context.Context, id cay.SnapshotID) error {
	n.mu.Lock()
	kept := n.keeping[id]
	n.mu.Unlock()
	if kept == nil {
		return nil
	}
	select {
	case <-kept:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
