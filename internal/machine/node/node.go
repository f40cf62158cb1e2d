// Package node runs instances on one machine.
//
// An instance is one incarnation of a sandbox: a slot in the network, a
// container of the engine, a directory on disk. The node makes the three
// together or none of them, watches for deaths, and gives everything back when
// an instance is over.
//
// Before the engine is called the node writes a journal, one directory an
// instance. The server may be killed at any instruction: instances are
// processes of their own, and the next Open adopts those whose journal says
// that they were finished and ends all others. The node needs no database.
//
// Each instance has one owner: the Create that makes it, then the goroutine
// that tends it. No other goroutine changes it; Kill only asks the owner.
package node

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"iter"
	"log/slog"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/guest"
	"github.com/cay-run/cay/internal/guest/toagent"
	"github.com/cay-run/cay/internal/machine/disk"
	"github.com/cay-run/cay/internal/machine/engine"
	"github.com/cay-run/cay/internal/machine/snapshot"
	"github.com/cay-run/cay/internal/machine/vnet"
)

// Engine is what a node needs of an engine.
type Engine interface {
	Capabilities() engine.Capabilities
	CanRestore(cay.Snapshot) error
	CanBoot(cay.Snapshot) error
	Boot(ctx context.Context, spec engine.BootSpec) error
	Restore(ctx context.Context, spec engine.RestoreSpec) error
	Checkpoint(ctx context.Context, id cay.InstanceID, dir string, then engine.After) (cay.Snapshot, error)
	SnapshotFiles(ctx context.Context, id cay.InstanceID, dir string) (cay.Snapshot, error)
	Fingerprint() engine.Fingerprint
	Changes(ctx context.Context, id cay.InstanceID) (io.ReadCloser, error)
	ReadFiles(dir string, visit func(h *tar.Header, body io.Reader) error) error
	Hold(ctx context.Context, id cay.InstanceID) error
	Release(ctx context.Context, id cay.InstanceID) error
	Freeze(ctx context.Context, id cay.InstanceID) error
	Thaw(ctx context.Context, id cay.InstanceID) error
	Kill(ctx context.Context, id cay.InstanceID) error
	Watch(id cay.InstanceID) (<-chan cay.Death, error)
	List(ctx context.Context) ([]cay.InstanceID, error)
	Adopt(ctx context.Context, id cay.InstanceID) error
	Usage(ctx context.Context, id cay.InstanceID) (cay.Usage, error)
	SaveSize(ctx context.Context, id cay.InstanceID, filesOnly bool) (int64, error)
	RecordWorkingSet(ctx context.Context, id cay.InstanceID, w io.Writer) error
}

// Net is what a node needs of the network.
type Net interface {
	Acquire(ctx context.Context) (vnet.Slot, error)
	Release(ctx context.Context, s vnet.Slot) error
	Adopt(ctx context.Context, index int) (vnet.Slot, error)
	Apply(ctx context.Context, s vnet.Slot, p cay.NetworkPolicy) error
	// Fence has a slot send only while KeepLease was called a short while ago.
	Fence(ctx context.Context, s vnet.Slot) error
	KeepLease(ctx context.Context, lasts time.Duration) error
	Reclaim(ctx context.Context) error
	// Sent is how many bytes came out of a slot since it was made.
	Sent(s vnet.Slot) int64
}

// Egress decides what the packet filter does not. Set says which instance has an
// address and what it may reach; Drop, that the address is free.
type Egress interface {
	Set(addr netip.Addr, spec cay.InstanceSpec)
	Drop(addr netip.Addr)
	Connections(addr netip.Addr) []cay.Connection
}

type noEgress struct{}

func (noEgress) Set(netip.Addr, cay.InstanceSpec)        {}
func (noEgress) Drop(netip.Addr)                         {}
func (noEgress) Connections(netip.Addr) []cay.Connection { return nil }

