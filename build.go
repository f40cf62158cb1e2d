package cay

import "time"

// Build is one making of a template: its recipe and, when ready, the snapshot
// that sandboxes start from.
type Build struct {
	ID           BuildID
	Template     TemplateID
	Team         TeamID
	State        BuildState
	Snapshot     SnapshotID // empty until ready
	RecipeDigest string     // of what it was built from
	Limits       Limits
	EnvdVersion  string
	CreatedAt    time.Time
	UpdatedAt    time.Time
	FinishedAt   time.Time // zero until ready or failed
	Tags         []string  // that it gets when it is ready; none means the default one
	Setup        Setup     // of a ready one: what its processes start with
	Reason       BuildReason
}

// DefaultTag is the tag of the build that a template's name alone means.
const DefaultTag = "default"

// Setup is what the processes of a template start with. Templates that are
// built from it begin with the same.
type Setup struct {
	Args     []string          `json:"args,omitempty"`  // of PID 1
	Ports    []int             `json:"ports,omitempty"` // that answer /health before the template is ready
	Env      map[string]string `json:"env,omitempty"`
	User     string            `json:"user,omitempty"`
	Dir      string            `json:"dir,omitempty"`
	StartCmd string            `json:"startCmd,omitempty"` // was running when the snapshot was taken
	ReadyCmd string            `json:"readyCmd,omitempty"` // succeeds when StartCmd is up
	// StartIn is the context of StartCmd and ReadyCmd where it is not that of
	// the other processes: a template inherits them with the context of the
	// template that brought them.
	StartIn *CommandContext `json:"startIn,omitempty"`
	// Docker gives root of its sandboxes what Docker needs of their kernel (ADR 93).
	Docker bool `json:"docker,omitempty"`
}

// CommandContext is the user, the directory and the variables of a command.
type CommandContext struct {
	Env  map[string]string `json:"env,omitempty"`
	User string            `json:"user,omitempty"`
	Dir  string            `json:"dir,omitempty"`
}

// Boot returns what a sandbox of it needs that starts from files.
func (s Setup) Boot() Boot {
	return Boot{Env: s.Env, User: s.User, Dir: s.Dir, Ports: s.Ports, Start: s.StartCmd, Ready: s.ReadyCmd, StartIn: s.StartIn, Docker: s.Docker}
}

// StartContext is the context of the start and the ready command.
func (s Setup) StartContext() CommandContext { return s.Boot().StartContext() }

// BuildReason is why a build failed.
type BuildReason struct {
	Step    string `json:"step,omitempty"` // as in BuildLog
	Message string `json:"message,omitempty"`
}

// StepError is an error of a build with the step that it is of.
type StepError struct {
	Step string // as in BuildLog
	Err  error
}

func (e *StepError) Error() string { return e.Err.Error() }

func (e *StepError) Unwrap() error { return e.Err }

// BuildSpec is all that a builder needs to make a template.
type BuildSpec struct {
	Build    BuildID
	Template TemplateID
	Team     TeamID
	Limits   Limits
	// Its beginning: the snapshot of a template, or a registry's image.
	From     SnapshotID
	Setup    Setup // of From
	Image    string
	Registry *RegistryAuth // nil for none
	Archive  string        // hash of an uploaded file that a template was exported to

	Steps    []BuildStep
	StartCmd string // empty means that of From
	ReadyCmd string
	Docker   bool // as Setup.Docker; false means that of From
	Force    bool // run all steps, whatever is known of them

	// Secrets are what steps may see and no template keeps, by name.
	Secrets map[string][]byte

	// Volumes are mounted for RUN steps. Nothing on them becomes part of the
	// template.
	Volumes []VolumeMount
}

// BuildStep is one instruction.
type BuildStep struct {
	Type      string // COPY, RUN, ENV, WORKDIR or USER
	Args      []string
	FilesHash string        // of COPY: which archive
	Force     bool          // run this one and all after it
	Secrets   []SecretMount // of RUN
}

// SecretMount says where a step sees a secret of its build. A secret that the
// build does not have is not there.
type SecretMount struct {
	ID       string
	Target   string // path of a file; empty for none
	Env      string // name of a variable; empty for none
	Mode     uint32 // of the file
	UID, GID int
}

// RegistryAuth opens a private registry. It is never logged, and recorded only
// while its build waits, sealed.
type RegistryAuth struct {
	Type     string // registry, aws or gcp
	Username string
	Password string
	// AWS
	AccessKeyID, SecretAccessKey, Region string
	// GCP
	ServiceAccount string // JSON
}

// BuildResult is what a builder made.
type BuildResult struct {
	Snapshot SnapshotID
	Setup    Setup
	Digest   string // of what it was made from
}

// BuildLog is a line of a build's log.
type BuildLog struct {
	At      time.Time
	Level   LogLevel
	Step    string // base, the number of a step from 1, or finalize; may be empty
	Message string
}

// LogLevel says how much a line matters.
type LogLevel int

// The levels.
const (
	LogDebug LogLevel = iota
	LogInfo
	LogWarn
	LogError
)

var logLevels = []string{"debug", "info", "warn", "error"}

// String returns the level's name on the wire.
func (l LogLevel) String() string {
	if l < 0 || int(l) >= len(logLevels) {
		return "info"
	}
	return logLevels[l]
}

// ParseLogLevel finds a level by its name.
func ParseLogLevel(s string) (LogLevel, bool) {
	for i, name := range logLevels {
		if s == name {
			return LogLevel(i), true
		}
	}
	return 0, false
}

// TagAssignment is one time that a tag was pointed to a build.
type TagAssignment struct {
	ID            string // a UUID
	Tag           string
	Build         BuildID
	At            time.Time
	BuildCreated  time.Time
	BuildFinished time.Time
}

// Tag is a name for one build of a template.
type Tag struct {
	Name      string
	Build     BuildID
	CreatedAt time.Time // when it was last moved
	// ReplicatedAt is when the bucket had the snapshot of its build; zero while it has not.
	ReplicatedAt time.Time
}
