package proc

import (
	"context"
	"fmt"
	"time"

	"connectrpc.com/connect"
)

const (
	// turnWait is how long a start waits for room: half of what E2B's clients wait
	// for its answer, so that they read the refusal.
	turnWait = 30 * time.Second
	// turnPause is the pause between looks at the room; the end of a process cuts it
	// short.
	turnPause = 50 * time.Millisecond
	// startYoung is how long a process counts as young: its own children, and the
	// memory that they write, may still be to come.
	startYoung = time.Minute
)

// admit waits until the sandbox has room for another process, and refuses the start
// where there is none in time. No running process ends for a start.
// Starts are admitted in the order in which they came; begun ends the admission, and
// the process is in the table by then or did not start.
func (s *Service) admit(ctx context.Context) (begun func(), err error) {
	if s.cfg.Room == nil {
		return func() {}, nil
	}
	wait, cancel := context.WithTimeout(ctx, turnWait)
	defer cancel()
	select {
	case s.line <- struct{}{}:
		defer func() { <-s.line }()
	case <-wait.Done():
		return nil, s.refused(ctx)
	}
	for {
		if s.cfg.Room(s.table.starts()) == "" {
			return s.table.expect(), nil
		}
		select {
		case <-s.table.buried:
		case <-time.After(turnPause):
		case <-wait.Done():
			return nil, s.refused(ctx)
		}
	}
}

// refused is the error of a start that found no room; ctx is its caller's.
func (s *Service) refused(ctx context.Context) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	why := s.cfg.Room(s.table.starts())
	if why == "" {
		why = "others that came before it still wait for room"
	}
	return connect.NewError(connect.CodeResourceExhausted,
		fmt.Errorf("the command was not started, after %d s of waiting: %s; start it again when others have ended", int(turnWait.Seconds()), why))
}
