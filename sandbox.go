package cay

import (
	"net/netip"
	"strings"
	"time"
)

// State is where a sandbox is in its life:
//
//	creating → running ⇄ pausing → paused → resuming → running
//
// and from anywhere → killed, with a Cause that is kept.
type State string

// The states.
const (
	Creating State = "creating"
	Running  State = "running"
	Pausing  State = "pausing"
	Paused   State = "paused"
	Resuming State = "resuming"
	Killed   State = "killed"
)

// Cause says why a sandbox ended.
type Cause string

// The causes.
const (
	CauseAsked       Cause = "asked"
	CauseTimeout     Cause = "timeout"
	CauseOutOfMemory Cause = "out_of_memory"
	CauseEngine      Cause = "engine_crash"
	CauseHostLost    Cause = "host_lost"
	CauseFailedStart Cause = "failed_start"
	CauseBudget      Cause = "budget"
	CauseMemoryLost  Cause = "memory_lost" // its snapshot could not be read any more
)

// AllCauses lists the causes.
func AllCauses() []Cause {
	return []Cause{CauseAsked, CauseTimeout, CauseOutOfMemory, CauseEngine, CauseHostLost, CauseFailedStart, CauseBudget, CauseMemoryLost}
}

// Limits bound what a sandbox may use. They come from its template.
type Limits struct {
	CPUs     int `json:"cpus"`
	MemoryMB int `json:"memoryMB"`
	DiskMB   int `json:"diskMB"`
}

// TimeoutAction is what happens to a sandbox when its time is over.
type TimeoutAction string

// The actions.
const (
	KillOnTimeout  TimeoutAction = "kill"
	PauseOnTimeout TimeoutAction = "pause"
	// PauseFilesOnTimeout saves the files alone.
	PauseFilesOnTimeout TimeoutAction = "pause_files"
)

// HostLoss is what becomes of a sandbox whose machine is lost.
type HostLoss string

// The ways.
const (
	EndOnHostLoss HostLoss = ""
	// ResumeOnHostLoss has it go on, on another machine of a cluster or on this one after a
	// reboot, from the newest state that is kept of it.
	ResumeOnHostLoss HostLoss = "resume"
)

// NetworkPolicy bounds a sandbox's connections, from it and to it. The zero value
// denies the internet and the public; DefaultNetwork is the usual start.
type NetworkPolicy struct {
	AllowInternet bool     `json:"allowInternet"`
	AllowPublic   bool     `json:"allowPublic"`        // reach its ports without a traffic token
	AllowOut      []string `json:"allowOut,omitempty"` // addresses, prefixes, domains; beats DenyOut
	DenyOut       []string `json:"denyOut,omitempty"`
	// AskOut are domains, or AnyName, that a person is asked about when the sandbox
	// first reaches them; AllowOut beats it, and it beats DenyOut.
	AskOut   []string `json:"askOut,omitempty"`
	MaskHost string   `json:"maskHost,omitempty"`
	// HTTPSPorts are ports whose servers inside speak TLS.
	HTTPSPorts []int `json:"httpsPorts,omitempty"`
	// Rules set headers of requests, by domain. They open nothing.
	Rules map[string][]HeaderRule `json:"rules,omitempty"`
	// Identities are the identity tokens that Rules may name. They are the
	// sandbox's from its creation on.
	Identities map[string]IdentityToken `json:"identities,omitempty"`
	Proxy      *EgressProxy             `json:"proxy,omitempty"`
	// DNSServers are name servers of others that it may reach besides ours.
	DNSServers []string `json:"dnsServers,omitempty"`
	// Private is the network that it shares with others of its team; nil for
	// none.
	Private   *PrivateNetwork `json:"private,omitempty"`
	Bandwidth Bandwidth       `json:"bandwidth,omitzero"`
}

// DefaultNetwork is the policy of a sandbox whose client asks for none: the
// internet, and ports open to every client that knows its id.
func DefaultNetwork() NetworkPolicy {
	return NetworkPolicy{AllowInternet: true, AllowPublic: true}
}

// Sandbox is a computer of an agent. One record for life; Instance names its
// present incarnation.
type Sandbox struct {
	ID       SandboxID
	Team     TeamID
	Template TemplateID
	Build    BuildID
	Snapshot SnapshotID   // the source of its last restore, or the target of a save under way; its state, when paused
	Saved    SnapshotKind // of Snapshot, when paused
	// Unresponsive says that the agent inside did not answer when it was
	// paused: its memory is not restored.
	Unresponsive bool
	// ReplicatedAt is when Snapshot was in the bucket whole; zero while it is not, and
	// without a bucket.
	ReplicatedAt time.Time
	// Moving says that it is paused and goes on by itself, on another node or after its
	// machine was lost.
	Moving   bool
	Notice   string // what its last start could not keep, and why; empty when nothing was lost
	Key      KeyID  // that made it; empty when none did, or an older Cay recorded it
	Alias    string // the template's name at creation, for people
	Node     NodeID
	Instance InstanceID

	// Version is raised by one with each change of the record: a change of
	// another version than the recorded one is refused.
	Version int64

	State   State
	Cause   Cause     // set when killed
	EndedAt time.Time // set when killed or paused

	Limits   Limits
	Metadata map[string]string
	Env      map[string]string
	Network  NetworkPolicy
	Volumes  []VolumeMount // in the order in which they are mounted
	// AskCommands are patterns of commands and code whose start waits for a person's
	// yes (Start.IsAsked). They are the sandbox's from its creation on.
	AskCommands []string

	// Secure sandboxes want their access token on every call to the agent.
	Secure bool

	// StartedAt and EndAt have millisecond precision: clients compare them.
	StartedAt time.Time
	EndAt     time.Time
	Timeout   time.Duration // as asked at creation
	OnTimeout TimeoutAction
	// AutoResume has traffic wake it when it is paused.
	AutoResume bool
	OnHostLoss HostLoss

	// Reading is what its instance took. It is counted with a change of the
	// record, and not read back.
	Reading Reading

	// Once is how its creation can be repeated; it is recorded with the
	// creation and not read back.
	Once Once
}

