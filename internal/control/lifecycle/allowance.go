package lifecycle

import (
	"strconv"
	"sync"
	"time"
)

// A guest may cause reportBurst events at once, and then one each reportEvery.
const (
	reportBurst = 20
	reportEvery = 5 * time.Second
)

// allowance is how many events a guest may still cause: a bucket that fills
// slowly.
type allowance struct {
	mu      sync.Mutex
	spent   int
	dropped int
	since   time.Time // when spent was last brought up to date
}

// take reports whether one more is within the allowance, and how many were
// not since the last that was; "" for none.
func (a *allowance) take(at time.Time) (dropped string, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if back := int(at.Sub(a.since) / reportEvery); a.since.IsZero() || back >= a.spent {
		a.spent, a.since = 0, at
	} else if back > 0 {
		a.spent -= back
		a.since = a.since.Add(time.Duration(back) * reportEvery)
	}
	if a.spent == reportBurst {
		a.dropped++
		return "", false
	}
	a.spent++
	if a.dropped > 0 {
		dropped = strconv.Itoa(a.dropped)
		a.dropped = 0
	}
	return dropped, true
}
