package guest

import "time"

// DiaryPath is where the agent tells what happened inside: GET
// DiaryPath?after=N answers with Diary. Agents that are older do not know it.
const DiaryPath = "/diary"

const (
	// DiaryReply bounds an answer: the agent sends no more, the host reads
	// no more.
	DiaryReply = 256 << 10
	// DiaryPage is how many entries an answer has at most.
	DiaryPage = 512
)

// Diary is a page of what happened inside a sandbox since its last /init,
// oldest first.
type Diary struct {
	// Epoch changes with each /init: numbers start again then.
	Epoch   string       `json:"epoch"`
	Entries []DiaryEntry `json:"entries"`
	// More says that there are entries beyond this page.
	More bool `json:"more,omitempty"`
}

// DiaryEntry is a line. Numbers grow by one from 1; those that are missing
// were too many to keep.
type DiaryEntry struct {
	Seq     int64             `json:"seq"`
	At      time.Time         `json:"at"`
	Level   string            `json:"level"`  // debug, info, warn, error
	Logger  string            `json:"logger"` // which part of the agent
	Message string            `json:"message"`
	Fields  map[string]string `json:"fields,omitempty"`
	// Event, if any, is the event that this is as well, as "process.killed".
	Event string `json:"event,omitempty"`
}
