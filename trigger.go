package cay

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
)

// TriggerID names a trigger. It is a UUID, which the address of a hook ends with.
type TriggerID string

// NewTriggerID returns a fresh UUID.
func NewTriggerID() TriggerID { return TriggerID(uuid()) }

// RunID names a run of a trigger. It is a UUID.
type RunID string

// NewRunID returns a fresh UUID.
func NewRunID() RunID { return RunID(uuid()) }

// TriggerKind says what starts the runs of a trigger.
type TriggerKind string

// The kinds of triggers.
const (
	HookTrigger     TriggerKind = "hook"     // requests to its address
	ScheduleTrigger TriggerKind = "schedule" // the clock
)

// Trigger has a command run in a sandbox, which it makes or wakes, whenever a
// request comes to its address or the clock says so.
type Trigger struct {
	ID      TriggerID
	Team    TeamID
	Name    string // its own in the team
	Kind    TriggerKind
	Enabled bool
	Action  TriggerAction
	// Proof is how requests to a hook prove where they come from, with a secret in
	// Sealed. The environment of the command is in Sealed too.
	Proof  HookProof
	Sealed string
	// Events and Filters say which requests to a hook are of interest: those of an
	// event of Events, or of any where there is none, that pass all filters.
	Events  []string
	Filters []HookFilter
	// Cron says when a schedule runs: five fields, in the time of Zone, a name of
	// the time zone database. Next is the next time, zero while it is turned off.
	Cron, Zone string
	Next       time.Time
	// MaxRunning is how many runs go on at once, MaxWaiting how many may wait for
	// that, and Retries how often a run is tried again that fails.
	MaxRunning, MaxWaiting, Retries int

	// Makers are the parties that made the trigger and changed it.
	Makers    []Origins
	CreatedAt time.Time
	UpdatedAt time.Time
	// Version is raised by one with each change that a client asks for.
	Version int64
}

// TriggerAction is what a run does.
type TriggerAction struct {
	// A sandbox is made of Template for each run, or Sandbox is woken: one of them
	// is set.
	Template string
	Sandbox  SandboxID
	Metadata map[string]string // of sandboxes that it makes
	// Command is for a login shell, as User and in Dir; empty means the sandbox's
	// usual user and its home.
	Command   string
	User, Dir string
	Timeout   time.Duration // how long the command may take
	After     AfterRun
}

// AfterRun is the fate of the sandbox after a run.
type AfterRun string

// The fates of a sandbox.
const (
	KillAfterRun  AfterRun = "kill"
	PauseAfterRun AfterRun = "pause"
	KeepAfterRun  AfterRun = "keep" // it lives to its time
)

// HookProof is how a request proves where it comes from.
type HookProof string

// The proofs. Each is over the bytes of the request as they came.
const (
	GitHubProof   HookProof = "github"   // X-Hub-Signature-256
	SlackProof    HookProof = "slack"    // X-Slack-Signature
	StandardProof HookProof = "standard" // Standard Webhooks: webhook-signature
	BearerProof   HookProof = "bearer"   // Authorization: Bearer with the secret itself
)

// HookProofs lists the proofs.
func HookProofs() []HookProof {
	return []HookProof{GitHubProof, SlackProof, StandardProof, BearerProof}
}

// HookFilter passes a request with one of some values at a path of its body.
// Path has keys and indices between dots; * is any of them. A value is compared
// as text, and * in it stands for any characters.
type HookFilter struct {
	Path   string   `json:"path"`
	Values []string `json:"values"`
}

// The bounds of triggers.
const (
	MaxTriggers    = 100 // of a team
	MaxHookBody    = 1 << 20
	MaxRunOutput   = 64 << 10 // bytes that are kept of what a command wrote last
	MaxRunTimeout  = 24 * time.Hour
	maxCommand     = 64 << 10
	maxRunning     = 64
	maxWaiting     = 1000
	maxRetries     = 10
	maxFilters     = 32
	maxFilterTexts = 64
	maxFilterText  = 512
	maxRunText     = 4096 // a directory, a user, an event
)

