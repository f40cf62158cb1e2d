package node

import (
	"errors"
	"slices"
	"testing"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/guest"
)

// beside makes a second instance of a sandbox.
func beside(t *testing.T, n *Node, first cay.Instance) cay.Instance {
	t.Helper()
	next := first.Spec
	next.Instance, next.Resume = cay.NewInstanceID(), true
	second, err := n.Prepare(t.Context(), next)
	if err != nil {
		t.Fatal(err)
	}
	return second
}

func found(t *testing.T, n *Node, want cay.Instance) {
	t.Helper()
	if got, ok := n.Lookup(want.Spec.Sandbox); !ok || got.Spec.Instance != want.Spec.Instance {
		t.Errorf("found %v %v, want %v", ok, got.Spec.Instance, want.Spec.Instance)
	}
}

func TestOneInstanceTakesOver(t *testing.T) {
	m := newMachine(t)
	n := m.open(t)
	first := create(t, n)
	second := beside(t, n, first)
	found(t, n, first)
	if len(n.Instances()) != 2 || m.inits[1].Mode != guest.ModeResume || first.Addr == second.Addr {
		t.Errorf("instances %+v", n.Instances())
	}
	if err := n.Route(second.Spec.Instance); err != nil {
		t.Fatal(err)
	}
	found(t, n, second)
	if got := slices.Index(m.events, "gone"); got < 0 {
		t.Error("connections to the first were not cut")
	}
	if err := n.Kill(t.Context(), first.Spec.Instance, cay.CauseAsked); err != nil {
		t.Fatal(err)
	}
	found(t, n, second)
	if err := n.Route(first.Spec.Instance); cay.KindOf(err) != cay.NotFound {
		t.Errorf("route to what is over: %v", err)
	}
	found(t, n, second)
	if err := n.Kill(t.Context(), second.Spec.Instance, cay.CauseAsked); err != nil {
		t.Fatal(err)
	}
	nothingLeft(t, m, n)
}

// Without room for both, the first is not touched.
func TestNoRoomForASecond(t *testing.T) {
	m := newMachine(t)
	n := m.open(t)
	first := create(t, n)
	before := len(m.events)
	m.has(Room{Memory: 16 << 30, MemoryFree: 900 << 20})
	next := first.Spec
	next.Instance, next.Resume = cay.NewInstanceID(), true
	_, err := n.Prepare(t.Context(), next)
	var full *cay.Error
	if !errors.As(err, &full) || full.Kind != cay.Unavailable || full.Code != cay.CodeCapacity {
		t.Errorf("Prepare without room = %v", err)
	}
	found(t, n, first)
	if after := m.events[before:]; slices.Contains(after, "restore") || slices.Contains(after, "hold") || len(n.Instances()) != 1 {
		t.Errorf("%v was done, %d run", after, len(n.Instances()))
	}
}

// A crash in the middle of a takeover leaves both, and either can be chosen.
func TestACrashBetweenTwoInstances(t *testing.T) {
	for _, chosen := range []int{0, 1} {
		m := newMachine(t)
		n := m.open(t)
		first := create(t, n)
		both := []cay.Instance{first, beside(t, n, first)}
		n.Close()
		m.crash()
		n = m.open(t)
		if len(n.Instances()) != 2 {
			t.Fatalf("adopted %+v", n.Instances())
		}
		if err := n.Route(both[chosen].Spec.Instance); err != nil {
			t.Fatal(err)
		}
		if err := n.Kill(t.Context(), both[1-chosen].Spec.Instance, cay.CauseHostLost); err != nil {
			t.Fatal(err)
		}
		found(t, n, both[chosen])
	}
}
