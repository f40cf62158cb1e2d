package control_test

import (
	"testing"
	"time"

	"github.com/cay-run/cay"
)

func TestSetNetworkOutlivesPauseForkAndCrash(t *testing.T) {
	w := newWorld(t)
	s := w.create(time.Hour)
	p := cay.NetworkPolicy{AllowInternet: true, AllowOut: []string{"1.1.1.1"}, DenyOut: []string{cay.AllTraffic}}
	if err := w.c.SetNetwork(t.Context(), cay.ForTeam(s.Team), s.ID, p); err != nil {
		t.Fatal(err)
	}
	has := func(what string, n cay.NetworkPolicy) {
		t.Helper()
		if len(n.AllowOut) != 1 || n.AllowOut[0] != "1.1.1.1" || len(n.DenyOut) != 1 || !n.AllowPublic {
			t.Errorf("%s: the policy is %+v", what, n)
		}
	}
	has("set", w.alive(s).Network)
	forks, err := w.c.Fork(t.Context(), cay.ForTeam(s.Team), s.ID, 1, time.Hour)
	if err != nil || forks[0].Err != nil {
		t.Fatal(err, forks)
	}
	has("forked", forks[0].Sandbox.Network)
	w.restart()
	has("restarted", w.alive(s).Network)
	if err := w.c.Pause(t.Context(), cay.ForTeam(s.Team), s.ID, cay.MemorySnapshot, false); err != nil {
		t.Fatal(err)
	}
	if err := w.c.SetNetwork(t.Context(), cay.ForTeam(s.Team), s.ID, p); cay.KindOf(err) != cay.Conflict {
		t.Errorf("SetNetwork of a paused sandbox: %v", err)
	}
	resumed, _, err := w.c.Connect(t.Context(), cay.ForTeam(s.Team), s.ID, time.Hour, true)
	if err != nil {
		t.Fatal(err)
	}
	has("resumed", resumed.Network)

	// A crash between the node's change and the record's.
	p.AllowOut = []string{"2.2.2.2"}
	if err := w.node.SetNetwork(t.Context(), resumed.Instance, p); err != nil {
		t.Fatal(err)
	}
	w.restart()
	if n := w.alive(s).Network; n.AllowOut[0] != "2.2.2.2" || !n.AllowPublic {
		t.Errorf("after a crash the record says %+v", n)
	}
}
