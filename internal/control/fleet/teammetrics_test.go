package fleet

import (
	"testing"
	"time"

	"github.com/cay-run/cay/internal/store"
)

func TestTeamSamples(t *testing.T) {
	start := time.Unix(1_700_000_000, 0).Truncate(time.Minute)
	minute := func(n, running, most, starts int) store.TeamMinute {
		return store.TeamMinute{At: start.Add(time.Duration(n) * time.Minute), Running: running, Most: most, Starts: starts}
	}
	got := teamSamplesOf([]store.TeamMinute{minute(-9, 2, 7, 3), minute(0, 3, 3, 1), minute(1, 3, 4, 1), minute(4, 4, 5, 2)},
		start, start.Add(250*time.Second))
	want := []struct {
		second, running, most int
		starts                float64
	}{{60, 3, 3, 1}, {120, 3, 4, 1}, {180, 3, 3, 0}, {240, 3, 3, 0}, {250, 4, 5, 2}}
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

// A month is in 500 samples at most, each of whole minutes.
func TestTeamSamplesOfAMonth(t *testing.T) {
	start := time.Unix(1_700_000_000, 0).Truncate(time.Minute)
	got := teamSamplesOf(nil, start, start.Add(31*24*time.Hour))
	if len(got) > teamSamples || len(got) < teamSamples-10 {
		t.Fatalf("%d samples", len(got))
	}
	if step := got[1].At.Sub(got[0].At); step%time.Minute != 0 {
		t.Errorf("a step of %v", step)
	}
}
