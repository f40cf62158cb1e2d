// Package engine is the seam between Cay and what isolates a sandbox. gVisor
// (engine/runsc) is the first engine; a microVM may be the second. The
// conformance suite in engine/enginetest is what an engine must pass; nothing
// outside an engine's own package knows how it works.
package engine

import (
	"archive/tar"
	"context"
	"io"
	"os"
	"strings"
	"time"

	"github.com/cay-run/cay"
)

// Capabilities are what a node plans with.
type Capabilities struct {
	Isolation  string // of a guest from its host, in a word
	IdleMemory int64  // bytes of the host that an instance takes besides its guest's
	BootMemory int64  // bytes of one that starts with nothing in memory
	IdleTasks  int    // processes and threads of the host of an idle instance
}

// Engine runs instances. All methods are safe for concurrent use; those on
// one instance must not overlap, except Usage, Watch and Kill.
//
// An engine's instances outlive the process that drives it. Cancelling a
// context ends the wait, never a half-done instance: after an error from Boot
// or Restore nothing of the instance is left running, and Kill of an unknown
// instance is no error. Errors are *cay.Error; Unavailable may be tried again,
// Conflict means that this engine cannot restore this snapshot.
type Engine interface {
	// Fingerprint says what engine this is and what this host offers it.
	Fingerprint() Fingerprint
	// Capabilities says how its instances are kept apart and what they cost.
	Capabilities() Capabilities
	// CanRestore returns nil when the snapshot can be restored on this host
	// by this engine (or an older build of it that is still installed), or
	// Conflict with the reason.
	CanRestore(cay.Snapshot) error
	// CanBoot returns nil when an instance can be booted from the files in the
	// snapshot, whatever its kind and whichever build took it, or Conflict
	// with the reason.
	CanBoot(cay.Snapshot) error
	// Boot starts an instance from a root image with nothing in memory.
	Boot(ctx context.Context, spec BootSpec) error
	// Restore starts an instance from a snapshot.
	Restore(ctx context.Context, spec RestoreSpec) error
	// Checkpoint writes a memory snapshot of an instance into dir, which
	// exists and is empty, and returns the record with what the engine
	// knows filled in (Format, Kind, Engine…, Root, CPUFeatures, Limits,
	// Files); ids, team and agent are the caller's. Files are fsynced. then
	// says what becomes of the instance.
	Checkpoint(ctx context.Context, id cay.InstanceID, dir string, then After) (cay.Snapshot, error)
	// SnapshotFiles writes what the instance has changed of its root's files
	// into dir, as they are at one moment, and returns a record as Checkpoint
	// does, of kind files. The instance goes on; one that is held stays held.
	// It may be called on a directory that a Checkpoint of the same instance
	// has just filled: the record is then that of the added files, and the
	// memory snapshot can be booted from too.
	//
	// Left out are sockets, extended attributes that are empty or not UTF-8,
	// files outside the root (/dev, /proc, /sys), and fractions of seconds in
	// file times.
	SnapshotFiles(ctx context.Context, id cay.InstanceID, dir string) (cay.Snapshot, error)
	// Hold stops an instance in place at no CPU; Release lets it go on.
	// Both are idempotent.
	Hold(ctx context.Context, id cay.InstanceID) error
	Release(ctx context.Context, id cay.InstanceID) error
	// Freeze stops all of an instance, the engine's own part of it too, and
	// Thaw lets it go on: faster than Hold by far, but nothing but Thaw, Kill,
	// Usage and Watch works on it meanwhile. Thaw also gives an instance that
	// was restored in the background its full share of the processors. Both
	// are idempotent; Unsupported means that this host cannot freeze.
	Freeze(ctx context.Context, id cay.InstanceID) error
	Thaw(ctx context.Context, id cay.InstanceID) error
	// Kill ends an instance and removes what the engine keeps of it. It is
	// idempotent and ignores cancellation once begun.
	Kill(ctx context.Context, id cay.InstanceID) error
	// Watch returns a channel that gets the death of the instance, once,
	// with its evidence, also when it was killed, and is then closed.
	Watch(id cay.InstanceID) (<-chan cay.Death, error)
	// List names what is alive or half made, also from before a restart.
	List(ctx context.Context) ([]cay.InstanceID, error)
	// Adopt takes an instance over that an earlier process started. NotFound
	// when it is not alive and whole.
	Adopt(ctx context.Context, id cay.InstanceID) error
	// Usage reads what an instance uses, also of one that is held or frozen. It
	// costs microseconds.
	Usage(ctx context.Context, id cay.InstanceID) (cay.Usage, error)
	// SaveSize is how many bytes Checkpoint, or with filesOnly SnapshotFiles,
	// writes of an instance as it is now, and rather too many than too few. Room
	// that the guest has reserved in files and not written is not among them.
	SaveSize(ctx context.Context, id cay.InstanceID, filesOnly bool) (int64, error)
	// LoadAll waits until an instance has all of its snapshot's memory, and has
	// what is missing loaded at once. Unavailable when ctx ends before, and the
	// loading goes on then, or when it fails. An instance that has everything, or
	// was booted, gives no error.
	LoadAll(ctx context.Context, id cay.InstanceID) error
	// RecordWorkingSet writes which parts of its snapshot an instance restored
	// by demand has loaded so far, for RestoreSpec.WorkingSet of others of the
	// same snapshot: at most MaxWorkingSet bytes in the engine's own form.
	// Parts that came without need, by LoadAll or because a third was there
	// already, are not among them. Conflict when the instance was not restored by
	// demand.
	RecordWorkingSet(ctx context.Context, id cay.InstanceID, w io.Writer) error
	// Changes streams a tar of the files that differ from the root image.
	// Removed files appear as OCI whiteouts (".wh.<name>").
	Changes(ctx context.Context, id cay.InstanceID) (io.ReadCloser, error)
	// ReadFiles visits the files that SnapshotFiles wrote into dir, in the form
	// of Changes. The guest shaped them. A body that is not read costs nothing,
	// however large the file is; none may be kept.
	ReadFiles(dir string, visit func(h *tar.Header, body io.Reader) error) error
}

