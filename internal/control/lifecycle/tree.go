package lifecycle

import (
	"cmp"
	"context"
	"sync/atomic"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control/ledger"
	"github.com/cay-run/cay/internal/store"
	"github.com/cay-run/cay/internal/trail"
)

const (
	// MaxCheckpoints is how many checkpoints a tree can have.
	MaxCheckpoints = 1000
	maxLabel       = 128 // characters
)

// treeState is what an entry knows of its tree.
type treeState struct {
	member  atomic.Bool                        // it has a branch in the store
	rewound atomic.Bool                        // it is as its checkpoint was, as far as calls tell
	standby atomic.Pointer[cay.InstanceID]     // is to become its instance
	auto    atomic.Pointer[cay.AutoCheckpoint] // nil for none
	saved   atomic.Int64                       // Unix milliseconds of the newest automatic one
	saving  atomic.Bool                        // an automatic one is being taken by time
	// replaced is closed when the instance is over that the sandbox had before it
	// was brought back last; nil for none. The entry's lock guards it.
	replaced chan struct{}
}

// Tree is a tree of checkpoints and the living sandboxes in it.
type Tree struct {
	Root        cay.SandboxID
	Checkpoints []cay.Checkpoint // oldest first
	Branches    []BranchOf
}

// BranchOf is a living sandbox of a tree and the checkpoint that it comes from.
type BranchOf struct {
	Sandbox    cay.Sandbox
	Checkpoint cay.SnapshotID // empty for none
}

// Tree returns the tree that a team's sandbox is in, its forks included. The tree
// of a sandbox that is over has the checkpoints that are kept.
func (c *Controller) Tree(ctx context.Context, who cay.Caller, id cay.SandboxID) (Tree, error) {
	if err := who.May(cay.ReadSandboxes); err != nil {
		return Tree{}, err
	}
	at, err := c.store.Branch(ctx, who.Team, id)
	if err != nil {
		return Tree{}, err
	}
	if _, err := c.find(who.Team, id); err != nil {
		kept, kerr := c.store.Checkpoints(ctx, store.CheckpointQuery{Team: who.Team, Sandbox: id})
		if kerr != nil || len(kept) == 0 {
			return Tree{}, err
		}
		at.Tree = kept[0].Tree
	}
	out := Tree{Root: at.Tree}
	if out.Checkpoints, err = c.store.Checkpoints(ctx, store.CheckpointQuery{Team: who.Team, Tree: at.Tree}); err != nil {
		return Tree{}, err
	}
	branches, err := c.store.Branches(ctx, at.Tree)
	if err != nil {
		return Tree{}, err
	}
	seen := false
	for _, b := range branches {
		s, err := c.living(ctx, who.Team, b.Sandbox)
		switch {
		case err == nil:
			seen = seen || b.Sandbox == at.Tree
			out.Branches = append(out.Branches, BranchOf{s, b.Checkpoint})
		case cay.KindOf(err) != cay.NotFound:
			return Tree{}, err
		}
	}
	if s, err := c.living(ctx, who.Team, at.Tree); err == nil && !seen { // it has no checkpoint yet
		out.Branches = append([]BranchOf{{Sandbox: s}}, out.Branches...)
	}
	return out, nil
}

// Checkpoint saves a running sandbox, which runs on, as a node of its tree.
func (c *Controller) Checkpoint(ctx context.Context, who cay.Caller, id cay.SandboxID, kind cay.SnapshotKind, label string) (out cay.Checkpoint, err error) {
	if err := who.May(cay.WriteSandboxes); err != nil {
		return out, err
	}
	if err := checkLabel(label); err != nil {
		return out, err
	}
	if err := checkKind(kind); err != nil {
		return out, err
	}
	err = c.change(ctx, who.Team, id, func(e *entry, s cay.Sandbox) error {
		out, err = c.addCheckpoint(ctx, who, e, s, cay.Checkpoint{Kind: kind, Label: label})
		return err
	})
	return out, err
}

