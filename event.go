package cay

import (
	"strings"
	"time"
	"unicode"
)

// EventType says what happened. The first word names the thing that changed.
type EventType string

// The types of a sandbox's events. Each has an entry in Events, which
// docs/use/events.md is rendered from.
const (
	SandboxCreated        EventType = "sandbox.created"
	SandboxRunning        EventType = "sandbox.running"
	SandboxPausing        EventType = "sandbox.pausing"
	SandboxPaused         EventType = "sandbox.paused"
	SandboxReplicated     EventType = "sandbox.replicated"
	SandboxResuming       EventType = "sandbox.resuming"
	SandboxResumed        EventType = "sandbox.resumed"
	SandboxForked         EventType = "sandbox.forked"
	SandboxCheckpointed   EventType = "sandbox.checkpointed"
	SandboxRolledBack     EventType = "sandbox.rolled_back"
	SandboxPromoted       EventType = "sandbox.promoted"
	SandboxTimeoutChanged EventType = "sandbox.timeout_changed"
	SandboxNetworkChanged EventType = "sandbox.network_changed"
	SandboxKilled         EventType = "sandbox.killed"
	EgressDenied          EventType = "egress.denied"
	ProcessKilled         EventType = "process.killed"
)

// Events of a team, which name no sandbox.
const (
	BudgetThreshold EventType = "budget.threshold"
	BudgetChanged   EventType = "budget.changed"
)

// Events of the machine, told to every team; they name no sandbox.
const (
	MachineDiskLow   EventType = "machine.disk_low"   // the reason is near, or low when new work is refused
	MachineDiskFreed EventType = "machine.disk_freed" // it has room again
)

// Events of a team, which name no sandbox.
const (
	TeamCreated     EventType = "team.created"
	TeamRenamed     EventType = "team.renamed"
	TeamDisabled    EventType = "team.disabled"
	TeamEnabled     EventType = "team.enabled"
	TeamRemoved     EventType = "team.removed"
	KeyCreated      EventType = "key.created"
	KeyChanged      EventType = "key.changed"
	KeyRemoved      EventType = "key.removed"
	WebhookAdded    EventType = "webhook.added"
	WebhookChanged  EventType = "webhook.changed"
	WebhookRemoved  EventType = "webhook.removed"
	WebhookDisabled EventType = "webhook.disabled" // by the server; the reason says why
	WebhookTest     EventType = "webhook.test"     // sent when asked for, and not recorded as an event

	TriggerAdded   EventType = "trigger.added"
	TriggerChanged EventType = "trigger.changed"
	TriggerRemoved EventType = "trigger.removed"
	RunEnded       EventType = "run.ended" // of a trigger

	ModelProviderFailing EventType = "model_provider.failing"

	ApprovalRequested EventType = "approval.requested"
	ApprovalDecided   EventType = "approval.decided"

	VolumeCreated EventType = "volume.created"
	VolumeResized EventType = "volume.resized"
	VolumeDeleted EventType = "volume.deleted"

	VolumeSnapshotted     EventType = "volume.snapshotted"
	VolumeSnapshotRemoved EventType = "volume.snapshot_removed"
	VolumeRestored        EventType = "volume.restored"

	MemberAdded       EventType = "member.added"
	MemberChanged     EventType = "member.changed"
	MemberRemoved     EventType = "member.removed"
	TeamLimitsChanged EventType = "team.limits_changed"
)

// AuditCheckpoint is told to the operator's team alone: the numbers in it say
// how much all teams do.
const AuditCheckpoint EventType = "audit.checkpoint"

// Reasons of events besides the causes of an end.
const (
	ReasonAsked     = string(CauseAsked)
	ReasonTimeout   = string(CauseTimeout)
	ReasonMemory    = string(CauseOutOfMemory)
	ReasonTraffic   = "traffic"
	ReasonAuto      = "auto"
	ReasonUndo      = "undo"
	ReasonFork      = "fork"
	ReasonFailed    = "failed"
	ReasonRestart   = "server_restart"
	ReasonDiskNear  = "near"
	ReasonDiskLow   = "low"
	ReasonDiskFreed = "freed"
	ReasonPolicy    = "policy"
	ReasonGone      = "gone"
	ReasonFailing   = "failing"
	ReasonBudget    = string(CauseBudget)
	ReasonDrained   = "drained"
	ReasonHostLost  = string(CauseHostLost)
)

// EventInfo describes the events of a type. Data names the keys that they may
// have besides "by", the API key that asked.
type EventInfo struct {
	Type    EventType
	Meaning string
	Data    []string
}

