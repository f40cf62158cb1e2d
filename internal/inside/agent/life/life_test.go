package life

import (
	"testing"
	"time"
)

func TestRemaining(t *testing.T) {
	for _, c := range []struct{ left, step, elapsed, want time.Duration }{
		{time.Minute, step, step, time.Minute - step},
		{time.Minute, step, step + time.Second, time.Minute - step - time.Second},
		{time.Minute, step, time.Hour, time.Minute - step}, // paused for an hour
		{time.Second, time.Second, time.Second, 0},
		{time.Minute, step, -time.Hour, time.Minute - step},
	} {
		if got := remaining(c.left, c.step, c.elapsed); got != c.want {
			t.Errorf("remaining(%v, %v, %v) = %v, want %v", c.left, c.step, c.elapsed, got, c.want)
		}
	}
}

func TestLife(t *testing.T) {
	over := make(chan struct{})
	New(time.Millisecond, func() { close(over) })
	<-over
	l := New(time.Hour, func() { t.Error("a stopped life was over") })
	l.Stop()
	(*Life)(nil).Stop()
}
