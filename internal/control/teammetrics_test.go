package control

import (
	"testing"
	"time"

	"github.com/cay-run/cay"
)

func TestTeamSamples(t *testing.T) {
	start := time.Unix(1_700_000_000, 0)
	at := func(second int, id cay.SandboxID, what cay.EventType) cay.Event {
		return cay.Event{Sandbox: id, Type: what, At: start.Add(time.Duration(second) * time.Second)}
	}
	events := []cay.Event{
		at(10, "a", cay.SandboxCreated), at(11, "a", cay.SandboxRunning),
		at(70, "b", cay.SandboxRunning), at(75, "a", cay.SandboxPausing), at(76, "a", cay.SandboxPaused),
		at(77, "a", cay.SandboxResuming), at(78, "a", cay.SandboxPaused), // it failed
		at(130, "a", cay.SandboxResumed), at(131, "b", cay.SandboxKilled), at(132, "c", cay.SandboxKilled),
	}
	got := samples(runs(events, 3), start, start.Add(190*time.Second), time.Minute) // two from before
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