// Streamer is an engine that can restore from a snapshot that is on its way to
// this machine.
type Streamer interface {
	// Stream says where snapshots arrive, before the first instance is restored
	// or adopted: one that was restored under an earlier process may still need
	// its own. It ends with stop.
	Stream(arrivals func(ctx context.Context, id cay.SnapshotID) (Arrival, error)) (stop func(), err error)
}

// Arrival is a snapshot that is on its way to this machine, or was. Its methods
// may be called at the same time. An error of a wait whose context has not ended
// means that the snapshot does not arrive.
type Arrival interface {
	// Snapshot is the record.
	Snapshot() cay.Snapshot
	// Open opens a file of it to read, which has its size already: what has not
	// arrived reads as zeros.
	Open(file string) (*os.File, error)
	// Await waits until a part of a file has arrived, and has it come before
	// others. It reports whether all of the file is there.
	Await(ctx context.Context, file string, offset, length int64) (all bool, err error)
	// Whole waits until the snapshot is one of this machine's, and returns its
	// directory.
	Whole(ctx context.Context) (dir string, err error)
}

// Fingerprint identifies an engine on a host.
type Fingerprint struct {
	Name        string   // "runsc"
	Hash        string   // of the build that starts new instances
	CPUFeatures []string // sorted; a snapshot taken here may rely on them
}

// Net is an instance's place in the network, made by vnet before the engine
// is called. The engine takes what it finds in the namespace: one interface
// with its address and routes.
type Net struct {
	Namespace string // path of the network namespace
}

