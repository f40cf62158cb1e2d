package node

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/engine"
	"github.com/cay-run/cay/internal/trail"
)

// job is what an instance's owner is asked to do. over says that the instance
// is to end now.
type job struct {
	do   func(*instance) (over bool, err error)
	done chan error // gets the answer
}

// Pause saves an instance and ends it. record names the snapshot, its kind,
// which is memory unless it says files, and whose it is; the engine adds the
// rest. The guest is stopped before it is read and ends when the snapshot is
// safely on disk: when Pause fails the instance runs on, unless it died, which
// Deaths tells. Once begun it cannot be cancelled.
//
// When that is done, and the caller has its answer, the files of the stopped
// guest are added to a memory snapshot once more, in a form that outlives the
// engine's build. A pause waits while too many others are at that.
func (n *Node) Pause(ctx context.Context, id cay.InstanceID, record cay.Snapshot) error {
	filesOnly, promised := record.Kind == cay.FilesSnapshot, false
	left := func() {}
	if !filesOnly {
		var err error
		if left, err = n.leave(ctx); err != nil {
			return err
		}
	}
	defer func() {
		if !promised {
			left()
		}
	}()
	return n.askTurn(ctx, id, func(inst *instance) (bool, error) {
		if err := n.roomToSave(ctx, inst, filesOnly); err != nil {
			return false, err
		}
		// From here on no client may talk to it: the guest would forget a request
		// that it answers after its memory was read.
		n.hide(inst)
		if inst.routed.Swap(false) {
			n.cfg.OnGone(inst.spec.Sandbox, inst.spec.Instance)
		}
		n.pausing(inst, true)
		err := n.markHeld(inst)
		if err == nil {
			err = n.save(ctx, inst, record, engine.Stays)
		}
		if err != nil {
			n.revive(inst)
			n.pausing(inst, false)
			return false, err
		}
		// From here on it is the snapshot that goes on: should the server die,
		// the next one must not let this guest run.
		if err := unmark(n.journal(inst.spec.Instance)); err != nil {
			n.cfg.Log.WarnContext(ctx, "a paused sandbox's journal still says that it runs", "sandbox", inst.spec.Sandbox, "err", err)
		}
		if promised = !filesOnly; promised {
			n.promiseFiles(inst, record.ID, left)
		}
		return true, nil
	})
}

// Checkpoint saves an instance, of the kind that record says, and lets it run
// on.
func (n *Node) Checkpoint(ctx context.Context, id cay.InstanceID, record cay.Snapshot) error {
	return n.askTurn(ctx, id, func(inst *instance) (bool, error) {
		if err := n.roomToSave(ctx, inst, record.Kind == cay.FilesSnapshot); err != nil {
			return false, err
		}
		return false, n.save(ctx, inst, record, engine.GoesOn)
	})
}

// RemoveSnapshot deletes a snapshot that was taken of a sandbox or made of a
// team's template. One that Cay brings is left alone, and a missing one is no
// error. The caller knows that no sandbox needs it. The pool's instances of it are
// ended first, those of Cay's templates too.
func (n *Node) RemoveSnapshot(ctx context.Context, id cay.SnapshotID) error {
	n.forget(ctx, id)
	n.forgetLearnt(id)
	s, err := n.cfg.Snapshots.Record(id)
	switch {
	case cay.KindOf(err) == cay.NotFound || err == nil && !teams(s):
		return nil
	case err != nil:
		return err
	}
	return n.cfg.Snapshots.Remove(id)
}

// teams reports whether a snapshot is a team's, not one of those that Cay
// brings, which have no owner.
func teams(s cay.Snapshot) bool { return s.Sandbox != "" || s.Team != "" }

// Snapshots lists the snapshots that were taken of sandboxes or made of teams'
// templates, evicted ones too. A damaged one is left out.
func (n *Node) Snapshots() []cay.Snapshot {
	all, err := n.cfg.Snapshots.List()
	evicted, gone := n.cfg.Snapshots.Evicted()
	if err := errors.Join(err, gone); err != nil {
		n.cfg.Log.Warn("some snapshots cannot be read", "err", err)
	}
	var out []cay.Snapshot
	for _, s := range slices.Concat(all, evicted) {
		if teams(s) {
			out = append(out, s)
		}
	}
	return out
}

// askTurn is ask for what reads or writes memory: it waits for its turn.
func (n *Node) askTurn(ctx context.Context, id cay.InstanceID, do func(*instance) (bool, error)) error {
	defer n.ahead()()
	end, err := n.turn(ctx)
	if err != nil {
		return err
	}
	defer end()
	return n.ask(ctx, id, do)
}