// addCheckpoint saves a running sandbox. The caller holds its lock. The
// snapshot is whole before there is a record of it: a crash between leaves one
// that the next start removes.
func (c *Controller) addCheckpoint(ctx context.Context, who cay.Caller, e *entry, s cay.Sandbox, n cay.Checkpoint) (out cay.Checkpoint, err error) {
	ctx, done := trail.Begin(ctx, trail.Checkpoint)
	defer func() { done(err) }()
	if err := mustRun(s); err != nil {
		return n, err
	}
	if err := c.checkRoom(ctx, s); err != nil {
		return n, err
	}
	n.ID, n.Kind = cay.NewSnapshotID(), cmp.Or(n.Kind, cay.MemorySnapshot)
	leave, err := c.roomToSave(ctx, s, n.ID, n.Kind, false)
	if err != nil {
		return n, err
	}
	defer leave()
	if n.Kind != cay.FilesSnapshot {
		if err := c.responds(ctx, s); err != nil {
			return n, err
		}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), saveWithin)
	defer cancel()
	defer c.ledger.Tidy(ctx, n.ID) // when it could not be recorded
	defer c.ledger.Pin(n.ID)()
	if err := c.node.Checkpoint(ctx, s.Instance, c.snapshotOf(s, n.ID, n.Kind)); err != nil {
		return n, saveError(err, "the sandbox could not be saved")
	}
	n, err = c.recordCheckpoint(ctx, who, e, s, n)
	if err == nil {
		c.log.InfoContext(ctx, "checkpoint taken", "sandbox", s.ID, "checkpoint", n.ID, "auto", n.Auto)
	}
	return n, err
}

// recordCheckpoint makes a snapshot of a sandbox a node of its tree.
func (c *Controller) recordCheckpoint(ctx context.Context, who cay.Caller, e *entry, s cay.Sandbox, n cay.Checkpoint) (cay.Checkpoint, error) {
	saved, err := c.node.Snapshot(ctx, n.ID)
	if err != nil {
		return n, err
	}
	n.Team, n.Sandbox, n.Source = s.Team, s.ID, s
	n.Kind, n.Size, n.CreatedAt = saved.Kind, saved.Size(), ledger.Now()
	reason := cay.ReasonAsked
	if n.Auto {
		reason = cay.ReasonAuto
	}
	event := ledger.NewEvent(who, s, cay.SandboxCheckpointed, reason, "checkpoint", string(n.ID), "label", n.Label)
	err = c.recordTree(ctx, e, func(ctx context.Context) (err error) {
		n, err = c.store.AddCheckpoint(ctx, n, event)
		return err
	})
	if err != nil {
		return n, err
	}
	c.toCopy(n)
	c.ledger.Wake(s.Team)
	e.tree.member.Store(true)
	e.tree.rewound.Store(false)
	return n, nil
}

// checkRoom refuses what would make a tree too large.
func (c *Controller) checkRoom(ctx context.Context, s cay.Sandbox) error {
	at, err := c.store.Branch(ctx, s.Team, s.ID)
	if err != nil || at.Checkpoint == "" {
		return err
	}
	n, err := c.store.CountCheckpoints(ctx, at.Tree)
	if err == nil && n >= MaxCheckpoints {
		err = cay.Errorf(cay.Exhausted, "sandbox %s has %d checkpoints with its forks, which is the most", s.ID, n).
			WithCode(cay.CodeTeamLimit).WithHint("delete some")
	}
	return err
}

// Label names a checkpoint for people. A labelled one outlives its sandbox.
func (c *Controller) Label(ctx context.Context, who cay.Caller, id cay.SnapshotID, label string) (cay.Checkpoint, error) {
	if err := who.May(cay.WriteSandboxes); err != nil {
		return cay.Checkpoint{}, err
	}
	if err := checkLabel(label); err != nil {
		return cay.Checkpoint{}, err
	}
	if err := c.ledger.Do(ctx, who, "checkpoint.labelled", string(id), func(tx store.Store) error {
		return tx.LabelCheckpoint(ctx, who.Team, id, label)
	}, "label", label); err != nil {
		return cay.Checkpoint{}, err
	}
	n, err := c.store.Checkpoint(ctx, who.Team, id)
	if err == nil && label == "" { // it may be unwanted now
		c.pruneTree(ctx, who.Team, n.Tree)
	}
	return n, err
}

func checkLabel(label string) error {
	if utf8.RuneCountInString(label) > maxLabel || !utf8.ValidString(label) {
		return cay.Errorf(cay.Invalid, "label: must be UTF-8 of at most %d characters", maxLabel)
	}
	for _, r := range label {
		if !unicode.IsPrint(r) {
			return cay.Errorf(cay.Invalid, "label: %q holds a character that cannot be printed", label)
		}
	}
	return nil
}

