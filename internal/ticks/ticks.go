// Package ticks does things now and again for as long as a context lasts.
package ticks

import (
	"context"
	"iter"
	"time"
)

// Every returns the ticks of each d until ctx ends, the first after d. It drops those that
// its reader is too slow for.
func Every(ctx context.Context, d time.Duration) iter.Seq[time.Time] {
	return func(yield func(time.Time) bool) {
		tick := time.NewTicker(d)
		defer tick.Stop()
		follow(ctx, tick, yield)
	}
}

// AtOnce returns the ticks of Every after one at once.
func AtOnce(ctx context.Context, d time.Duration) iter.Seq[time.Time] {
	return func(yield func(time.Time) bool) {
		tick := time.NewTicker(d)
		defer tick.Stop()
		if ctx.Err() == nil && yield(time.Now()) {
			follow(ctx, tick, yield)
		}
	}
}

func follow(ctx context.Context, tick *time.Ticker, yield func(time.Time) bool) {
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			if ctx.Err() != nil || !yield(now) { // both were ready
				return
			}
		}
	}
}

// Wait waits for d, and reports whether it did: false is that ctx has ended before.
func Wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