// Snapshots is where a node finds what to restore, and keeps what it saves.
type Snapshots interface {
	Begin() (tmp string, err error)
	Commit(tmp string, s cay.Snapshot) error
	// Attach adds files to a snapshot; NotFound when there is none any more.
	Attach(tmp string, id cay.SnapshotID, files []cay.SnapFile) error
	Abort(tmp string) error
	// Remove leaves the files of a snapshot that is held, which Mapped lists then,
	// until LetGo was called as often as Hold.
	Remove(id cay.SnapshotID) error
	Hold(id cay.SnapshotID)
	LetGo(id cay.SnapshotID) error
	Mapped() ([]snapshot.Mapped, error)
	// Sweep removes the files of removed snapshots that are not held.
	Sweep() error
	List() ([]cay.Snapshot, error)
	// Saved returns how many bytes a team has in snapshots of its sandboxes,
	// without some of them.
	Saved(team cay.TeamID, but ...cay.SnapshotID) (int64, error)
	Get(id cay.SnapshotID) (dir string, s cay.Snapshot, err error)
	// Use keeps the files of a snapshot from being evicted until done is called.
	Use(id cay.SnapshotID) (done func())
	// Record is Get's record, also of a snapshot that is evicted, and Evicted lists those.
	Record(id cay.SnapshotID) (cay.Snapshot, error)
	Evicted() ([]cay.Snapshot, error)
	// Check compares files of a snapshot with their checksums, unless that
	// was done a short while ago.
	Check(ctx context.Context, s cay.Snapshot, files []cay.SnapFile) error
	// CheckOnce is Check that reads large files once in each run of the host's
	// kernel.
	CheckOnce(ctx context.Context, s cay.Snapshot, files []cay.SnapFile) error
	Image(digest string) (path string, err error)
}

// Volumes is the part of volume.Storage that a node needs.
type Volumes interface {
	Attach(ctx context.Context, id cay.VolumeID) (dir string, err error)
	Detach(id cay.VolumeID)
}

// Config is what a node works with.
type Config struct {
	// Dir holds the journals, and below them what instances write.
	Dir string
	// Reserved holds a directory an instance that the guest sees as
	// guest.ReservedMount. ShareMount should have been called on it.
	Reserved string
	Engine   Engine
	Net      Net
	Egress   Egress // nil decides nothing: diverted connections are lost
	// Authority is what instances are told to trust, as PEM, when headers of
	// their requests are to be set. Empty for none.
	Authority string
	// TrustAlways tells them always: for a package cache, which answers in the
	// name of other hosts.
	TrustAlways bool
	Snapshots   Snapshots
	// Fetch copies what is lacking of a snapshot from elsewhere; NotFound means that it
	// is nowhere. Nil knows no other place.
	Fetch func(ctx context.Context, id cay.SnapshotID) error
	// Elsewhere reports whether a machine that takes sandboxes has a processor with such
	// features; nil knows of no other machine.
	Elsewhere func(ctx context.Context, features []string) bool
	// Record is the record of a snapshot that this machine lacks. It waits for one that
	// another machine has just made. Nil knows no other place.
	Record func(ctx context.Context, id cay.SnapshotID) (cay.Snapshot, error)
	// Arrive is Fetch for an instance that starts while the snapshot's files arrive,
	// where the engine can do that; nil where none can.
	Arrive func(ctx context.Context, id cay.SnapshotID) (engine.Arrival, error)
	// Ahead begins to copy a memory elsewhere whose files are in a directory, before its snapshot
	// is there: a client waits for the copy. Nil leaves it to the time after that.
	Ahead   func(id cay.SnapshotID, dir string)
	Volumes Volumes // nil: an instance that asks for one is refused
	// OnGone is called when an instance is over, or replaced by another, and
	// no longer found by Lookup, before its address is used again. It must
	// not block for long.
	OnGone func(cay.SandboxID, cay.InstanceID)
	// Restores bounds how many instances are made or saved at once; 0 chooses by
	// the number of CPUs.
	Restores int
	// PoolMemory is how much memory, in bytes, instances may take that wait to
	// be claimed; 0 means that none do.
	PoolMemory int64
	// Loading is when instances get the memory of a snapshot that many start from, a
	// template or a named one; OwnLoading, when they get that of a sandbox: in
	// resumes, rollbacks and forks. Sharing says which may have one copy of what they
	// only read of it.
	Loading, OwnLoading engine.Loading
	Sharing             Sharing
	// LoadReserve is how much of what instances may still load is kept free, in
	// percent.
	LoadReserve int
	// Disk is the disk of Dir and of the snapshots, whose reserve new work
	// leaves alone. Without a directory it is not asked.
	Disk disk.Reserve
	// Room tells what the host has left; nil asks this host.
	Room func() (Room, error)
	// Token derives a sandbox's access token: an agent in a snapshot accepts only
	// the token of the sandbox that the snapshot was taken of.
	Token func(cay.SandboxID) string
	// Traffic derives the token that a sandbox's ports ask for.
	Traffic func(cay.SandboxID) string
	// Init calls an agent's /init with the token that it has; nil calls the
	// real one.
	Init func(ctx context.Context, agent *toagent.Client, token string, in guest.Init) (guest.InitReply, error)
	// Diary reads an agent's diary with the token that it has; nil asks the
	// real one.
	Diary func(ctx context.Context, slot vnet.Slot, token string, after int64) (guest.Diary, error)
	// Ready waits until a port inside answers GET /health; nil asks the port.
	Ready func(ctx context.Context, slot vnet.Slot, port int) error
	// Run runs a line of Python in a guest's interpreter; nil asks that.
	Run func(ctx context.Context, slot vnet.Slot, code string) error
	// Rehearse has a guest's interpreter do what a first execution does, without
	// a trace; nil asks that.
	Rehearse func(ctx context.Context, slot vnet.Slot) error
	// Shell runs a line in a guest; nil asks the agent.
	Shell func(ctx context.Context, slot vnet.Slot, line Line) error
	Log   *slog.Logger
}

