package cay

import "time"

// EventType says what happened. The first word says to what.
type EventType string

// The types of a sandbox's events. Other parts add their own.
const (
	SandboxCreated        EventType = "sandbox.created"         // recorded, not running yet
	SandboxRunning        EventType = "sandbox.running"         // for the first time, or still because a pause failed
	SandboxPausing        EventType = "sandbox.pausing"         // it is being saved
	SandboxPaused         EventType = "sandbox.paused"          // saved and stopped
	SandboxResuming       EventType = "sandbox.resuming"        // it is being restored
	SandboxResumed        EventType = "sandbox.resumed"         // runs again
	SandboxForked         EventType = "sandbox.forked"          // told of the source
	SandboxCheckpointed   EventType = "sandbox.checkpointed"    // saved, and runs on
	SandboxRolledBack     EventType = "sandbox.rolled_back"     // it is as it was at a checkpoint
	SandboxPromoted       EventType = "sandbox.promoted"        // it goes on as one of its forks, which is over
	SandboxTimeoutChanged EventType = "sandbox.timeout_changed" // it ends at another time
	SandboxNetworkChanged EventType = "sandbox.network_changed" // it may reach other things
	SandboxKilled         EventType = "sandbox.killed"          // over; the reason is the Cause
	EgressDenied          EventType = "egress.denied"           // it tried to reach what its policy does not allow
	ProcessKilled         EventType = "process.killed"          // a process of the guest was ended for it
)

// Reasons of events besides the causes of an end.
const (
	ReasonAsked   = string(CauseAsked)       // through the API; data "by" names the key
	ReasonTimeout = string(CauseTimeout)     // its time was over
	ReasonMemory  = string(CauseOutOfMemory) // its memory was
	ReasonTraffic = "traffic"                // a request woke it
	ReasonAuto    = "auto"                   // nobody asked for this checkpoint
	ReasonUndo    = "undo"                   // back by one checkpoint
	ReasonFork    = "fork"                   // it is a fork; data "source" names of what
	ReasonFailed  = "failed"                 // what was tried did not work, and it is what it was
	ReasonRestart = "server_restart"         // the server found it so when it started
)

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
	Data    map[string]string // a few short values; what is in it depends on the type
}
