package agent

import "fmt"

// The engine's figures (cmd/cay-runsc/sentry/brake.go): in a crowd it refuses a fork
// where less than roomReserve would be left, and roomChild besides for each new
// process. A start takes two processes, a shell and what that runs; of the first
// roomFree processes the engine refuses none.
const (
	roomReserve = 64 * mib
	roomChild   = 2 * mib
	roomFree    = 50
)

// room says whether the commands that clients start still fit, so that one more is
// refused before it begins instead of being ended, or refused its own forks, later.
// Few commands always fit: a person who has to look at a sandbox that is full, or end
// something in it, gets in.
type room struct {
	slots  int // how many processes an account may have, 0 for unknown
	sample func() (sample, error)
	limit  func() uint64 // the memory that the host promised, 0 for unknown
}

// lacks says what is missing for one more start, empty for nothing.
func (r room) lacks(live, young int) string {
	if most := r.slots / 8 * 7; most > 0 && 2*(live+1) > most {
		return fmt.Sprintf("too many processes: %d commands run, and an account may have %d processes", live, r.slots)
	}
	crowd := 2*(young+1) - roomFree
	if crowd <= 0 {
		return ""
	}
	s, err := r.sample()
	if err != nil {
		return ""
	}
	now, ok := s.spare(r.limit())
	need := uint64(roomReserve + crowd*roomChild)
	if !ok || now.left > need {
		return ""
	}
	return fmt.Sprintf("not enough memory: %d commands began within the last minute, and with one more %d MiB must be left for what they may write, but %d MiB are", young, need/mib, now.left/mib)
}