// ask hands a job to the owner of an instance and waits for its end.
func (n *Node) ask(ctx context.Context, id cay.InstanceID, do func(*instance) (bool, error)) error {
	n.mu.Lock()
	inst := n.instances[id]
	n.mu.Unlock()
	if inst == nil {
		return cay.Errorf(cay.NotFound, "instance %s is not on this machine", id)
	}
	j := job{do: do, done: make(chan error, 1)}
	select {
	case inst.jobs <- j:
	case <-inst.ctx.Done():
		return cay.Errorf(cay.Conflict, "instance %s is ending", id)
	case <-inst.gone:
		return cay.Errorf(cay.NotFound, "instance %s is over", id)
	case <-ctx.Done():
		return ctx.Err()
	case <-n.ctx.Done():
		return cay.Errorf(cay.Unavailable, "the server is stopping")
	}
	return <-j.done
}

// markHeld has the next node release a guest that a crash of this one leaves held.
func (n *Node) markHeld(inst *instance) error {
	if err := os.WriteFile(filepath.Join(n.journal(inst.spec.Instance), heldFile), nil, 0o600); err != nil {
		return diskError(err)
	}
	return nil
}

// save writes a snapshot: all of it, or nothing. The guest goes on or is held then.
func (n *Node) save(ctx context.Context, inst *instance, record cay.Snapshot, then engine.After) (err error) {
	ctx, done := trail.Begin(ctx, trail.NodeSave)
	defer func() { done(err) }()
	tmp, err := n.cfg.Snapshots.Begin()
	if err != nil {
		return err
	}
	defer func() {
		if err := n.cfg.Snapshots.Abort(tmp); err != nil {
			n.cfg.Log.WarnContext(ctx, "an unfinished snapshot could not be removed", "path", tmp, "err", err)
		}
	}()
	begun := time.Now()
	if n.cfg.Ahead != nil && cay.Durable(ctx) {
		ctx = engine.WithWritten(ctx, func() { n.cfg.Ahead(record.ID, tmp) })
	}
	s, err := n.write(ctx, inst.spec.Instance, tmp, record.Kind == cay.FilesSnapshot, then)
	if err != nil {
		return err
	}
	saved := time.Now()
	inst.sign(&s, record)
	if err := n.cfg.Snapshots.Commit(tmp, s); err != nil {
		return err
	}
	n.cfg.Log.DebugContext(ctx, "sandbox saved", "sandbox", inst.spec.Sandbox, "snapshot", s.ID, "bytes", s.Size(),
		"checkpoint", saved.Sub(begun), "commit", time.Since(saved))
	return nil
}

// sign adds to the engine's record of a snapshot of this instance the part that
// its owner knows.
func (i *instance) sign(s *cay.Snapshot, record cay.Snapshot) {
	s.ID, s.Parent, s.Team = record.ID, record.Parent, record.Team
	s.Sandbox, s.Secure, s.Agent, s.Boot = record.Sandbox, record.Secure, i.protocol, i.boot
	s.Volumes = slices.Clone(i.spec.Volumes)
}

// write has the engine write the files of a snapshot into dir, whether or not its caller waits.
func (n *Node) write(ctx context.Context, id cay.InstanceID, dir string, filesOnly bool, then engine.After) (cay.Snapshot, error) {
	ctx = context.WithoutCancel(ctx)
	if !filesOnly {
		return n.cfg.Engine.Checkpoint(ctx, id, dir, then)
	}
	if then == engine.Stays {
		ctx, cancel := context.WithTimeout(ctx, clearTimeout)
		defer cancel()
		if err := n.cfg.Engine.Hold(ctx, id); err != nil {
			return cay.Snapshot{}, err
		}
	}
	return n.cfg.Engine.SnapshotFiles(ctx, id, dir)
}

// revive lets a guest go on that was to be paused and could not be. One that
// cannot go on is ended.
func (n *Node) revive(inst *instance) {
	if err := n.release(inst.spec.Instance); err != nil {
		n.cfg.Log.Error("a sandbox that was held cannot go on", "sandbox", inst.spec.Sandbox, "err", err)
		inst.stop(asked(cay.CauseEngine)) // its death, if it died, says more
		return
	}
	n.show(inst)
}

// release lets a held guest go on; one that is not held is no error.
func (n *Node) release(id cay.InstanceID) error {
	ctx, cancel := context.WithTimeout(context.Background(), clearTimeout)
	defer cancel()
	if err := n.cfg.Engine.Release(ctx, id); err != nil {
		return err
	}
	err := os.Remove(filepath.Join(n.journal(id), heldFile))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return diskError(err)
	}
	return nil
}

// releaseHeld lets an adopted guest go on if an earlier node held it.
func (n *Node) releaseHeld(id cay.InstanceID) error {
	_, err := os.Stat(filepath.Join(n.journal(id), heldFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return n.release(id)
}
