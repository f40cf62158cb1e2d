package storetest

import (
	"errors"
	"testing"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/store"
)

func checkpoint(s cay.Sandbox, created int) cay.Checkpoint {
	return cay.Checkpoint{
		ID: cay.NewSnapshotID(), Team: s.Team, Sandbox: s.ID, Kind: cay.MemorySnapshot, Label: "a label",
		Size: 1 << 40, CreatedAt: at(created), Source: s,
	}
}

func addCheckpoint(t testing.TB, s store.Store, c cay.Checkpoint) cay.Checkpoint {
	t.Helper()
	got, err := s.AddCheckpoint(t.Context(), c)
	noError(t, err)
	return got
}

func testTrees(t *testing.T, s store.Store) {
	ctx := t.Context()
	team := addTeam(t, s, "a")
	b := sandbox(team.ID, 0)
	noError(t, s.AddSandbox(ctx, b))

	start, err := s.Branch(ctx, team.ID, b.ID)
	noError(t, err)
	same(t, "a branch that is not recorded", start, cay.Branch{Sandbox: b.ID, Team: team.ID, Tree: b.ID})
	first := addCheckpoint(t, s, checkpoint(b, 1))
	second := addCheckpoint(t, s, checkpoint(b, 2))
	if first.Tree != b.ID || first.Parent != "" || second.Parent != first.ID {
		t.Errorf("checkpoints %+v, %+v", first, second)
	}
	got, err := s.Checkpoint(ctx, team.ID, second.ID)
	noError(t, err)
	same(t, "a checkpoint", got, second)
	used, err := s.SnapshotUsed(ctx, first.ID)
	noError(t, err)
	same(t, "use of a checkpoint's snapshot", used, true)
	n, err := s.CountCheckpoints(ctx, b.ID)
	noError(t, err)
	same(t, "their number", n, 2)
	_, err = s.AddCheckpoint(ctx, second)
	wantKind(t, err, cay.Conflict)

	// A fork begins where its source is; both go on from there.
	fork := sandbox(team.ID, 3)
	noError(t, s.AddSandbox(ctx, fork))
	auto := cay.AutoCheckpoint{Every: 30 * time.Second, Before: true, Keep: 3, Kind: cay.MemorySnapshot}
	noError(t, s.PutBranch(ctx, cay.Branch{Sandbox: fork.ID, Team: team.ID, Tree: b.ID, Checkpoint: second.ID, Auto: auto}))
	third := addCheckpoint(t, s, checkpoint(fork, 4))
	fourth := addCheckpoint(t, s, checkpoint(b, 5))
	if third.Parent != second.ID || fourth.Parent != second.ID || third.Tree != b.ID {
		t.Errorf("checkpoints %+v, %+v", third, fourth)
	}
	b.Instance, b.Snapshot = cay.NewInstanceID(), first.ID
	moved := cay.Branch{Sandbox: b.ID, Team: team.ID, Tree: b.ID, Checkpoint: first.ID, Rewound: true}
	noError(t, s.Tx(ctx, func(tx store.Store) error { return errors.Join(tx.UpdateSandbox(ctx, b), tx.PutBranch(ctx, moved)) }))
	b.Version++
	row, err := s.Sandbox(ctx, team.ID, b.ID)
	noError(t, err)
	same(t, "the moved sandbox", row, b)
	branches, err := s.Branches(ctx, b.ID)
	noError(t, err)
	same(t, "the branches", branches, []cay.Branch{
		moved,
		{Sandbox: fork.ID, Team: team.ID, Tree: b.ID, Checkpoint: third.ID, Auto: auto},
	})

	// A checkpoint is use of the sandbox.
	moved.Checkpoint = addCheckpoint(t, s, checkpoint(b, 6)).ID
	at, err := s.Branch(ctx, team.ID, b.ID)
	noError(t, err)
	moved.Rewound = false
	same(t, "the branch after a checkpoint", at, moved)
	noError(t, s.RemoveCheckpoint(ctx, team.ID, moved.Checkpoint))

	noError(t, s.LabelCheckpoint(ctx, team.ID, second.ID, "new"))
	second.Label = "new"
	second.ReplicatedAt = second.CreatedAt.Add(time.Second)
	noError(t, s.CheckpointReplicated(ctx, team.ID, second.ID, second.ReplicatedAt))
	noError(t, s.CheckpointReplicated(ctx, "other", first.ID, second.ReplicatedAt))
	noError(t, s.CheckpointReplicated(ctx, team.ID, "cnone", second.ReplicatedAt))
	for _, tt := range []struct {
		q    store.CheckpointQuery
		want []cay.Checkpoint
	}{
		{store.CheckpointQuery{Team: team.ID, Tree: b.ID}, []cay.Checkpoint{first, second, third, fourth}},
		{store.CheckpointQuery{Team: team.ID, Sandbox: fork.ID}, []cay.Checkpoint{third}},
		{store.CheckpointQuery{}, []cay.Checkpoint{first, second, third, fourth}},
		{store.CheckpointQuery{Team: "other"}, nil},
	} {
		list, err := s.Checkpoints(ctx, tt.q)
		noError(t, err)
		same(t, "a list", list, tt.want)
	}

	// The children of a checkpoint that goes become its parent's.
	noError(t, s.RemoveCheckpoint(ctx, team.ID, second.ID))
	noError(t, s.RemoveCheckpoint(ctx, team.ID, first.ID))
	wantKind(t, s.RemoveCheckpoint(ctx, team.ID, first.ID), cay.NotFound)
	third.Parent, fourth.Parent = "", ""
	list, err := s.Checkpoints(ctx, store.CheckpointQuery{Tree: b.ID})
	noError(t, err)
	same(t, "what is left", list, []cay.Checkpoint{third, fourth})
	where, err := s.Branch(ctx, team.ID, b.ID)
	noError(t, err)
	same(t, "where the sandbox is", where.Checkpoint, cay.SnapshotID(""))
	b.State = cay.Killed
	noError(t, s.UpdateSandbox(ctx, b))
	branches, err = s.Branches(ctx, "")
	noError(t, err)
	same(t, "the living branches", len(branches), 1)
}

func testTreesOfTeams(t *testing.T, s store.Store) {
	ctx := t.Context()
	team, other := addTeam(t, s, "a"), addTeam(t, s, "b")
	b := sandbox(team.ID, 0)
	noError(t, s.AddSandbox(ctx, b))
	c := addCheckpoint(t, s, checkpoint(b, 1))
	_, err := s.Checkpoint(ctx, other.ID, c.ID)
	wantKind(t, err, cay.NotFound)
	wantKind(t, s.LabelCheckpoint(ctx, other.ID, c.ID, "mine"), cay.NotFound)
	wantKind(t, s.RemoveCheckpoint(ctx, other.ID, c.ID), cay.NotFound)
	noError(t, s.GiveCheckpoints(ctx, other.ID, b.ID, "mine"))
	got, err := s.Checkpoint(ctx, team.ID, c.ID)
	noError(t, err)
	same(t, "the checkpoint", got, c)
	noError(t, s.GiveCheckpoints(ctx, team.ID, b.ID, "another"))
	got, err = s.Checkpoint(ctx, team.ID, c.ID)
	noError(t, err)
	same(t, "whose it is", got.Sandbox, cay.SandboxID("another"))
}
