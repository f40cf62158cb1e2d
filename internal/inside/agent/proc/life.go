package proc

import (
	"sync"
	"time"
)

const (
	// lifeStep is how often a running life is counted.
	lifeStep = 2 * time.Second
	// lifeJump is how late a step may be before it counts as a pause. A
	// machine this busy only makes a life longer.
	lifeJump = 3 * time.Second
)

// life calls a function when its sandbox has run for a while. The monotonic
// clock of a restored sandbox jumps by the time it was paused, so an ordinary
// timer would fire at once; life keeps what remains and counts in small steps,
// of which a jump can spoil only one.
type life struct {
	mu      sync.Mutex
	left    time.Duration
	timer   *time.Timer
	stopped bool
}

// newLife starts counting; over is called once, on a goroutine of its own.
func newLife(d time.Duration, over func()) *life {
	l := &life{left: d}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.next(over)
	return l
}

// next counts one step. The lock is held.
func (l *life) next(over func()) {
	step, begun := min(l.left, lifeStep), time.Now()
	l.timer = time.AfterFunc(step, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.stopped {
			return
		}
		if l.left = remaining(l.left, step, time.Since(begun)); l.left > 0 {
			l.next(over)
			return
		}
		l.stopped = true
		go over()
	})
}

// remaining says what is left of a life after a step that took elapsed.
func remaining(left, step, elapsed time.Duration) time.Duration {
	if elapsed < step || elapsed > step+lifeJump {
		elapsed = step
	}
	return left - elapsed
}

// stop ends the counting; over is not called any more.
func (l *life) stop() {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stopped = true
	l.timer.Stop()
}
