package cay

import "time"

// Checkpoint is a node in the tree of a sandbox: its state at one moment, kept
// so that the sandbox can go back to it and others can be made of it.
type Checkpoint struct {
	ID        SnapshotID // of the snapshot that it keeps
	Team      TeamID
	Tree      SandboxID  // the sandbox that the tree began with
	Sandbox   SandboxID  // whose state it is: that one, or a fork
	Parent    SnapshotID // empty for a root
	Kind      SnapshotKind
	Label     string
	Auto      bool  // taken by an AutoCheckpoint
	Size      int64 // bytes on disk
	CreatedAt time.Time
	// ReplicatedAt is when the bucket had it whole; zero while it has not, and without one.
	ReplicatedAt time.Time
	// Source is the sandbox's record of that moment: forks start as it was.
	Source Sandbox
}

// Branch is where a sandbox is in a tree.
type Branch struct {
	Sandbox SandboxID
	Team    TeamID
	Tree    SandboxID
	// Checkpoint is the newest one that the present state comes from; empty
	// before there is one.
	Checkpoint SnapshotID
	Auto       AutoCheckpoint
	// Rewound is true from a rollback to the checkpoint until the sandbox is
	// used.
	Rewound bool
}

// AutoCheckpoint says when checkpoints are taken by themselves. The
// zero value is never.
type AutoCheckpoint struct {
	Every  time.Duration `json:"every,omitempty"`  // zero for not by time
	Before bool          `json:"before,omitempty"` // each command and each run of code
	Keep   int           `json:"keep,omitempty"`   // how many of them, the newest
	Kind   SnapshotKind  `json:"kind,omitempty"`
}

// On reports whether there are any.
func (a AutoCheckpoint) On() bool { return a.Every > 0 || a.Before }
