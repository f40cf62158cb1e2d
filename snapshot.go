package cay

import "time"

// SnapshotFormat is the number of the present snapshot format. It is raised
// by every change to capabilities, rlimits, mounts, engine flags, the root's
// format or the agent's /init; docs/adr says how an old one is met.
//
// Snapshots of templates with Docker have DockerFormat in its place: their
// capabilities, mounts and flags are others, and a Cay that does not know them
// must not start them. The next number is above both.
const (
	SnapshotFormat = 1
	DockerFormat   = 2
)

// SnapshotKind is what a snapshot holds.
type SnapshotKind string

// The kinds.
const (
	MemorySnapshot SnapshotKind = "memory" // memory, processes and files
	FilesSnapshot  SnapshotKind = "files"  // files only; restored by booting
)

// Snapshot is the record of an immutable snapshot. It lies beside its files
// as snapshot.json, written last, and is enough to restore without a database.
type Snapshot struct {
	Format      int          `json:"format"`
	ID          SnapshotID   `json:"id"`
	Kind        SnapshotKind `json:"kind"`
	Parent      SnapshotID   `json:"parent,omitempty"`
	Team        TeamID       `json:"team"`
	Sandbox     SandboxID    `json:"sandbox,omitempty"` // that it was taken of; empty for a template's
	Secure      bool         `json:"secure,omitempty"`  // the agent inside has that sandbox's access token
	Engine      string       `json:"engine"`            // e.g. "runsc"
	EngineHash  string       `json:"engineHash"`        // the build that took it, and alone restores it
	EngineFlags []string     `json:"engineFlags"`       // flags that must be the same at restore
	Root        string       `json:"root"`              // digest of the root image below its overlay
	CPUFeatures []string     `json:"cpuFeatures"`
	Agent       int          `json:"agent"` // protocol that the agent inside speaks
	Limits      Limits       `json:"limits"`
	Files       []SnapFile   `json:"files"`
	// Volumes are mounted in it. Sandboxes made of it mount them again: they
	// are in the memory that it holds.
	Volumes   []VolumeMount `json:"volumes,omitempty"`
	Boot      Boot          `json:"boot,omitzero"` // for a start from its files alone
	CreatedAt time.Time     `json:"createdAt"`
}

// Boot is what a sandbox needs that starts from files, besides the files: what
// its agent was told when its template was built, and what must be up before
// it is of use. It passes from each snapshot to those that are taken of what
// was made of it.
type Boot struct {
	Env   map[string]string `json:"env,omitempty"` // the template's, below the sandbox's own
	User  string            `json:"user,omitempty"`
	Dir   string            `json:"dir,omitempty"`
	Ports []int             `json:"ports,omitempty"` // that must answer GET /health
	Start string            `json:"start,omitempty"` // the template's start command, for a shell
	Ready string            `json:"ready,omitempty"` // the command that says when it is up
	// StartIn is the context of Start and Ready; nil where it is the above.
	StartIn *CommandContext `json:"startIn,omitempty"`
	Docker  bool            `json:"docker,omitempty"` // as Setup.Docker
}

// StartContext is the context of the start and the ready command.
func (b Boot) StartContext() CommandContext {
	if b.StartIn != nil {
		return *b.StartIn
	}
	return CommandContext{Env: b.Env, User: b.User, Dir: b.Dir}
}

// SnapFile is one file of a snapshot.
type SnapFile struct {
	Name   string `json:"name"` // a path below the snapshot's directory
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256,omitempty"` // 64 hexadecimal digits; older records have it alone
	CRC32C string `json:"crc32c,omitempty"` // 8 hexadecimal digits; quick enough for every save and restore
}

// Size is the sum of the files, in bytes.
func (s Snapshot) Size() int64 {
	var n int64
	for _, f := range s.Files {
		n += f.Size
	}
	return n
}
