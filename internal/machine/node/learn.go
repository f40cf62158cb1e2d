package node

import (
	"bytes"
	"context"
	"encoding/hex"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/guest"
	"github.com/cay-run/cay/internal/machine/engine"
)

// A working set says which parts of its snapshot an instance uses first: a start
// by demand loads them at once, before each is missed. It is a file of the
// snapshot, added when it is known, and goes wherever the snapshot goes.
//
// The set of a template comes from an instance of the node's own, which has no
// client: a client's would tell others what that client did. The set of a sandbox's
// snapshot comes from the first sandbox that starts from it, of the same team.
//
// The node's own instance is traced, page by page, so that the set has what it
// touched. A client's is not, since that would slow the client down: its set has
// the windows around what it touched, and ends at a third of the snapshot, where
// the engine reads the rest (ADR 66).

const (
	workingSet = engine.LoadDir + "/working-set"

	// learnAfter is how long a sandbox runs before its working set is written.
	learnAfter = 10 * time.Second
	// learnPause lets the sandbox that asked for a template first have the host
	// for itself.
	learnPause = 3 * time.Second
	// learnWithin bounds what the work in an instance of the node's own may take.
	learnWithin = time.Minute
)

// workingSetOf is the path of a snapshot's working set; empty when it has none.
func workingSetOf(dir string, s cay.Snapshot) string {
	if slices.ContainsFunc(s.Files, func(f cay.SnapFile) bool { return f.Name == workingSet }) {
		return filepath.Join(dir, workingSet)
	}
	return ""
}

// learn has the working set of a snapshot recorded that has none, after its first
// start by demand.
func (n *Node) learn(inst *instance, from source) {
	id := inst.spec.Snapshot
	if from.loading != engine.Demand || from.arrives || workingSetOf(from.dir, from.record) != "" {
		return
	}
	if from.record.Sandbox == "" {
		n.learnTemplate(id, learnPause)
		return
	}
	if inst.spec.Team == from.record.Team {
		at := inst.spec.Instance
		n.learnOnce(id, func() error {
			if !n.pause(inst, learnAfter) {
				return nil
			}
			return n.ask(n.ctx, at, func(*instance) (bool, error) { return false, n.record(at, id) })
		})
	}
}

// learnTemplate records the working set of a template after a pause.
func (n *Node) learnTemplate(id cay.SnapshotID, after time.Duration) {
	n.learnOnce(id, func() error {
		if !n.pause(nil, after) {
			return nil
		}
		return n.tryOut(id)
	})
}

// learnOnce records a working set in the background, unless that was tried. A try
// that fails for want of room is made again after the next start.
func (n *Node) learnOnce(id cay.SnapshotID, record func() error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.cfg.Loading != engine.Demand || n.learnt[id] || n.closed {
		return
	}
	n.learnt[id] = true
	n.work.Go(func() {
		err := record()
		n.noteLearnt(id, err)
		if cay.KindOf(err) == cay.Unavailable {
			n.forgetLearnt(id)
		}
	})
}

func (n *Node) forgetLearnt(id cay.SnapshotID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.learnt, id)
}

// pause waits for a time, unless an instance or the node ends before.
func (n *Node) pause(inst *instance, d time.Duration) bool {
	var over <-chan struct{}
	if inst != nil {
		over = inst.ctx.Done()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-over:
	case <-n.ctx.Done():
	}
	return false
}

// noteLearnt logs what came of it. A snapshot that is gone, an instance that is
// over and an engine that restores eagerly are no failures.
func (n *Node) noteLearnt(id cay.SnapshotID, err error) {
	if kind := cay.KindOf(err); err != nil && kind != cay.Conflict && kind != cay.NotFound && n.ctx.Err() == nil {
		n.cfg.Log.Warn("a working set could not be recorded; starts from the snapshot are slower", "snapshot", id, "err", err)
	}
}

// tryOut starts an instance of a template, has it do what a first client does, and
// records what it used.
func (n *Node) tryOut(id cay.SnapshotID) error {
	spec := cay.InstanceSpec{Snapshot: id, Sandbox: cay.NewSandboxID(), Instance: cay.NewInstanceID()}
	spec.AccessToken = n.cfg.Token(spec.Sandbox)
	inst, err := n.begin(spec)
	if err != nil {
		return err
	}
	defer n.work.Done()
	defer n.undo(inst)
	inst.pooled.Store(true) // nothing is open to it, and it gives way to others
	inst.trace = true
	by := n.startOf(inst)
	by.mark = "" // the next node removes it
	if err := n.make(n.ctx, inst, by); err != nil {
		return err
	}
	n.awaitIdle(inst)
	if slices.Contains(inst.boot.Ports, guest.InterpPort) {
		ctx, cancel := context.WithTimeout(n.ctx, learnWithin)
		defer cancel()
		if err := n.cfg.Run(ctx, inst.slot, "1"); err != nil {
			return err
		}
	}
	return n.record(spec.Instance, id)
}

// record adds the working set of an instance to its snapshot.
func (n *Node) record(from cay.InstanceID, to cay.SnapshotID) error {
	var text bytes.Buffer
	if err := n.cfg.Engine.RecordWorkingSet(n.ctx, from, &limited{w: &text, left: engine.MaxWorkingSet}); err != nil {
		return err
	}
	tmp, err := n.cfg.Snapshots.Begin()
	if err != nil {
		return err
	}
	defer func() {
		if err := n.cfg.Snapshots.Abort(tmp); err != nil {
			n.cfg.Log.Warn("an unfinished snapshot could not be removed", "path", tmp, "err", err)
		}
	}()
	path := filepath.Join(tmp, workingSet)
	if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil {
		return diskError(err)
	}
	if err := os.WriteFile(path, text.Bytes(), 0o600); err != nil {
		return diskError(err)
	}
	sum := crc32.New(crc32.MakeTable(crc32.Castagnoli))
	sum.Write(text.Bytes())
	n.cfg.Log.Debug("a working set is recorded", "snapshot", to, "bytes", text.Len())
	return n.cfg.Snapshots.Attach(tmp, to, []cay.SnapFile{{Name: workingSet, Size: int64(text.Len()), CRC32C: hex.EncodeToString(sum.Sum(nil))}})
}

// limited fails a write beyond a number of bytes.
type limited struct {
	w    io.Writer
	left int
}

func (l *limited) Write(p []byte) (int, error) {
	if len(p) > l.left {
		return 0, cay.Errorf(cay.Internal, "a working set is larger than %d bytes", engine.MaxWorkingSet)
	}
	l.left -= len(p)
	return l.w.Write(p)
}