// Once tells a repeated create from another one: the caller's key, and a digest
// of what was asked for. The zero value is of a create that is not repeated.
type Once struct {
	Key    string
	Digest string
	// Repeats is the sandbox of an earlier create of the key, in whose place this
	// one comes; an earlier create of before Since does not count.
	Repeats SandboxID
	Since   time.Time
}

// The bounds of a sandbox's metadata: all of a team's is read for each list.
const (
	maxMetadata      = 64
	maxMetadataKey   = 256
	maxMetadataBytes = 16 << 10 // keys and values
)

// CheckMetadata reports, as an error, metadata that a sandbox cannot have.
func CheckMetadata(m map[string]string) error {
	if len(m) > maxMetadata {
		return Errorf(Invalid, "metadata: has more than %d entries", maxMetadata)
	}
	total := 0
	for k, v := range m {
		total += len(k) + len(v)
		switch {
		case len(k) > maxMetadataKey:
			return Errorf(Invalid, "metadata: the key %.80q has more than %d bytes", k, maxMetadataKey)
		case strings.ContainsRune(k, 0) || strings.ContainsRune(v, 0):
			return Errorf(Invalid, "metadata: %.80q holds a zero byte", k)
		}
	}
	if total > maxMetadataBytes {
		return Errorf(Invalid, "metadata: has more than %d bytes", maxMetadataBytes)
	}
	return nil
}

// CreateSpec is what a caller asks of a new sandbox. It travels rest → control
// unchanged.
type CreateSpec struct {
	Template   string // id, name, or name:tag
	Timeout    time.Duration
	OnTimeout  TimeoutAction
	OnHostLoss HostLoss `json:",omitempty"`
	AutoResume bool
	Secure     bool
	Metadata   map[string]string
	Env        map[string]string
	Network    NetworkPolicy
	Auto       AutoCheckpoint `json:",omitzero"`
	Volumes    []MountSpec    `json:",omitempty"`
	Near       SandboxID      `json:",omitempty"` // on whose node it is to be
	// AskCommands is as in Sandbox.
	AskCommands []string `json:",omitempty"`
	// IdempotencyKey, if any, makes it safe to ask again: printable ASCII, at
	// most 255 bytes.
	IdempotencyKey string
}

// InstanceSpec is all that a node needs to make one incarnation run. It is
// complete: a node never asks the store, and its journal keeps exactly this.
type InstanceSpec struct {
	Instance     InstanceID        `json:"instance"`
	Sandbox      SandboxID         `json:"sandbox"`
	Team         TeamID            `json:"team"`
	Template     TemplateID        `json:"template"`
	Build        BuildID           `json:"build"`
	Snapshot     SnapshotID        `json:"snapshot"`
	Resume       bool              `json:"resume,omitempty"`    // the same sandbox goes on; else it is a fresh clone
	FilesOnly    bool              `json:"filesOnly,omitempty"` // boot from the snapshot's files, whatever else it holds
	Warm         bool              `json:"warm,omitempty"`      // an instance made beforehand is welcome; it brings its own ids and tokens
	Fenced       bool              `json:"fenced,omitempty"`    // it acts only while its machine has its lease
	Elsewhere    bool              `json:"-"`                   // refuse it where another machine's processor can go on with its memory, and this one's cannot
	Limits       Limits            `json:"limits"`
	Env          map[string]string `json:"env,omitempty"`
	AccessToken  string            `json:"accessToken,omitempty"` // empty when not secure
	TrafficToken string            `json:"trafficToken,omitempty"`
	Network      NetworkPolicy     `json:"network"`
	Volumes      []VolumeMount     `json:"volumes,omitempty"`
	AskCommands  []string          `json:"askCommands,omitempty"`
}

// Instance is a running incarnation, as its node sees it.
type Instance struct {
	Spec    InstanceSpec // with the ids that it has
	Addr    netip.Addr   // where the host reaches its ports
	Started time.Time
	// Notice says which part of its snapshot could not be restored, and why, in a
	// sentence for people; empty when all was, or when only files were asked for.
	Notice string
}

// Death is how an instance ended, told by its node once.
type Death struct {
	Instance InstanceID
	Sandbox  SandboxID
	Cause    Cause
	Detail   string // evidence for logs, e.g. "oom_kill 3"
	Trace    string // where the engine's own program failed, at most 8 KiB; the node logs it, and passes on none
	At       time.Time
}

// Cursor is a place in what a node tells in order. The zero value is its start.
type Cursor struct {
	Epoch string // of the node's log, which begins anew with the node
	Seq   int64
}

// DiskUse is what something takes on a disk, in bytes.
type DiskUse struct {
	Own    int64 // bytes that no other template has
	Shared int64
}

// Usage is what an instance uses now.
type Usage struct {
	At         time.Time
	CPUTime    time.Duration // since it started
	MemoryUsed int64         // bytes
	MemoryMax  int64         // bytes
	// MemoryPending is how many bytes of its snapshot it has not loaded yet: it
	// may take them at any moment, besides MemoryUsed. 0 once it has everything.
	MemoryPending int64
	DiskUsed      int64 // bytes, of what it wrote
	DiskMax       int64 // bytes
	Tasks         int
	Sent          int64 // bytes that its network interface sent since some moment; 0 where it has none
}
