package storetest

import (
	"slices"
	"testing"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/store"
)

func testSnapshots(t *testing.T, s store.Store) {
	team := addTeam(t, s, "a")
	used := func(id cay.SnapshotID, want bool) {
		t.Helper()
		got, err := s.SnapshotUsed(t.Context(), id)
		noError(t, err)
		same(t, "use of a snapshot", got, want)
	}
	used("nobody's", false)

	b := sandbox(team.ID, 0)
	b.State, b.AutoResume = cay.Paused, true
	noError(t, s.AddSandbox(t.Context(), b))
	used(b.Snapshot, true)
	got, err := s.Sandbox(t.Context(), team.ID, b.ID)
	noError(t, err)
	same(t, "a sandbox that traffic wakes", got, b)
	before := b.Snapshot
	b.Snapshot, b.AutoResume = cay.NewSnapshotID(), false
	noError(t, s.UpdateSandbox(t.Context(), b))
	b.Version++
	used(before, false)
	used(b.Snapshot, true)
	b.State = cay.Killed
	noError(t, s.UpdateSandbox(t.Context(), b))
	used(b.Snapshot, false)

	tm := template(team.ID, 1, "saved")
	tm.Source = b.ID
	noError(t, s.AddTemplate(t.Context(), tm))
	first, second := build(tm, 1, cay.BuildReady), build(tm, 2, cay.BuildReady)
	first.Snapshot, second.Snapshot = cay.NewSnapshotID(), cay.NewSnapshotID()
	noError(t, s.PutBuild(t.Context(), first))
	used(first.Snapshot, true)
	noError(t, s.PutBuild(t.Context(), second))
	used(first.Snapshot, false)
	used(second.Snapshot, true)
	found, err := s.TemplateByName(t.Context(), team.ID, "saved")
	noError(t, err)
	same(t, "a snapshot's source", found.Source, b.ID)
	same(t, "a snapshot's newest state", found.Snapshot, second.Snapshot)

	copied := func(want ...cay.SnapshotID) {
		t.Helper()
		uncopied, err := s.UncopiedBuilds(t.Context())
		noError(t, err)
		for _, id := range []cay.SnapshotID{first.Snapshot, second.Snapshot, ""} {
			same(t, "whether the bucket lacks "+string(id), slices.Contains(uncopied, id), slices.Contains(want, id))
		}
	}
	noError(t, s.PutBuild(t.Context(), build(tm, 3, cay.BuildError)))
	copied(first.Snapshot, second.Snapshot)
	noError(t, s.BuildsReplicated(t.Context(), second.Snapshot, at(7)))
	noError(t, s.BuildsReplicated(t.Context(), second.Snapshot, at(8)))
	noError(t, s.BuildsReplicated(t.Context(), "", at(8)))
	noError(t, s.BuildsReplicated(t.Context(), "nobody's", at(8)))
	copied(first.Snapshot)
	tags, err := s.Tags(t.Context(), tm.ID)
	noError(t, err)
	same(t, "when the bucket had it", tags[0].ReplicatedAt, at(7))
}

func testRemoveTemplate(t *testing.T, s store.Store) {
	team, other := addTeam(t, s, "a"), addTeam(t, s, "b")
	tm := template(team.ID, 1, "one", "two")
	noError(t, s.AddTemplate(t.Context(), tm))
	b := build(tm, 1, cay.BuildReady)
	noError(t, s.PutBuild(t.Context(), b))
	wantKind(t, s.RemoveTemplate(t.Context(), other.ID, tm.ID), cay.NotFound)
	if _, err := s.TemplateByName(t.Context(), team.ID, "two"); err != nil {
		t.Errorf("another team removed something: %v", err)
	}
	noError(t, s.RemoveTemplate(t.Context(), team.ID, tm.ID))
	wantKind(t, s.RemoveTemplate(t.Context(), team.ID, tm.ID), cay.NotFound)
	_, err := s.TemplateByName(t.Context(), team.ID, "two")
	wantKind(t, err, cay.NotFound)
	used, err := s.SnapshotUsed(t.Context(), b.Snapshot)
	noError(t, err)
	same(t, "use of its snapshot", used, false)
	noError(t, s.AddTemplate(t.Context(), template(team.ID, 2, "one", "two"))) // names are free again
}
