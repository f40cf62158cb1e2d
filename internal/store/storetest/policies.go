package storetest

import (
	"fmt"
	"testing"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/store"
)

// longNetwork is a policy of 500 domains, which are others for each n.
func longNetwork(n int) cay.NetworkPolicy {
	p := cay.NetworkPolicy{AllowPublic: true, DenyOut: []string{cay.AllTraffic}}
	for i := range 500 {
		p.AllowOut = append(p.AllowOut, fmt.Sprintf("host-%d.example-%d.com", i, n))
	}
	return p
}

// testLongPolicies has sandboxes with long policies come back from every way to
// read them, with and without others that have the same one.
func testLongPolicies(t *testing.T, s store.Store) {
	a, b := addTeam(t, s, "a"), addTeam(t, s, "b")
	var want []cay.Sandbox
	for i, team := range []cay.TeamID{a.ID, a.ID, a.ID, b.ID} {
		box := sandbox(team, i)
		box.Network = longNetwork(i / 2) // the first two have one, the others another
		noError(t, s.AddSandbox(t.Context(), box))
		want = append(want, box)
	}
	check := func() {
		t.Helper()
		for _, box := range want {
			got, err := s.Sandbox(t.Context(), box.Team, box.ID)
			noError(t, err)
			same(t, "a sandbox", got, box)
		}
	}
	check()
	got, err := s.LiveSandboxes(t.Context())
	noError(t, err)
	same(t, "what lives", got, want)
	got, err = s.Sandboxes(t.Context(), store.SandboxQuery{Team: a.ID, Ascending: true})
	noError(t, err)
	same(t, "the team's", got, want[:3])

	want[0].Network = longNetwork(7)
	want[2].Network = cay.DefaultNetwork()
	want[3].State, want[3].EndedAt = cay.Killed, at(900)
	for i, box := range want {
		noError(t, s.UpdateNetwork(t.Context(), box))
		want[i].Version++
	}
	_, err = s.PruneSandboxes(t.Context(), at(500))
	noError(t, err)
	check()

	want[1].State, want[1].EndedAt = cay.Killed, at(100)
	noError(t, s.UpdateSandbox(t.Context(), want[1]))
	n, err := s.PruneSandboxes(t.Context(), at(500))
	noError(t, err)
	if n != 1 {
		t.Errorf("%d were forgotten, want 1", n)
	}
	want = append(want[:1], want[2:]...)
	check()

	again := sandbox(a.ID, 9)
	again.Network = longNetwork(0) // that was forgotten
	noError(t, s.AddSandbox(t.Context(), again))
	want = append(want, again)
	check()
}

// testNetworkMembers has sandboxes join and leave private networks.
func testNetworkMembers(t *testing.T, s store.Store) {
	a, b := addTeam(t, s, "a"), addTeam(t, s, "b")
	in := func(team cay.Team, i int, network string) cay.Sandbox {
		t.Helper()
		box := sandbox(team.ID, i)
		if network != "" {
			box.Network.Private = &cay.PrivateNetwork{Team: team.ID, Name: network, Member: "m"}
		}
		noError(t, s.AddSandbox(t.Context(), box))
		return box
	}
	first, second, other := in(a, 1, "lan"), in(a, 2, "lan"), in(a, 3, "lan2")
	none, theirs := in(a, 4, ""), in(b, 5, "lan")
	are := func(team cay.Team, network string, want ...cay.Sandbox) {
		t.Helper()
		got, err := s.NetworkMembers(t.Context(), team.ID, network)
		noError(t, err)
		same(t, "the members of "+network, got, want)
	}
	are(a, "lan", first, second)
	are(a, "", first, second, other)
	are(b, "lan", theirs)
	are(a, "la")
	none.Network.Private = &cay.PrivateNetwork{Team: a.ID, Name: "lan", Member: "m"}
	noError(t, s.UpdateNetwork(t.Context(), none))
	none.Version++
	second.Network.Private = nil
	noError(t, s.UpdateNetwork(t.Context(), second))
	first.State, first.EndedAt = cay.Killed, at(100)
	noError(t, s.UpdateSandbox(t.Context(), first))
	other.State = cay.Paused
	noError(t, s.UpdateSandbox(t.Context(), other))
	other.Version++
	are(a, "lan", none)
	are(a, "", other, none)
}