var triggerName = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,62}$`)

// Check says what is wrong with a trigger that a client asks for, but for its
// secret and its time.
func (t Trigger) Check() error {
	switch {
	case !triggerName.MatchString(t.Name):
		return Errorf(Invalid, "name: must have 1 to 63 lower-case letters, digits, '.', '_' and '-', and begin with a letter or a digit")
	case t.Kind != HookTrigger && t.Kind != ScheduleTrigger:
		return Errorf(Invalid, "kind: must be hook or schedule")
	case t.MaxRunning < 1 || t.MaxRunning > maxRunning:
		return Errorf(Invalid, "maxRunning: must be 1 to %d", maxRunning)
	case t.MaxWaiting < 0 || t.MaxWaiting > maxWaiting:
		return Errorf(Invalid, "maxWaiting: must be 0 to %d", maxWaiting)
	case t.Retries < 0 || t.Retries > maxRetries:
		return Errorf(Invalid, "retries: must be 0 to %d", maxRetries)
	}
	if err := t.Action.check(); err != nil {
		return err
	}
	if t.Kind == ScheduleTrigger {
		return t.checkSchedule()
	}
	return t.checkHook()
}

func (a TriggerAction) check() error {
	switch {
	case (a.Template == "") == (a.Sandbox == ""):
		return Errorf(Invalid, "template, sandboxID: one of them must be set")
	case strings.TrimSpace(a.Command) == "" || len(a.Command) > maxCommand || strings.ContainsRune(a.Command, 0):
		return Errorf(Invalid, "command: must have 1 to %d bytes, and no NUL", maxCommand)
	case len(a.User) > maxRunText || strings.ContainsAny(a.User, ":\x00"):
		return Errorf(Invalid, "user: is no name of a user")
	case len(a.Dir) > maxRunText || a.Dir != "" && a.Dir[0] != '/' || strings.ContainsRune(a.Dir, 0):
		return Errorf(Invalid, "dir: must begin with /")
	case a.Timeout < time.Second || a.Timeout > MaxRunTimeout:
		return Errorf(Invalid, "timeout: must be 1 second to %d", int(MaxRunTimeout/time.Second))
	case a.After != KillAfterRun && a.After != PauseAfterRun && a.After != KeepAfterRun:
		return Errorf(Invalid, "after: must be kill, pause or keep")
	case a.Sandbox != "" && a.After == KillAfterRun:
		return Errorf(Invalid, "after: a sandbox that is woken is paused or kept").WithHint("kill it yourself when it has served")
	case a.Sandbox != "" && len(a.Metadata) > 0:
		return Errorf(Invalid, "metadata: is for sandboxes that are made of a template")
	}
	return CheckMetadata(a.Metadata)
}

func (t Trigger) checkSchedule() error {
	switch {
	case t.Proof != "" || len(t.Events) > 0 || len(t.Filters) > 0:
		return Errorf(Invalid, "proof, events, filters: are for hooks")
	case t.Cron == "":
		return Errorf(Invalid, "cron: must be set")
	}
	return nil
}

func (t Trigger) checkHook() error {
	switch {
	case !slices.Contains(HookProofs(), t.Proof):
		return Errorf(Invalid, "proof: must be github, slack, standard or bearer")
	case t.Cron != "" || t.Zone != "":
		return Errorf(Invalid, "cron, zone: are for schedules")
	case len(t.Events) > maxFilters:
		return Errorf(Invalid, "events: must be %d at most", maxFilters)
	case len(t.Filters) > maxFilters:
		return Errorf(Invalid, "filters: must be %d at most", maxFilters)
	}
	for i, name := range t.Events {
		if name == "" || len(name) > maxFilterText {
			return Errorf(Invalid, "events[%d]: must have 1 to %d bytes", i, maxFilterText)
		}
	}
	for i, f := range t.Filters {
		if err := f.check(); err != nil {
			return Errorf(Invalid, "filters[%d].%v", i, err)
		}
	}
	return nil
}

func (f HookFilter) check() error {
	switch {
	case f.Path == "" || len(f.Path) > maxFilterText || slices.Contains(strings.Split(f.Path, "."), ""):
		return fmt.Errorf("path: must have keys and indices between dots, such as repository.full_name")
	case len(f.Values) == 0 || len(f.Values) > maxFilterTexts:
		return fmt.Errorf("values: must be 1 to %d", maxFilterTexts)
	}
	for _, value := range f.Values {
		if len(value) > maxFilterText {
			return fmt.Errorf("values: one has more than %d bytes", maxFilterText)
		}
	}
	return nil
}

// RunState is how far a run is.
type RunState string

// The states of runs.
const (
	RunWaiting   RunState = "waiting"
	RunRunning   RunState = "running"
	RunSucceeded RunState = "succeeded" // the command ended with status 0
	RunFailed    RunState = "failed"
	RunCancelled RunState = "cancelled"
	RunSkipped   RunState = "skipped" // as many ran and waited as the trigger has places for
)

// RunStates lists the states.
func RunStates() []RunState {
	return []RunState{RunWaiting, RunRunning, RunSucceeded, RunFailed, RunCancelled, RunSkipped}
}

// Over reports whether nothing follows a state.
func (s RunState) Over() bool { return s != RunWaiting && s != RunRunning }

// Run is one run of a trigger.
type Run struct {
	ID      RunID
	Team    TeamID
	Trigger TriggerID
	// Delivery is the sender's name for the request, or the time of a schedule: a
	// trigger has one run for each.
	Delivery string
	Event    string // the sender's name for what happened
	State    RunState
	Attempt  int // counts from 1 with each time that it is started
	QueuedAt time.Time
	// DueAt is when it may be started, StartedAt and EndedAt are the last
	// attempt's; BegunAt is when its command was, before which none ran.
	DueAt, StartedAt, BegunAt, EndedAt time.Time

	Sandbox SandboxID // the last attempt's
	Woke    bool      // the sandbox slept before that attempt
	// ExitCode is the command's, -1 where a signal ended it; nil where that is not
	// known.
	ExitCode *int
	Error    string // why it failed, in a sentence; empty for a command's status alone
	Output   string // the last bytes of what the command wrote
	// Sealed is the body of the request and its type, until the run is over; Bytes
	// is how large the body is.
	Sealed string
	Bytes  int
	// Askers is the party of a manual start.
	Askers []Origins
}

// CheckRunEvent says what is wrong with the name of an event.
func CheckRunEvent(event string) error {
	if len(event) > maxFilterText {
		return Errorf(Invalid, "event: has more than %d bytes", maxFilterText)
	}
	return nil
}
