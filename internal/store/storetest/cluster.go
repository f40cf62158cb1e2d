package storetest

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/store"
)

func member(id cay.NodeID) cay.Node {
	return cay.Node{ID: id, Machine: "machine of " + string(id), Address: string(id) + ":7071", Fingerprint: "print of " + string(id), Version: "1", State: cay.NodeJoined}
}

// join has a machine join with a token of its own, and its server begin.
func join(t *testing.T, s store.Store, id cay.NodeID) cay.Node {
	t.Helper()
	ctx := t.Context()
	_, err := s.AddJoinToken(ctx, "token of "+string(id), "bundle", time.Hour)
	noError(t, err)
	n := member(id)
	noError(t, s.JoinCluster(ctx, "token of "+string(id), func(c cay.Cluster, bundle string) (cay.Node, error) {
		same(t, "the bundle", bundle, "bundle")
		same(t, "the cluster", c.ID, "c")
		return n, nil
	}))
	return begin(t, s, n)
}

func begin(t *testing.T, s store.Store, n cay.Node) cay.Node {
	t.Helper()
	var err error
	n.Epoch, err = s.TakeNode(t.Context(), n.ID, n.Machine, time.Hour)
	noError(t, err)
	n.State = cay.NodeReady
	_, err = s.ReportNode(t.Context(), n, time.Hour)
	noError(t, err)
	return n
}

// made checks which node has what a sandbox is saved in, after it went from one node to
// another, and once it is saved there. It leaves the record as it was.
func made(t *testing.T, s store.Store, b cay.Sandbox, before, after cay.NodeID) {
	t.Helper()
	by := func(id cay.SnapshotID, want ...cay.NodeID) {
		t.Helper()
		got, err := s.SnapshotMakers(t.Context(), id)
		noError(t, err)
		same(t, "the makers of a snapshot", got, want)
	}
	first := b.Snapshot
	by(first, before)
	for _, state := range []cay.State{cay.Running, cay.Paused} {
		b.State = state
		if state == cay.Paused {
			b.Snapshot = cay.NewSnapshotID()
		}
		noError(t, s.UpdateSandbox(t.Context(), b))
		b.Version++
		by(b.Snapshot, map[cay.State]cay.NodeID{cay.Running: before, cay.Paused: after}[state])
	}
	by(first)
}

// signed checks which sandboxes links to files may reach on other nodes.
func signed(t *testing.T, s store.Store, team cay.TeamID) {
	t.Helper()
	ctx := t.Context()
	var want []cay.SandboxID
	for i, c := range []struct {
		state              cay.State
		node               cay.NodeID
		secure, woken, may bool
	}{
		{cay.Running, "b", true, false, true},
		{cay.Running, "b", false, false, false},
		{cay.Running, "a", true, false, false},
		{cay.Paused, "b", true, true, true},
		{cay.Paused, "b", true, false, false},
		{cay.Killed, "b", true, true, false},
	} {
		b := sandbox(team, 50+i)
		b.State, b.Node, b.Secure, b.AutoResume = c.state, c.node, c.secure, c.woken
		noError(t, s.AddSandbox(ctx, b))
		if c.may {
			want = append(want, b.ID)
		}
		defer func() {
			b.State = cay.Killed
			noError(t, s.UpdateSandbox(ctx, b))
		}()
	}
	got, err := s.SignedElsewhere(ctx, "a")
	noError(t, err)
	slices.Sort(got)
	slices.Sort(want)
	same(t, "what signed links may reach elsewhere", got, want)
}