func checkKind(kind cay.SnapshotKind) error {
	switch kind {
	case "", cay.MemorySnapshot, cay.FilesSnapshot:
		return nil
	}
	return cay.Errorf(cay.Invalid, "kind: %.20q is no kind of checkpoint", string(kind)).
		WithHint("say %s or %s", cay.MemorySnapshot, cay.FilesSnapshot)
}

// RemoveCheckpoint deletes a checkpoint that no living sandbox was started from.
// Its children stay and come after its parent.
func (c *Controller) RemoveCheckpoint(ctx context.Context, who cay.Caller, id cay.SnapshotID) error {
	if err := who.May(cay.WriteSandboxes); err != nil {
		return err
	}
	n, err := c.store.Checkpoint(ctx, who.Team, id)
	if err != nil {
		return err
	}
	if why, err := c.usedBy(ctx, n); err != nil {
		return err
	} else if why != "" {
		return cay.Errorf(cay.Conflict, "checkpoint %s is in use: %s", id, why)
	}
	if err := c.ledger.Do(ctx, who, "checkpoint.removed", string(id), func(tx store.Store) error {
		return tx.RemoveCheckpoint(ctx, who.Team, id)
	}); err != nil {
		return err
	}
	c.copyOver(id)
	c.ledger.Tidy(ctx, id)
	return nil
}

// forget removes a checkpoint without a use.
func (c *Controller) forget(ctx context.Context, n cay.Checkpoint) error {
	err := c.store.RemoveCheckpoint(ctx, n.Team, n.ID)
	if err != nil && cay.KindOf(err) != cay.NotFound {
		return err
	}
	c.copyOver(n.ID)
	c.ledger.Tidy(ctx, n.ID)
	return nil
}

// usedBy says why a checkpoint is needed, on any node, or nothing.
func (c *Controller) usedBy(ctx context.Context, n cay.Checkpoint) (why string, err error) {
	if why = c.inUse(n.ID); why == "" && c.member {
		why, err = c.inUseElsewhere(ctx, n)
	}
	return why, err
}

// inUse says why a checkpoint's snapshot is needed here, or nothing. A need that
// arises after this has a hold of its own.
func (c *Controller) inUse(id cay.SnapshotID) string {
	if c.ledger.Holds(id) {
		return "something is being started from it"
	}
	for _, e := range c.entries() {
		if why := needs(e.sandbox(), id); why != "" {
			return why
		}
	}
	return ""
}

// inUseElsewhere is inUse for sandboxes of its tree that are other nodes'.
func (c *Controller) inUseElsewhere(ctx context.Context, n cay.Checkpoint) (string, error) {
	branches, err := c.store.Branches(ctx, n.Tree)
	if err != nil {
		return "", err
	}
	for _, b := range branches {
		s, err := c.living(ctx, n.Team, b.Sandbox)
		if err != nil && cay.KindOf(err) != cay.NotFound {
			return "", err
		}
		if why := needs(s, n.ID); why != "" {
			return why, nil
		}
	}
	return "", nil
}

// needs says why a sandbox needs a snapshot, or nothing.
func needs(s cay.Sandbox, id cay.SnapshotID) string {
	switch {
	case s.Snapshot != id || s.State == cay.Killed:
		return ""
	case s.State == cay.Paused:
		return "sandbox " + string(s.ID) + " is paused in it"
	}
	return "sandbox " + string(s.ID) + " was started from it"
}

// ForkCheckpoint makes sandboxes that start as one was at a checkpoint, each
// with an identity of its own. An error means that there is no fork at all.
func (c *Controller) ForkCheckpoint(ctx context.Context, who cay.Caller, id cay.SnapshotID, count int, timeout time.Duration) ([]Forked, error) {
	if err := who.May(cay.WriteSandboxes); err != nil {
		return nil, err
	}
	if err := checkTimeout(timeout); err != nil {
		return nil, err
	}
	if count < 1 || count > MaxForks {
		return nil, cay.Errorf(cay.Invalid, "count: must be 1 to %d", MaxForks)
	}
	defer c.ledger.Tidy(ctx, id) // when its record went meanwhile
	defer c.ledger.Pin(id)()
	n, err := c.store.Checkpoint(ctx, who.Team, id)
	if err != nil {
		return nil, err
	}
	if err := c.copyable(ctx, who, n.Source); err != nil {
		return nil, err
	}
	if err := c.hasPlace(n.Source); err != nil {
		return nil, err
	}
	if cay.MayGoElsewhere(ctx) && n.Source.Network.Private == nil { // its network is here
		if c.drained() != cay.DrainNone {
			return nil, errDrained()
		}
		if err := c.restores(ctx, n.ID, c.elsewhere); err != nil {
			return nil, err
		}
	}
	at := cay.Branch{Tree: n.Tree, Checkpoint: n.ID}
	return c.spawn(ctx, who, n.Source, n.ID, at, count, timeout), nil
}