// Events lists all types.
func Events() []EventInfo {
	return []EventInfo{
		{SandboxCreated, "A sandbox is recorded and does not run yet.", []string{"template", "alias", "source", "checkpoint"}},
		{SandboxRunning, "It runs for the first time, or still because a pause or a rollback failed.", []string{"endAt", "notice", "error"}},
		{SandboxPausing, "It is being saved.", nil},
		{SandboxPaused, "It is saved and does not run; or a resume failed and it stays so. With the reason `host_lost` its machine was lost, and it goes on from what was saved at `savedAt`.", []string{"snapshot", "kind", "savedAt", "error"}},
		{SandboxReplicated, "The snapshot that it was saved in is in the bucket: it outlives its machine.", []string{"snapshot"}},
		{SandboxResuming, "It is being restored.", nil},
		{SandboxResumed, "It runs again.", []string{"endAt", "notice"}},
		{SandboxForked, "Copies of it were asked for; told of the source.", []string{"count", "snapshot"}},
		{SandboxCheckpointed, "It was saved as a checkpoint or a snapshot, and runs on.", []string{"checkpoint", "label", "template", "name", "tag"}},
		{SandboxRolledBack, "It is as it was at a checkpoint.", []string{"checkpoint", "label", "notice"}},
		{SandboxPromoted, "It goes on as one of its forks, which is over.", []string{"branch", "checkpoint", "notice"}},
		{SandboxTimeoutChanged, "It ends at another time.", []string{"endAt"}},
		{SandboxNetworkChanged, "Its network policy was replaced.", nil},
		{SandboxKilled, "It is over; the reason is the cause of its end.", []string{"evidence"}},
		{EgressDenied, "It tried to reach an address or a name that its policy does not allow. Told once a minute for each.", []string{"rule", "protocol", "name", "address"}},
		{ProcessKilled, "The memory guard inside ended one of its processes. The values are the guest's word.", []string{"pid", "name", "memoryMB", "detail"}},
		{TeamCreated, "The team is there.", []string{"name"}},
		{TeamRenamed, "It has another name.", []string{"name", "before"}},
		{TeamDisabled, "Its credentials open nothing, and the connections that they held open have ended.", nil},
		{TeamEnabled, "Its credentials open again what they did.", nil},
		{TeamRemoved, "Its credentials are void, and all that it has is being removed.", []string{"name"}},
		{KeyCreated, "An API key was made.", []string{"key", "name", "scopes", "expiresAt"}},
		{KeyChanged, "An API key got another name or another end.", []string{"key", "name", "expiresAt"}},
		{KeyRemoved, "An API key opens nothing any more.", []string{"key", "name"}},
		{WebhookAdded, "The team has a new webhook.", []string{"webhook", "name"}},
		{WebhookChanged, "A webhook's name, address, types, state or secret was changed.", []string{"webhook", "name", "changed"}},
		{WebhookRemoved, "A webhook was removed.", []string{"webhook", "name"}},
		{WebhookDisabled, "The server turned a webhook off.", []string{"webhook", "name"}},
		{WebhookTest, "Sent to a webhook to try it, when a client asks for that. It is in no list of events.", []string{"webhook"}},
		{TriggerAdded, "The team has a new trigger.", []string{"trigger", "name", "kind"}},
		{TriggerChanged, "A trigger was changed, or turned on or off.", []string{"trigger", "name", "changed"}},
		{TriggerRemoved, "A trigger was removed with its runs.", []string{"trigger", "name"}},
		{RunEnded, "A run of a trigger is over: it succeeded, failed, was cancelled, or was skipped because the runs before it took the places.", []string{"trigger", "name", "run", "state", "exitCode", "sandbox", "attempt", "error"}},
		{ModelProviderFailing, "A provider of models did not answer a request of a sandbox, or said that it has no room, and the next one was asked where there is one. Told once in five minutes for each.", []string{"provider", "why"}},
		{ApprovalRequested, "A sandbox or a program asks for a decision.", []string{"approval", "kind", "title", "subject", "risk", "expiresAt"}},
		{ApprovalDecided, "An approval is approved, denied or expired.", []string{"approval", "kind", "title", "subject", "state", "remember", "note"}},
		{VolumeCreated, "The team has a new volume.", []string{"volume", "name", "sizeMB", "from"}},
		{VolumeResized, "A volume may hold more or less than before.", []string{"volume", "name", "sizeMB", "before"}},
		{VolumeDeleted, "A volume was removed with all that was in it.", []string{"volume", "name"}},
		{VolumeSnapshotted, "The files of a volume were kept under a name.", []string{"volume", "name", "snapshot"}},
		{VolumeSnapshotRemoved, "A snapshot of a volume was removed.", []string{"volume", "name", "snapshot"}},
		{VolumeRestored, "A volume has the files of its snapshot again, in place of those that it had.", []string{"volume", "name", "snapshot", "sizeMB"}},
		{MemberAdded, "A person is in the team.", []string{"person", "email", "role"}},
		{MemberChanged, "A member has another role.", []string{"person", "role", "before"}},
		{MemberRemoved, "A person is not in the team any more.", []string{"person"}},
		{BudgetThreshold, "A part of a budget is used up: 50, 80 or 100 percent. Told once a period. It is of a team.", []string{"budget", "name", "percent", "meter", "limit", "used", "resets", "action"}},
		{BudgetChanged, "A budget was made, changed or removed; the reason says which. It is of a team.", []string{"budget", "name", "meter", "limit", "period", "action"}},
		{TeamLimitsChanged, "The limits of the team were changed. A limit that is not set is the server's default.", []string{"limits", "before"}},
		{MachineDiskLow, "The disk of the server nears its reserve, or has come to it. It is of no sandbox, and every team is told.", []string{"freeMB", "reserveMB"}},
		{MachineDiskFreed, "The disk of the server has room again.", []string{"freeMB", "reserveMB"}},
		{AuditCheckpoint, "The audit log has a new signed head. It is of no sandbox, and the operator's team is told, which the first start made.", []string{"rows", "hash", "at", "key", "signature"}},
	}
}