func testCluster(t *testing.T, s store.Store) {
	ctx := t.Context()
	team := addTeam(t, s, "a")
	old := sandbox(team.ID, 0)
	noError(t, s.AddSandbox(ctx, old))
	_, err := s.Cluster(ctx)
	wantKind(t, err, cay.NotFound)
	_, err = s.TakeNode(ctx, "local", "another", time.Hour)
	noError(t, err)
	c := cay.Cluster{ID: "c", Certificate: "cert", Key: "key"}
	wantKind(t, s.MakeCluster(ctx, c, "local", member("a")), cay.Conflict) // another machine's server runs
	noError(t, s.LeaveNode(ctx, "local", 1))
	noError(t, s.MakeCluster(ctx, c, "local", member("a")))
	wantKind(t, s.MakeCluster(ctx, c, "local", member("b")), cay.Conflict)
	got, err := s.Cluster(ctx)
	noError(t, err)
	c.CreatedAt = got.CreatedAt
	same(t, "the cluster", got, c)
	home, err := s.SandboxHome(ctx, old.ID)
	noError(t, err)
	same(t, "what was there before", home, cay.Home{Node: "a", Team: old.Team, State: cay.Running})
	_, err = s.SandboxHome(ctx, "inone")
	wantKind(t, err, cay.NotFound)
	signed(t, s, team.ID)

	a := begin(t, s, member("a"))
	b := join(t, s, "b")
	wantKind(t, s.JoinCluster(ctx, "token of b", func(cay.Cluster, string) (cay.Node, error) { return member("x"), nil }), cay.Denied)
	wantKind(t, s.JoinCluster(ctx, "none", func(cay.Cluster, string) (cay.Node, error) { return member("x"), nil }), cay.Denied)
	_, err = s.AddJoinToken(ctx, "old", "bundle", -time.Second)
	noError(t, err)
	wantKind(t, s.JoinCluster(ctx, "old", func(cay.Cluster, string) (cay.Node, error) { return member("x"), nil }), cay.Denied)
	_, err = s.AddJoinToken(ctx, "kept", "bundle", time.Hour)
	noError(t, err)
	failed := cay.Errorf(cay.Internal, "no certificate")
	err = s.JoinCluster(ctx, "kept", func(cay.Cluster, string) (cay.Node, error) { return cay.Node{}, failed })
	if !errors.Is(err, failed) {
		t.Errorf("a join that fails: %v", err)
	}
	noError(t, s.JoinCluster(ctx, "kept", func(cay.Cluster, string) (cay.Node, error) { return member("c"), nil }))

	b.CPUs, b.Warm = 4, map[string]int{"base": 2}
	noError(t, s.SetDrain(ctx, "b", cay.DrainMove))
	told, err := s.ReportNode(ctx, b, time.Hour)
	noError(t, err)
	same(t, "the drain", told.Drain, cay.DrainMove)
	same(t, "the lead", told.Lead, cay.NodeID(""))
	if off := time.Since(told.Now).Abs(); off > time.Minute {
		t.Errorf("the database's clock is %v off", off)
	}
	lead, err := s.TakeLead(ctx, "a", time.Hour)
	noError(t, err)
	same(t, "the lead", lead, cay.NodeID("a"))
	lead, err = s.TakeLead(ctx, "b", time.Hour)
	noError(t, err)
	same(t, "the lead while it is heard", lead, cay.NodeID("a"))
	list, err := s.Nodes(ctx)
	noError(t, err)
	same(t, "the members", len(list), 3)
	for _, n := range list {
		one, err := s.Node(ctx, n.ID)
		noError(t, err)
		one.Silent = n.Silent
		same(t, "a member", one, n)
	}
	same(t, "the one that leads", list[0].Leads, true)
	same(t, "the one that is drained", list[1].Drain, cay.DrainMove)
	same(t, "what it tells", list[1].NodeUse, b.NodeUse)
	same(t, "the one without a server", list[2].State, cay.NodeJoined)
	_, err = s.Node(ctx, "none")
	wantKind(t, err, cay.NotFound)

	// One that is paused goes from a node to another as its node knows it, once.
	handed := sandbox(team.ID, 3)
	handed.Node, handed.State = "b", cay.Running
	noError(t, s.AddSandbox(ctx, handed))
	_, err = s.TakeSandbox(ctx, handed.ID, "b", handed.Version, "a")
	wantKind(t, err, cay.Conflict) // it runs
	handed.State = cay.Paused
	noError(t, s.UpdateSandbox(ctx, handed))
	handed.Version++
	_, err = s.TakeSandbox(ctx, handed.ID, "b", handed.Version-1, "a")
	wantKind(t, err, cay.Conflict) // it has changed
	_, err = s.TakeSandbox(ctx, handed.ID, "c", handed.Version, "a")
	wantKind(t, err, cay.Conflict) // it is another's
	taken, err := s.TakeSandbox(ctx, handed.ID, "b", handed.Version, "a")
	noError(t, err)
	handed.Node, handed.Version = "a", handed.Version+1
	same(t, "what was handed over", taken, handed)
	noError(t, s.SetFingerprint(ctx, "b", b.Epoch, "renewed"))
	renewed, err := s.Node(ctx, "b")
	noError(t, err)
	same(t, "a renewed certificate", renewed.Fingerprint, "renewed")
	if err := s.SetFingerprint(ctx, "b", b.Epoch+1, "late"); !errors.Is(err, store.ErrTakenOver) {
		t.Errorf("a certificate of another epoch: %v", err)
	}
	from := func(what string, want ...cay.Sandbox) {
		t.Helper()
		found, err := s.SandboxesFrom(ctx, "b")
		noError(t, err)
		same(t, what, found, want)
	}
	from("what others have that b saved last, while nothing was saved")
	handed.Node, handed.Snapshot, handed.ReplicatedAt = "b", cay.NewSnapshotID(), time.Time{}
	noError(t, s.UpdateSandbox(ctx, handed))
	handed.Version++
	from("what b has itself")
	handed, err = s.TakeSandbox(ctx, handed.ID, "b", handed.Version, "a")
	noError(t, err)
	from("what a has of b", handed)
	handed.ReplicatedAt = time.UnixMilli(1000).UTC()
	noError(t, s.UpdateSandbox(ctx, handed))
	handed.Version++
	from("what the bucket has")
	_, err = s.TakeSandbox(ctx, handed.ID, "b", handed.Version-1, "c")
	wantKind(t, err, cay.Conflict)

	// b is lost: with its paused sandbox.
	slept := sandbox(team.ID, 1)
	slept.Node, slept.State = "b", cay.Paused
	ran := sandbox(team.ID, 2)
	ran.Node = "b"
	noError(t, s.AddSandbox(ctx, slept))
	slept.Snapshot = cay.NewSnapshotID()
	noError(t, s.UpdateSandbox(ctx, slept))
	slept.Version++
	noError(t, s.AddSandbox(ctx, ran))
	of, err := s.SandboxesOf(ctx, "b")
	noError(t, err)
	same(t, "b's sandboxes", len(of), 2)
	_, err = s.AdoptSandbox(ctx, slept.ID, "a")
	wantKind(t, err, cay.Conflict) // b is there
	lost, err := s.LoseNode(ctx, "b", time.Hour)
	noError(t, err)
	same(t, "b, which was heard", lost, false)
	lost, err = s.LoseNode(ctx, "b", -time.Second)
	noError(t, err)
	same(t, "b, silent", lost, true)
	if _, err := s.ReportNode(ctx, b, time.Hour); !errors.Is(err, store.ErrTakenOver) {
		t.Errorf("a node that is gone: %v", err)
	}
	wantKind(t, s.RemoveNode(ctx, "b", time.Hour), cay.Conflict) // its sandbox is recorded as running
	_, err = s.AdoptSandbox(ctx, ran.ID, "a")
	wantKind(t, err, cay.Conflict)
	adopted, err := s.AdoptSandbox(ctx, slept.ID, "a")
	noError(t, err)
	same(t, "the node", adopted.Node, cay.NodeID("a"))
	same(t, "the version", adopted.Version, slept.Version+1)
	_, err = s.AdoptSandbox(ctx, slept.ID, "a")
	wantKind(t, err, cay.Conflict)
	made(t, s, adopted, "b", "a")
	wantKind(t, s.UpdateSandbox(ctx, slept), cay.Conflict) // as its node knew it
	ran.State, ran.Cause = cay.Killed, cay.CauseHostLost
	noError(t, s.UpdateSandbox(ctx, ran))
	noError(t, s.RemoveNode(ctx, "b", time.Hour))
	_, err = s.Node(ctx, "b")
	wantKind(t, err, cay.NotFound)
	wantKind(t, s.RemoveNode(ctx, "b", time.Hour), cay.NotFound)
	wantKind(t, s.RemoveNode(ctx, "a", time.Hour), cay.Conflict)

	// Another one leads once the first has stopped.
	d := join(t, s, "d")
	noError(t, s.StopNode(ctx, "a", a.Epoch+1)) // not the last epoch: nothing
	lead, err = s.TakeLead(ctx, "d", time.Hour)
	noError(t, err)
	same(t, "the lead", lead, cay.NodeID("a"))
	noError(t, s.StopNode(ctx, "a", a.Epoch))
	lead, err = s.TakeLead(ctx, "d", time.Hour)
	noError(t, err)
	same(t, "the lead after it stopped", lead, cay.NodeID("d"))
	// And once it is silent, which is gone with it.
	a = begin(t, s, member("a"))
	lead, err = s.TakeLead(ctx, "a", -time.Second)
	noError(t, err)
	same(t, "the lead after a silent one", lead, cay.NodeID("a"))
	// Or where the one that does gives it away, which no other can do for it.
	noError(t, s.LeaveLead(ctx, "d"))
	lead, err = s.TakeLead(ctx, "d", time.Hour)
	noError(t, err)
	same(t, "the lead that another gave away", lead, cay.NodeID("a"))
	noError(t, s.LeaveLead(ctx, "a"))
	led, err := s.Cluster(ctx)
	noError(t, err)
	same(t, "the lead that was given away", led.Lead, cay.NodeID(""))
	lead, err = s.TakeLead(ctx, "a", time.Hour)
	noError(t, err)
	same(t, "the lead again", lead, cay.NodeID("a"))
	gone, err := s.Node(ctx, d.ID)
	noError(t, err)
	same(t, "the silent one", gone.State, cay.NodeGone)

	counters, err := s.EventCounters(ctx)
	noError(t, err)
	noError(t, s.AddEvents(ctx, cay.Event{Team: team.ID, Type: cay.SandboxCreated, At: at(0)}))
	after, err := s.EventCounters(ctx)
	noError(t, err)
	same(t, "the newest event", after[team.ID], counters[team.ID]+1)
}