// Node runs instances. Its methods are safe for concurrent use.
type Node struct {
	cfg      Config
	waiting  atomic.Int32
	restores chan struct{} // a token for each instance that is being made or saved
	copies   chan struct{} // and one for each whose files are being kept: restores may wait for them
	leaving  chan struct{} // and one for each that is paused and whose files are to be kept
	compares chan struct{} // and one for each comparison of files

	// stands says that fenced instances stand still, or may since the server before.
	stands atomic.Bool

	admitting sync.Mutex // while what is left is read, or what was kept for an instance is given back

	endStream func() // the engine reads no snapshots that arrive from then on

	ctx    context.Context // done when the node closes
	cancel context.CancelFunc
	work   sync.WaitGroup // creates and tending goroutines
	deaths *deaths

	mu        sync.Mutex
	closed    bool
	pool      pool
	coming    need // of what is being made
	instances map[cay.InstanceID]*instance
	bySandbox map[cay.SandboxID]*instance // only what Lookup may find
	// keeping has the snapshots that files are still added to.
	keeping map[cay.SnapshotID]chan struct{}
	// ended maps snapshots to channels that close when their instances are gone.
	ended map[cay.SnapshotID]<-chan struct{}
	// learnt has the snapshots whose working set was recorded, or is being recorded.
	learnt map[cay.SnapshotID]bool
}

