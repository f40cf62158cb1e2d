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
	Auto      bool  // nobody asked for this one, an AutoCheckpoint did
	Size      int64 // bytes on disk
	CreatedAt time.Time
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
}

// AutoCheckpoint says when checkpoints are taken that nobody asks for. The
// zero value is never.
type AutoCheckpoint struct {
	Every  time.Duration `json:"every,omitempty"`  // zero for not by time
	Before bool          `json:"before,omitempty"` // each command and each run of code
	Keep   int           `json:"keep,omitempty"`   // how many of them, the newest
	Kind   SnapshotKind  `json:"kind,omitempty"`
}

// On reports whether there are any.
func (a AutoCheckpoint) On() bool { return a.Every > 0 || a.Before }

// FileChange says how a file differs between two states.
type FileChange struct {
	Path   string
	Change Change
	Before *FileState // nil when added
	After  *FileState // nil when removed
	// Diff is a unified diff, where both sides are text of a bearable length.
	Diff string
}

// Change is what has become of a file.
type Change string

// The changes.
const (
	Added   Change = "added"
	Changed Change = "changed"
	Removed Change = "removed"
)

// FileState is a file on one side of a comparison.
type FileState struct {
	Type string // "file", "dir", "link" or "other"
	Size int64  // bytes, of a file
	Mode uint32 // permission bits with setuid, setgid and sticky
	UID  int
	GID  int
	Link string // where a link points
}

// Comparison is how the files of two states differ, by path. What lies outside
// of the root file system (/dev, /proc, /sys, /dev/shm) is not in it.
type Comparison struct {
	Files []FileChange
	// Truncated says that there was more: files, or diffs.
	Truncated bool
}
