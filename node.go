package cay

import (
	"slices"
	"time"
)

// NodeState is how far a node of a cluster is.
type NodeState string

const (
	NodeJoined   NodeState = "joined"   // it has a certificate, and no server of it has begun
	NodeStarting NodeState = "starting" // its server builds the templates that it needs
	NodeReady    NodeState = "ready"
	NodeStopped  NodeState = "stopped" // its server ended in good order; what it runs lives on
	// NodeGone is a node that was silent for longer than its lease: what it ran is
	// over, and a server that comes back begins anew.
	NodeGone NodeState = "gone"
	// NodeSilent is no state of a record: a node that begins or is ready is seen so while it
	// does not renew its lease.
	NodeSilent NodeState = "silent"
)

// Node is a machine of a cluster, as its record has it. Times are the database's.
type Node struct {
	ID          NodeID
	Machine     string // a name of its data directory's own
	Address     string // host:port, where the other members reach it
	Fingerprint string // the SHA-256 of its certificate, in hexadecimal digits
	Version     string
	State       NodeState
	Drain       Drain
	Leads       bool
	Epoch       int64 // one more each time that a server takes the node, or that it is declared gone
	JoinedAt    time.Time
	SeenAt      time.Time     // its last renewal; zero for never
	Silent      time.Duration // since then, at the moment of reading
	NodeUse
}

// Drain is the fate of a node's sandboxes while it takes no new ones.
type Drain string

const (
	DrainNone Drain = ""     // it takes new ones
	DrainWait Drain = "wait" // those that run go on there; those that are paused go to other nodes
	DrainMove Drain = "move" // those that run go on elsewhere, too
)

// Home is the node that has a sandbox, as the records have it.
type Home struct {
	Node  NodeID
	Team  TeamID
	State State
}

// NodeUse is what a node tells of itself with each renewal.
type NodeUse struct {
	CPUs         int
	MemoryMB     int
	MemoryFreeMB int
	Running      int // sandboxes
	Starting     int
	Paused       int    `json:",omitempty"`
	Stuck        string `json:",omitempty"` // why some, or the lead, do not leave a node that is drained; empty where all do
	PromisedCPUs int    // to those that run
	PromisedMB   int
	Front        bool           `json:",omitempty"` // it runs no sandboxes
	Engine       string         // the hash of its engine
	CPUFeatures  []string       `json:",omitempty"` // of its processor, sorted: memory may rely on them
	Warm         map[string]int `json:",omitempty"` // instances without an owner, by the id and the names of their template
	Clock        time.Duration  `json:",omitempty"` // its ClockAhead of the database, if that is more than ClockMost either way
}

// ClockMost is how far the clock of a node may be from the database's.
const ClockMost = 10 * time.Second

// ClockAhead is how far the clock of this machine is ahead of one that told a time between a question
// and its answer, at least; negative where it is behind.
func ClockAhead(asked, told, answered time.Time) time.Duration {
	return max(0, asked.Round(0).Sub(told)) + min(0, answered.Round(0).Sub(told))
}

// ClockWords says how far a clock is ahead of the database's.
func ClockWords(ahead time.Duration) string {
	if ahead < 0 {
		return ahead.Abs().Round(time.Second).String() + " behind the database's"
	}
	return ahead.Round(time.Second).String() + " ahead of the database's"
}

// Fresh is how long after a renewal a node gets new sandboxes.
const NodeFresh = 10 * time.Second

// Seen is the state of a node as others see it.
func (n Node) Seen() NodeState {
	if (n.State == NodeReady || n.State == NodeStarting) && n.Silent >= NodeFresh {
		return NodeSilent
	}
	return n.State
}

// Goes reports whether memory that relies on features of a processor goes on there.
func (n Node) Goes(features []string) bool { return LacksFeature(n.CPUFeatures, features) == "" }

// LacksFeature is the first of the features needed that a processor with others, sorted, lacks;
// empty where it has all.
func LacksFeature(has, needed []string) string {
	for _, f := range needed {
		if _, ok := slices.BinarySearch(has, f); !ok {
			return f
		}
	}
	return ""
}

// Takes reports whether a node gets new sandboxes.
func (n Node) Takes() bool {
	return n.State == NodeReady && !n.Front && n.Drain == DrainNone && n.Silent < NodeFresh
}

// Cluster is what the members of a cluster share.
type Cluster struct {
	ID          string
	Certificate string // of its authority, PEM
	Key         string // of its authority, sealed
	Lead        NodeID // empty for none
	CreatedAt   time.Time
}
