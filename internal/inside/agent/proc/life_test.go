package proc

import (
	"testing"
	"time"
)

func TestRemaining(t *testing.T) {
	for _, c := range []struct{ left, step, elapsed, want time.Duration }{
		{time.Minute, lifeStep, lifeStep, time.Minute - lifeStep},
		{time.Minute, lifeStep, lifeStep + time.Second, time.Minute - lifeStep - time.Second},
		{time.Minute, lifeStep, time.Hour, time.Minute - lifeStep}, // paused for an hour
		{time.Second, time.Second, time.Second, 0},
		{time.Minute, lifeStep, -time.Hour, time.Minute - lifeStep},
	} {
		if got := remaining(c.left, c.step, c.elapsed); got != c.want {
			t.Errorf("remaining(%v, %v, %v) = %v, want %v", c.left, c.step, c.elapsed, got, c.want)
		}
	}
}

func TestLife(t *testing.T) {
	over := make(chan struct{})
	newLife(time.Millisecond, func() { close(over) })
	<-over
	l := newLife(time.Hour, func() { t.Error("a stopped life was over") })
	l.stop()
	(*life)(nil).stop()
}

func FuzzLookPath(f *testing.F) {
	f.Add("ls", "/bin:relative::/usr/bin")
	f.Add("", "")
	f.Add("a/../b", "/")
	f.Fuzz(func(t *testing.T, cmd, path string) {
		if got, err := lookPath(cmd, path); err == nil && got == "" {
			t.Errorf("lookPath(%q, %q) found nothing and said so nowhere", cmd, path)
		}
	})
}
