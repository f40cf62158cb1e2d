package cay

// Comparison lists the files that differ between two moments of a sandbox's life.
// Files that Cay itself writes into each sandbox are left out.
type Comparison struct {
	Changes []Change // by path; the first so many
	// How many there are of each, also of those that are not listed.
	Added, Changed, Removed int
}

// ChangeKind says what happened to a file.
type ChangeKind string

// The kinds.
const (
	FileAdded   ChangeKind = "added"
	FileChanged ChangeKind = "changed"
	FileRemoved ChangeKind = "removed"
)

// Change is a file that is not the same. A file whose time alone differs is no
// change.
type Change struct {
	// Path is absolute. One that is not UTF-8 or that cannot be printed is
	// written as a Go string, in quotes.
	Path   string
	Kind   ChangeKind
	Before *FileState // nil when it was added
	After  *FileState // nil when it was removed
	Diff   string     // unified, of text; empty when the content is the same
	NoDiff NoDiff     // why there is none where there could be one
}

// FileState is a file at a moment.
type FileState struct {
	Type   string // file, directory, symlink, fifo or device
	Mode   uint32 // permissions and set-id bits, as chmod takes them
	UID    uint32
	GID    uint32
	Size   int64
	Target string // of a symlink, written as Path is
}

// NoDiff is why a file has no diff.
type NoDiff string

// The reasons.
const (
	NoDiffBinary NoDiff = "binary" // it is not UTF-8 text
	NoDiffLarge  NoDiff = "large"
	NoDiffMany   NoDiff = "many" // the diffs of the files before it are all that is shown
)

// Moment is a state of a sandbox: a snapshot of it, or what an instance of it
// is now.
type Moment struct {
	Snapshot SnapshotID // empty for Instance
	Instance InstanceID
}
