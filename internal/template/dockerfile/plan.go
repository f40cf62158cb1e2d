// Package dockerfile turns a Dockerfile into a plan of steps that Cay's
// template builder knows: run, copy, set the environment, the directory, the
// user. Stages, arguments, here-documents, ONBUILD, SHELL and HEALTHCHECK mean
// what they mean to Docker; the grammar is buildkit's own parser.
//
// The package reads and expands; it touches neither files nor the network.
package dockerfile

// Plan is what a Dockerfile asks for.
type Plan struct {
	// Stages are those that the target needs, in the order of building; the
	// last one is the target.
	Stages []Stage
	// Warnings name what has no effect here.
	Warnings []string
}

// Stage is one FROM and what follows.
type Stage struct {
	Name  string // as written after AS, else its number in the Dockerfile
	From  From
	Steps []Step
	// Start is the command line of CMD and ENTRYPOINT, Ready that of
	// HEALTHCHECK; empty when the Dockerfile has none.
	Start string
	Ready string
	// Docker is the label cay.docker: root of its sandboxes gets what Docker needs.
	Docker bool
}

// From says what a stage begins with: an image, or a stage before it.
type From struct {
	Image string
	Stage int // index in Plan.Stages; -1 for an image
}

// Step is one instruction; exactly one of the pointers is set.
type Step struct {
	Line int    // in the Dockerfile, from 1; 0 for what Cay adds
	Text string // as written

	Run     *Run
	Copy    *Copy
	Env     []Pair
	Workdir string
	User    string
}

// Pair is a variable. Its value may hold $NAME of what the image sets.
type Pair struct{ Name, Value string }

// Run is a command line for the stage's shell.
type Run struct {
	Command string
	Secrets []Secret
}

// Secret is a value that one command sees and no layer keeps.
type Secret struct {
	ID       string
	Target   string // file it appears in; /run/secrets/<ID> unless told
	Env      string // variable it appears in, when set; then no file unless Target is set
	Required bool
	Mode     uint32 // of the file; Docker's 0400 unless told
	UID, GID int
}

// Copy brings files: of the build context, of another stage, from the net or
// from the Dockerfile itself.
type Copy struct {
	Sources  []string // paths or patterns; URLs only for an ADD
	Contents []Content
	Dest     string // a trailing slash means a directory
	Stage    int    // index in Plan.Stages to copy from; -1 for the context
	Owner    string // user[:group], or empty
	Mode     string // octal, or empty
	Exclude  []string
	Parents  bool
	// Add has archives of the context unpacked and URLs fetched.
	Add      bool
	Checksum string // of a URL: sha256:…
}

// Content is a file written out in the Dockerfile.
type Content struct{ Name, Data string }
