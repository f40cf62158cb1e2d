package node

import (
	"errors"
	"testing"

	"github.com/cay-run/cay"
)

func TestSetNetwork(t *testing.T) {
	m := newMachine(t)
	n := m.open(t)
	inst := create(t, n)
	p := cay.NetworkPolicy{AllowOut: []string{"1.1.1.1"}}
	if err := n.SetNetwork(t.Context(), inst.Spec.Instance, p); err != nil {
		t.Fatal(err)
	}
	has := func(n *Node, want string) {
		t.Helper()
		got, _ := n.Lookup(inst.Spec.Sandbox)
		m.mu.Lock()
		applied := m.policies[0]
		for _, p := range m.policies {
			applied = p
		}
		m.mu.Unlock()
		if len(got.Spec.Network.AllowOut) != 1 || got.Spec.Network.AllowOut[0] != want || len(applied.AllowOut) != 1 || applied.AllowOut[0] != want {
			t.Errorf("the node has %+v, the network %+v, want %s", got.Spec.Network, applied, want)
		}
	}
	has(n, "1.1.1.1")
	m.on("apply", func() error { return errors.New("no") })
	if err := n.SetNetwork(t.Context(), inst.Spec.Instance, cay.NetworkPolicy{}); err == nil {
		t.Error("a failed change is no error")
	}
	m.on("apply", func() error { return nil })
	n.Close()
	m.crash()
	n = m.open(t)
	has(n, "1.1.1.1")
	if err := n.SetNetwork(t.Context(), "nobody", p); cay.KindOf(err) != cay.NotFound {
		t.Errorf("SetNetwork of an unknown instance: %v", err)
	}
}
