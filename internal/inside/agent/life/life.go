// Package life counts the time that a sandbox runs: a pause is no part of it.
package life

import (
	"sync"
	"time"
)

const (
	// step is how often a running life is counted.
	step = 2 * time.Second
	// jump is how late a step may be before it counts as a pause. A
	// machine this busy only makes a life longer.
	jump = 3 * time.Second
)

// Life calls a function when its sandbox has run for a while. The monotonic
// clock of a restored sandbox jumps by the time it was paused, so an ordinary
// timer would fire at once; a Life keeps what remains and counts in small steps,
// of which a jump can spoil only one.
type Life struct {
	mu      sync.Mutex
	left    time.Duration
	timer   *time.Timer
	stopped bool
}

// New starts counting; over is called once, on a goroutine of its own.
func New(d time.Duration, over func()) *Life {
	l := &Life{left: d}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.next(over)
	return l
}

// next counts one step. The lock is held.
func (l *Life) next(over func()) {
	part, begun := min(l.left, step), time.Now()
	l.timer = time.AfterFunc(part, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.stopped {
			return
		}
		if l.left = remaining(l.left, part, time.Since(begun)); l.left > 0 {
			l.next(over)
			return
		}
		l.stopped = true
		go over()
	})
}

// remaining says what is left of a life after a step that took elapsed.
func remaining(left, part, elapsed time.Duration) time.Duration {
	if elapsed < part || elapsed > part+jump {
		elapsed = part
	}
	return left - elapsed
}

// Stop ends the counting; over is not called any more.
func (l *Life) Stop() {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stopped = true
	l.timer.Stop()
}
