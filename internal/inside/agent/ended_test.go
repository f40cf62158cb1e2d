package agent

import (
	"testing"
	"testing/synctest"
	"time"
)

// The reasons for the guard's ends are told, the latest first, for a while.
func TestEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var e ended
		e.over()
		e.note([]int{2, 3}, "first")
		e.over()
		e.note([]int{3}, "second")
		for pid, want := range map[int]string{1: "", 2: "first", 3: "second"} {
			if got := e.why(pid); got != want {
				t.Errorf("why of %d: %q, want %q", pid, got, want)
			}
		}
		for range endedKept - 1 {
			e.note([]int{4}, "later")
		}
		if got := e.why(2); got != "" {
			t.Errorf("after many more, why of 2: %q", got)
		}
		if got := e.why(3); got != "second" {
			t.Errorf("why of 3: %q", got)
		}
		e.note([]int{5}, "long")
		time.Sleep(endedFresh - 1)
		e.over()
		time.Sleep(endedFresh - 1)
		if got := e.why(5); got != "long" {
			t.Errorf("just after a long act, why of 5: %q", got)
		}
		time.Sleep(time.Nanosecond)
		if got := e.why(5); got != "" {
			t.Errorf("long after it, why of 5: %q", got)
		}
		if got := e.why(3); got != "" {
			t.Errorf("later, why of 3: %q", got)
		}
	})
}