// leaveTree removes the checkpoints that only an ended sandbox needed.
func (c *Controller) leaveTree(ctx context.Context, e *entry, s cay.Sandbox) {
	if !e.tree.member.Load() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), ledger.EndWithin)
	defer cancel()
	at, err := c.store.Branch(ctx, s.Team, s.ID)
	if err != nil {
		c.log.ErrorContext(ctx, "cannot tidy a tree of checkpoints", "sandbox", s.ID, "err", err)
		return
	}
	c.pruneTree(ctx, s.Team, at.Tree)
}

// pruneTree removes the checkpoints of a tree without a use: those
// without a label, of sandboxes that are over, which no living one comes from.
// A failure is tried again at the next start.
func (c *Controller) pruneTree(ctx context.Context, team cay.TeamID, tree cay.SandboxID) {
	nodes, err := c.store.Checkpoints(ctx, store.CheckpointQuery{Team: team, Tree: tree})
	if err == nil && len(nodes) > 0 {
		var living []cay.Branch
		if living, err = c.store.Branches(ctx, tree); err == nil {
			err = c.forgetUnused(ctx, unwanted(nodes, living))
		}
	}
	if err != nil {
		c.log.ErrorContext(ctx, "cannot tidy a tree of checkpoints", "tree", tree, "err", err)
	}
}

// forgetUnused removes unneeded checkpoints.
func (c *Controller) forgetUnused(ctx context.Context, nodes []cay.Checkpoint) error {
	for _, n := range nodes {
		why, err := c.usedBy(ctx, n)
		if err == nil && why == "" {
			err = c.forget(ctx, n)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func unwanted(nodes []cay.Checkpoint, living []cay.Branch) []cay.Checkpoint {
	byID := make(map[cay.SnapshotID]cay.Checkpoint, len(nodes))
	for _, n := range nodes {
		byID[n.ID] = n
	}
	alive := make(map[cay.SandboxID]bool)
	wanted := make(map[cay.SnapshotID]bool)
	for _, b := range living {
		alive[b.Sandbox] = true
		for id := b.Checkpoint; id != "" && !wanted[id]; id = byID[id].Parent {
			wanted[id] = true
		}
	}
	var out []cay.Checkpoint
	for _, n := range nodes {
		if n.Label == "" && !alive[n.Sandbox] && !wanted[n.ID] {
			out = append(out, n)
		}
	}
	return out
}

// reconcileTrees does at a start what a crash has left undone.
func (c *Controller) reconcileTrees(ctx context.Context) error {
	branches, err := c.store.Branches(ctx, "")
	if err != nil {
		return err
	}
	for _, b := range branches {
		if e := c.live[b.Sandbox]; e != nil {
			e.enterTree(b)
			e.tree.member.Store(true)
		}
	}
	nodes, err := c.store.Checkpoints(ctx, store.CheckpointQuery{})
	if err != nil {
		return err
	}
	c.toCopy(nodes...)
	seen := make(map[cay.SandboxID]bool)
	for _, n := range nodes {
		if e := c.live[n.Sandbox]; e != nil && n.Auto { // the oldest first
			e.tree.saved.Store(n.CreatedAt.UnixMilli())
		}
		if !seen[n.Tree] {
			seen[n.Tree] = true
			c.pruneTree(ctx, n.Team, n.Tree)
		}
	}
	// Of a rollback that was cut off there are two instances: the record says
	// which one it is.
	for _, e := range c.live {
		if s := e.sandbox(); s.State == cay.Running {
			if err := c.node.Route(ctx, s.Instance); err != nil {
				c.log.WarnContext(ctx, "a sandbox cannot be reached", "sandbox", s.ID, "err", err)
			}
		}
	}
	return nil
}
