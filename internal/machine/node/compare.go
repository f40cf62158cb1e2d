package node

import (
	"archive/tar"
	"context"
	"io"
	"path/filepath"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/compare"
	"github.com/cay-run/cay/internal/machine/engine"
	"github.com/cay-run/cay/internal/machine/erofs"
)

// compareTurns is how many comparisons are done at once: each may take as much
// memory and disk as a small sandbox, and admission does not count it.
const compareTurns = 2

// Compare tells which files differ between two moments of sandboxes on one
// root image. The caller keeps their snapshots from being removed meanwhile.
func (n *Node) Compare(ctx context.Context, before, after cay.Moment) (out cay.Comparison, err error) {
	select {
	case n.compares <- struct{}{}:
		defer func() { <-n.compares }()
	case <-ctx.Done():
		return out, ctx.Err()
	case <-n.ctx.Done():
		return out, cay.Errorf(cay.Unavailable, "the server is stopping")
	}
	begun := time.Now()
	was, err := n.open(ctx, before)
	if err != nil {
		return out, err
	}
	defer was.close()
	is, err := n.open(ctx, after)
	if err != nil {
		return out, err
	}
	defer is.close()
	if was.root != is.root {
		return out, cay.Errorf(cay.Conflict, "they stand on different root images, which cannot be compared")
	}
	path, err := n.cfg.Snapshots.Image(was.root)
	if err != nil {
		return out, err
	}
	tree, err := erofs.Open(path)
	if err != nil {
		return out, cay.Wrap(cay.Internal, err, "read a root image")
	}
	defer tree.Close()
	opened := time.Now()
	out, err = compare.Trees(ctx, tree, n.reads(was), n.reads(is), compare.Default)
	n.cfg.Log.DebugContext(ctx, "files compared", "open", opened.Sub(begun), "compare", time.Since(opened), "changes", len(out.Changes))
	return out, err
}

// opened is a moment whose files can be read.
type opened struct {
	dir   string // as of a snapshot
	root  string // digest
	close func()
}

func (n *Node) reads(o opened) compare.Files {
	return func(visit func(*tar.Header, io.Reader) error) error { return n.cfg.Engine.ReadFiles(o.dir, visit) }
}

// open makes the files of a moment readable.
func (n *Node) open(ctx context.Context, m cay.Moment) (opened, error) {
	if m.Instance != "" {
		return n.openInstance(ctx, m.Instance)
	}
	unused := n.cfg.Snapshots.Use(m.Snapshot)
	dir, s, err := n.readableFiles(ctx, m.Snapshot)
	if err != nil {
		unused()
	}
	return opened{dir: dir, root: s.Root, close: unused}, err
}

// readableFiles returns a snapshot whose files can be read without its memory:
// they are fetched or added where they lack, and whole. The caller keeps it from
// being removed or evicted meanwhile.
func (n *Node) readableFiles(ctx context.Context, id cay.SnapshotID) (dir string, s cay.Snapshot, err error) {
	if err := n.awaitFiles(ctx, id); err != nil {
		return "", s, err
	}
	dir, s, err = n.cfg.Snapshots.Get(id)
	if cay.KindOf(err) == cay.NotFound && n.cfg.Fetch != nil {
		if err := n.cfg.Fetch(ctx, id); err != nil {
			return "", s, err
		}
		dir, s, err = n.cfg.Snapshots.Get(id)
	}
	if err == nil && len(layerOf(s)) == 0 {
		if err = n.takeFiles(ctx, id); err == nil {
			dir, s, err = n.cfg.Snapshots.Get(id)
		}
	}
	if err == nil {
		err = n.cfg.Snapshots.Check(ctx, s, layerOf(s))
	}
	return dir, s, err
}

// openInstance reads the files of an instance, which runs on.
func (n *Node) openInstance(ctx context.Context, id cay.InstanceID) (o opened, err error) {
	tmp, err := n.cfg.Snapshots.Begin()
	if err != nil {
		return o, err
	}
	o.dir, o.close = tmp, func() {
		if err := n.cfg.Snapshots.Abort(tmp); err != nil {
			n.cfg.Log.WarnContext(ctx, "files that were compared could not be removed", "path", tmp, "err", err)
		}
	}
	err = n.askTurn(ctx, id, func(*instance) (bool, error) {
		s, err := n.cfg.Engine.SnapshotFiles(context.WithoutCancel(ctx), id, tmp)
		o.root = s.Root
		return false, err
	})
	if err != nil {
		o.close()
	}
	return o, err
}

// takeFiles adds files to a snapshot that holds memory only. Its engine alone
// reads that, so it is restored, without a network and without an identity, and
// saved at once. The files have the guest's changes of that moment; because they
// are kept, all later comparisons give the same answer.
func (n *Node) takeFiles(ctx context.Context, id cay.SnapshotID) error {
	inst, err := n.begin(cay.InstanceSpec{Instance: cay.NewInstanceID(), Sandbox: cay.NewSandboxID(), Snapshot: id})
	if err != nil {
		return err
	}
	defer n.work.Done()
	defer n.undo(inst)
	defer n.ahead()()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(n.ctx, func() { cancel(cay.Errorf(cay.Unavailable, "the server is stopping")) })()
	end, err := n.turn(ctx)
	if cause := context.Cause(ctx); err != nil && cause != nil {
		return cause
	}
	if err != nil {
		return err
	}
	defer end()
	from, err := n.find(ctx, &inst.spec)
	if err != nil {
		return err
	}
	if from.cold {
		return cay.Errorf(cay.Internal, "snapshot %s has files that it did not have", id)
	}
	from.loading = n.cfg.Loading // nothing runs in it
	admitted, err := n.admit(ctx, from, false)
	if err != nil {
		return err
	}
	defer admitted.done()
	if from.loading == engine.Demand {
		n.mapFiles(inst, admitted.handOver)
	}
	checked := n.check(ctx, from)
	defer func() { cancel(nil); _ = checked() }() // no reader is left
	if inst.slot, err = n.cfg.Net.Acquire(ctx); err != nil {
		return err
	}
	inst.holds, inst.started = true, time.Now()
	if err := n.prepare(inst); err != nil {
		return err
	}
	err = n.startContainer(ctx, inst, from)
	if damage := checked(); damage != nil { // then it explains the other error
		return damage
	}
	if err != nil {
		return err
	}
	return n.addFiles(inst.spec.Instance, id)
}

// layerOf are the files of a snapshot that say what it changed of its root.
func layerOf(s cay.Snapshot) []cay.SnapFile {
	var out []cay.SnapFile
	for _, f := range s.Files {
		if filepath.Dir(f.Name) == engine.FilesDir {
			out = append(out, f)
		}
	}
	return out
}