// ReasonInfo describes a reason of an event.
type ReasonInfo struct{ Reason, Meaning string }

// Reasons lists the reasons of events; those of sandbox.killed are causes.
func Reasons() []ReasonInfo {
	return []ReasonInfo{
		{ReasonAsked, "A client asked for it; `by` names its API key."},
		{ReasonTimeout, "The sandbox's time was over."},
		{ReasonMemory, "Its memory was used up."},
		{ReasonTraffic, "A request woke it."},
		{ReasonAuto, "An automatic checkpoint was due."},
		{ReasonUndo, "A client asked to go back by one checkpoint."},
		{ReasonFork, "It is a fork; `source` names the sandbox that it was made of."},
		{ReasonFailed, "The change was tried and failed; the sandbox is as it was."},
		{ReasonRestart, "The server found it so when it started."},
		{ReasonPolicy, "The sandbox's network policy forbids it."},
		{ReasonDiskNear, "New work is refused soon."},
		{ReasonDiskLow, "New work is refused."},
		{ReasonDiskFreed, "New work is accepted."},
		{ReasonGone, "The webhook's address answered 410, which asks for no more."},
		{ReasonFailing, "Each attempt at the webhook failed for five days."},
		{ReasonDrained, "It goes on on another node: its own is drained, or it is about to be promoted into a sandbox that is there."},
		{ReasonBudget, "A budget is used up; `evidence` or the event `budget.threshold` names it."},
		{string(CauseEngine), "The sandbox's kernel crashed."},
		{string(CauseHostLost), "The machine lost the sandbox, by a reboot or a crash."},
		{string(CauseFailedStart), "It could not be started."},
		{string(CauseMemoryLost), "The snapshot that it was started from could not be read any more, and with it a part of its memory."},
	}
}

// Event is something that happened to a sandbox. Events are kept for a week
// at least.
type Event struct {
	// Seq counts a team's events from 1 without a gap, in the order in which
	// they were recorded. The store gives it.
	Seq     int64
	Team    TeamID
	Sandbox SandboxID
	Type    EventType
	Reason  string // why, in one word; may be empty
	At      time.Time
	Data    map[string]string // a few short values; the type decides its keys
	// Instance is the sandbox's incarnation at that time; empty where it has
	// none.
	Instance InstanceID
	// Outwards is of SandboxNetworkChanged: the lists that are in force from
	// then on.
	Outwards *Outwards

	// Of the row that the audit log gets with the event; not told with it, and
	// not read back.
	Actor Actor
	From  *Origin
}

// Outwards are the lists of a network policy that bound connections outwards.
type Outwards struct {
	Allow []string `json:"allow,omitempty"`
	Deny  []string `json:"deny,omitempty"`
}

// Fit makes text from anywhere one short line of at most so many bytes.
func Fit(s string, most int) string {
	if len(s) > most {
		s = s[:most]
	}
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, strings.ToValidUTF8(s, ""))
}