// BootSpec starts an instance from a root image. The bundle that comes of it
// is snapshot format.
type BootSpec struct {
	ID     cay.InstanceID
	Root   string   // path of the EROFS image; never changes, named by digest
	Digest string   // of the root image
	Args   []string // of PID 1; with From, none means those that the snapshot was booted with
	// From is the directory of a snapshot of an instance on the same root
	// image: its changed files lie over the root. Empty for none.
	From   string
	Limits cay.Limits
	Dir    string // the instance's own directory on disk, for the overlay and the bundle
	// Reserved is the host directory behind guest.ReservedMount; below Dir when
	// empty. It may be a mount already, with mounts below it, which the guest sees.
	Reserved string
	Net      Net
	// Docker gives the guest's root what Docker needs of its kernel, and a file
	// system of its own at guest.DockerStore with half of the disk, which is part of
	// all snapshots and of no Changes. The snapshots of the instance have
	// cay.DockerFormat, and restores of them have all of it too.
	Docker bool
}

// RestoreSpec starts an instance from a snapshot directory.
type RestoreSpec struct {
	ID       cay.InstanceID
	Snapshot cay.Snapshot
	From     string // the snapshot's directory
	Root     string // path of the root image named by Snapshot.Root
	Limits   cay.Limits
	Dir      string
	Reserved string
	Net      Net
	// Background has it restored after everything else that the host does, and
	// run so until Thaw.
	Background bool
	// Loading says when the snapshot's memory is read. An engine, or the build
	// that took the snapshot, may know Eager only: then that is what it does.
	Loading Loading
	// Share, with Demand, has memory that the guest only reads mapped from the
	// snapshot's own file, so that all instances of the snapshot have one copy
	// of it on the host. Its time of access tells one guest what another has
	// used, so they must be allowed to know that of each other.
	Share bool
	// WorkingSet, with Demand, is the path of what RecordWorkingSet wrote for
	// this snapshot: loaded first, without being asked for. It is a hint: one
	// that is missing, damaged or another snapshot's makes a start slower and
	// nothing else.
	WorkingSet string
	// Arriving has the instance start while the snapshot's files are on their way
	// to From, by what Streamer was given; From counts for nothing then, and Loading
	// neither: memory comes as it is needed, and the rest as it arrives.
	Arriving bool
	// Trace, with Demand, has single pages read, so that RecordWorkingSet writes
	// those that the guest touched and none around them. Each touch costs more.
	Trace bool
}

// Loading is when a restored instance gets the memory of its snapshot.
type Loading int

const (
	// Eager reads all of it before Restore returns. The snapshot's files may
	// change or go from then on.
	Eager Loading = iota
	// Demand reads what the guest touches when it touches it. The files may be
	// removed, since the engine has them open, but their bytes must not change
	// and their space stays taken until the instance ends or, without Share,
	// LoadAll has returned. An instance whose memory cannot be read ends, with
	// cay.CauseMemoryLost.
	Demand
)

// After is what becomes of an instance whose memory is saved.
type After int

const (
	// Ends means that it is gone when Checkpoint returns without an error.
	Ends After = iota
	// GoesOn means that it does; one that is held stays held.
	GoesOn
	// Stays means that it is held from before its memory is read, as by Hold,
	// also when Checkpoint fails: for less than a Hold and a Checkpoint cost.
	Stays
)

// MaxWorkingSet bounds what RecordWorkingSet writes, in bytes.
const MaxWorkingSet = 64 << 10

// A snapshot's directory has, in any engine, the bundle that the instance was
// booted with, and below FilesDir what it had changed of its root's files.
// The other files are memory.
const (
	BundleFile = "bundle.json"
	FilesDir   = "files"
	// LoadDir has what was learnt of how a snapshot is used: starts are slower without.
	LoadDir = "load"
)

// Reads returns the files of a snapshot that a start reads: of its files
// alone, or of its memory.
func Reads(s cay.Snapshot, filesOnly bool) []cay.SnapFile {
	var out []cay.SnapFile
	for _, f := range s.Files {
		layer := strings.HasPrefix(f.Name, FilesDir+"/")
		if f.Name == BundleFile || layer == filesOnly {
			out = append(out, f)
		}
	}
	return out
}

// Hostname is what every instance calls itself. It is snapshot format: a
// restored instance keeps the name it was booted with. Root images resolve it
// in /etc/hosts.
const Hostname = "cay"

// KillGrace is how long an engine may take to end an instance.
const KillGrace = 10 * time.Second
