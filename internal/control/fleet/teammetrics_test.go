package fleet

import (
	"testing"
	"time"
)

func TestTeamSamples(t *testing.T) {
	start := time.Unix(1_700_000_000, 0)
	count := newRunCount(start, start.Add(190*time.Second))
	for _, m := range []struct {
		second int
		runs   bool
	}{{11, true}, {70, true}, {76, false}, {130, true}, {131, false}, {200, true}} {
		count.visit(start.Add(time.Duration(m.second)*time.Second), m.runs)
	}
	got := count.metrics(4) // two from before
	want := []struct {
		second, running, most int
		starts                float64
	}{{60, 3, 3, 1}, {120, 3, 4, 1}, {180, 3, 4, 1}, {190, 3, 3, 0}}
	if len(got) != len(want) {
		t.Fatalf("got %+v", got)
	}
	for i, w := range want {
		g := got[i]
		if g.At.Sub(start) != time.Duration(w.second)*time.Second || g.Running != w.running || g.Most != w.most || g.StartRate != w.starts/60 {
			t.Errorf("sample %d is %+v, want %+v", i, g, w)
		}
	}
}