// Open makes a node from what an earlier one left on this machine: whole
// instances are adopted, everything else is ended and removed. No other
// process may use the same directories, and nothing but nodes may have
// started instances of the engine that are still wanted.
func Open(ctx context.Context, cfg Config) (*Node, error) {
	if cfg.Restores <= 0 {
		cfg.Restores = max(2, runtime.NumCPU()*3/2)
	}
	if cfg.OnGone == nil {
		cfg.OnGone = func(cay.SandboxID, cay.InstanceID) {}
	}
	if cfg.Token == nil {
		cfg.Token = func(cay.SandboxID) string { return "" }
	}
	if cfg.Traffic == nil {
		cfg.Traffic = func(cay.SandboxID) string { return "" }
	}
	if cfg.Init == nil {
		cfg.Init = callAgent
	}
	if cfg.Diary == nil {
		cfg.Diary = readDiary
	}
	if cfg.Ready == nil {
		cfg.Ready = waitReady
	}
	if cfg.Run == nil {
		cfg.Run = runCode
	}
	if cfg.Rehearse == nil {
		cfg.Rehearse = rehearse
	}
	if cfg.Shell == nil {
		cfg.Shell = shell
	}
	if cfg.Egress == nil {
		cfg.Egress = noEgress{}
	}
	if cfg.Room == nil {
		cfg.Room = hostRoom
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	n := &Node{
		cfg:       cfg,
		restores:  make(chan struct{}, cfg.Restores),
		copies:    make(chan struct{}, cfg.Restores),
		leaving:   make(chan struct{}, maxLeaving),
		compares:  make(chan struct{}, compareTurns),
		deaths:    newDeaths(),
		instances: map[cay.InstanceID]*instance{},
		bySandbox: map[cay.SandboxID]*instance{},
		keeping:   map[cay.SnapshotID]chan struct{}{},
		ended:     map[cay.SnapshotID]<-chan struct{}{},
		learnt:    map[cay.SnapshotID]bool{},
		endStream: func() {},
	}
	n.pool = pool{budget: cfg.PoolMemory, wake: make(chan struct{}, 1), supplies: map[cay.SnapshotID]*supply{}}
	n.stands.Store(true) // until the first lease: the server before may have ended with them so
	n.ctx, n.cancel = context.WithCancel(context.Background())
	if err := n.stream(); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	if err := n.recover(ctx); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	n.work.Go(n.followLoading)
	if cfg.PoolMemory > 0 {
		n.work.Go(n.keepPool)
	}
	return n, nil
}

// Close stops tending and waits for what is under way: creates are cancelled,
// kills end. Instances live on.
func (n *Node) Close() error {
	n.mu.Lock()
	n.closed = true
	n.mu.Unlock()
	n.cancel()
	n.work.Wait()
	n.endStream()
	n.deaths.close()
	return nil
}

// Deaths tells how instances ended that had been running: killed on request
// too, and those that an earlier node left and Open found dead. It returns
// those after a cursor, and the cursor to ask with next; it waits for one. Deaths
// before the cursor are forgotten, and all others are told again if asked again.
func (n *Node) Deaths(ctx context.Context, after cay.Cursor) ([]cay.Death, cay.Cursor, error) {
	return n.deaths.after(ctx, after)
}

// Instances lists what runs, also what Lookup does not find: during a rollback
// a sandbox has two.
func (n *Node) Instances() []cay.Instance {
	n.mu.Lock()
	defer n.mu.Unlock()
	out := make([]cay.Instance, 0, len(n.instances))
	for _, inst := range n.instances {
		if inst.whole {
			out = append(out, inst.public())
		}
	}
	return out
}

// Lookup finds the running instance of a sandbox.
func (n *Node) Lookup(id cay.SandboxID) (cay.Instance, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	inst, ok := n.bySandbox[id]
	if !ok {
		return cay.Instance{}, false
	}
	return inst.public(), true
}

// Tokens yields the access tokens of the sandboxes that run. Its caller takes
// its time without the node's lock.
func (n *Node) Tokens() iter.Seq2[cay.SandboxID, string] {
	type pair struct {
		id    cay.SandboxID
		token string
	}
	return func(yield func(cay.SandboxID, string) bool) {
		n.mu.Lock()
		all := make([]pair, 0, len(n.bySandbox))
		for id, inst := range n.bySandbox {
			if token := inst.spec.AccessToken; token != "" {
				all = append(all, pair{id, token})
			}
		}
		n.mu.Unlock()
		for _, p := range all {
			if !yield(p.id, p.token) {
				return
			}
		}
	}
}

// Usage reads what an instance uses.
func (n *Node) Usage(ctx context.Context, id cay.InstanceID) (cay.Usage, error) {
	n.mu.Lock()
	inst, ok := n.instances[id]
	n.mu.Unlock()
	if !ok {
		return cay.Usage{}, cay.Errorf(cay.NotFound, "instance %s is not on this machine", id)
	}
	u, err := n.cfg.Engine.Usage(ctx, id)
	if err == nil {
		u.Sent = n.cfg.Net.Sent(inst.slot)
	}
	return u, err
}
