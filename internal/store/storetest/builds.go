package storetest

import (
	"testing"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/store"
)

func testTags(t *testing.T, s store.Store) {
	team := addTeam(t, s, "a")
	tmpl := template(team.ID, 1, "app")
	noError(t, s.AddTemplate(t.Context(), tmpl))
	first, second := build(tmpl, 10, cay.BuildReady), build(tmpl, 20, cay.BuildReady)
	first.Snapshot, second.Snapshot = cay.NewSnapshotID(), cay.NewSnapshotID()
	first.Setup = cay.Setup{Env: map[string]string{"A": "1"}, User: "user", Ports: []int{1}}
	second.Tags = []string{"v2", "latest"}
	second.Reason = cay.BuildReason{Step: "1", Message: "m"}
	noError(t, s.PutBuild(t.Context(), first))
	noError(t, s.PutBuild(t.Context(), second))

	got, err := s.Template(t.Context(), team.ID, tmpl.ID)
	noError(t, err)
	if got.Build != first.ID {
		t.Errorf("a build without the default tag became what %q means", "app")
	}
	same(t, "the setup", got.Setup, first.Setup)
	b, err := s.TaggedBuild(t.Context(), tmpl.ID, "v2")
	noError(t, err)
	same(t, "the tagged build", b, second)
	b, err = s.Build(t.Context(), team.ID, first.ID)
	noError(t, err)
	same(t, "the build", b, first)
	_, err = s.Build(t.Context(), addTeam(t, s, "b").ID, first.ID)
	wantKind(t, err, cay.NotFound)
	_, err = s.TaggedBuild(t.Context(), tmpl.ID, "v3")
	wantKind(t, err, cay.NotFound)

	noError(t, s.PutTags(t.Context(), second, []string{"default", "v3"}, at(30)))
	noError(t, s.RemoveTags(t.Context(), tmpl.ID, []string{"latest", "never"}))
	tags, err := s.Tags(t.Context(), tmpl.ID)
	noError(t, err)
	same(t, "the tags", tags, []cay.Tag{
		{Name: "default", Build: second.ID, CreatedAt: at(30)},
		{Name: "v2", Build: second.ID, CreatedAt: second.UpdatedAt},
		{Name: "v3", Build: second.ID, CreatedAt: at(30)},
	})
	assigned, err := s.TagAssignments(t.Context(), tmpl.ID)
	noError(t, err)
	if len(assigned) != 4 { // default twice, v2 and v3; latest was removed
		t.Fatalf("the assignments are %+v", assigned)
	}
	last := assigned[len(assigned)-1]
	same(t, "the first assignment", last, cay.TagAssignment{
		ID: last.ID, Tag: "default", Build: first.ID, At: first.UpdatedAt,
		BuildCreated: first.CreatedAt, BuildFinished: first.FinishedAt,
	})
	if !cay.ValidUUID(last.ID) {
		t.Errorf("an assignment has the id %q", last.ID)
	}
	for i := range 210 {
		noError(t, s.PutTags(t.Context(), second, []string{"busy"}, at(100+i)))
	}
	assigned, err = s.TagAssignments(t.Context(), tmpl.ID)
	noError(t, err)
	if len(assigned) != 204 || !assigned[0].At.Equal(at(309)) {
		t.Errorf("%d assignments are kept, the newest of %s", len(assigned), assigned[0].At)
	}
	noError(t, s.RemoveTags(t.Context(), tmpl.ID, []string{"default"}))
	if got, err = s.Template(t.Context(), team.ID, tmpl.ID); err != nil || got.Build != "" {
		t.Errorf("without its default tag the template starts from %q, %v", got.Build, err)
	}
	noError(t, s.PutTags(t.Context(), second, []string{"default"}, at(400)))
	for id, want := range map[cay.SnapshotID]bool{first.Snapshot: false, second.Snapshot: true} {
		used, err := s.SnapshotUsed(t.Context(), id)
		noError(t, err)
		if used != want {
			t.Errorf("snapshot %s is used: %v, want %v", id, used, want)
		}
	}
	testSuperseded(t, s, tmpl, second)
	noError(t, s.SetPublic(t.Context(), team.ID, tmpl.ID, true))
	got, err = s.Template(t.Context(), team.ID, tmpl.ID)
	noError(t, err)
	if !got.Public {
		t.Error("it is not public")
	}
	wantKind(t, s.SetPublic(t.Context(), cay.NewTeamID(), tmpl.ID, true), cay.NotFound)
	noError(t, s.RemoveTemplate(t.Context(), team.ID, tmpl.ID))
}

// testSuperseded points the last tags of a build to another one.
func testSuperseded(t *testing.T, s store.Store, tmpl cay.Template, first cay.Build) {
	t.Helper()
	startable := func(b cay.Build, want cay.Kind) {
		t.Helper()
		_, err := s.StartableBuild(t.Context(), tmpl.ID, b.ID)
		wantKind(t, err, want)
	}
	startable(first, "")
	second, third := build(tmpl, 500, cay.BuildReady), build(tmpl, 501, cay.BuildBuilding)
	second.Snapshot, second.Tags = cay.NewSnapshotID(), []string{"default", "v2", "v3"}
	third.Tags = []string{"default"}
	noError(t, s.PutBuild(t.Context(), second))
	noError(t, s.PutBuild(t.Context(), third))
	startable(third, cay.NotFound)
	kept, err := s.SupersededBuilds(t.Context())
	noError(t, err)
	same(t, "while one tag is left", kept, []store.SupersededBuild(nil))
	noError(t, s.PutTags(t.Context(), second, []string{"busy"}, at(502)))
	kept, err = s.SupersededBuilds(t.Context())
	noError(t, err)
	same(t, "without a tag", kept, []store.SupersededBuild{{ID: first.ID, Template: tmpl.ID, Snapshot: first.Snapshot, At: at(502)}})
	startable(first, "")
	used, err := s.SnapshotUsed(t.Context(), first.Snapshot)
	noError(t, err)
	same(t, "its snapshot is used", used, true)
	noError(t, s.PutTags(t.Context(), first, []string{"old"}, at(503)))
	kept, err = s.SupersededBuilds(t.Context())
	noError(t, err)
	same(t, "with a tag again", kept, []store.SupersededBuild(nil))
	noError(t, s.PutTags(t.Context(), second, []string{"old"}, at(504)))
	noError(t, s.DropSuperseded(t.Context(), first.ID))
	startable(first, cay.NotFound)
	used, err = s.SnapshotUsed(t.Context(), first.Snapshot)
	noError(t, err)
	same(t, "its snapshot is used", used, false)
	building, err := s.BuildsUnderWay(t.Context(), tmpl.ID)
	noError(t, err)
	same(t, "what is under way", building, []cay.Build{third})
}

func testBuildLogs(t *testing.T, s store.Store) {
	team := addTeam(t, s, "a")
	tmpl := template(team.ID, 1, "app")
	noError(t, s.AddTemplate(t.Context(), tmpl))
	b := build(tmpl, 10, cay.BuildBuilding)
	noError(t, s.PutBuild(t.Context(), b))
	var lines []cay.BuildLog
	for i := range 10 {
		lines = append(lines, cay.BuildLog{At: at(i), Level: cay.LogLevel(i % 4), Step: "1", Message: string(rune('a' + i))})
	}
	noError(t, s.AddBuildLogs(t.Context(), team.ID, b.ID, 0, lines[:4]))
	noError(t, s.AddBuildLogs(t.Context(), team.ID, b.ID, 4, lines[4:]))
	for name, c := range map[string]struct {
		q    store.BuildLogQuery
		want string
	}{
		"all":          {store.BuildLogQuery{Limit: 100}, "abcdefghij"},
		"a page":       {store.BuildLogQuery{Offset: 2, Limit: 3}, "cde"},
		"errors":       {store.BuildLogQuery{Level: cay.LogError, Limit: 100}, "dh"},
		"from a time":  {store.BuildLogQuery{From: at(7), Limit: 100}, "hij"},
		"back in time": {store.BuildLogQuery{From: at(3), Backward: true, Limit: 3}, "dcb"},
		"the newest":   {store.BuildLogQuery{Backward: true, Limit: 2}, "ji"},
	} {
		c.q.Build = b.ID
		got, err := s.BuildLogs(t.Context(), c.q)
		noError(t, err)
		text := ""
		for _, l := range got {
			text += l.Message
		}
		if text != c.want {
			t.Errorf("%s: got %q, want %q", name, text, c.want)
		}
	}
	noError(t, s.RemoveTemplate(t.Context(), team.ID, tmpl.ID))
	got, err := s.BuildLogs(t.Context(), store.BuildLogQuery{Build: b.ID, Limit: 10})
	noError(t, err)
	if len(got) != 0 {
		t.Error("the log of a removed template is still there")
	}
}

// testQueueTurns has the builds of a team with a long queue wait for the one of another.
func testQueueTurns(t *testing.T, s store.Store) {
	ctx := t.Context()
	hostile, calm := addTeam(t, s, "a"), addTeam(t, s, "b")
	for i, owner := range []cay.TeamID{hostile.ID, hostile.ID, hostile.ID, hostile.ID, calm.ID, calm.ID} {
		tmpl := template(owner, i, "app"+string(rune('a'+i)))
		noError(t, s.AddTemplate(ctx, tmpl))
		b := build(tmpl, 10+i, cay.BuildBuilding)
		noError(t, s.PutBuild(ctx, b))
		noError(t, s.QueueBuild(ctx, b, "sealed", ""))
	}
	var got []cay.TeamID
	for _, owner := range []cay.NodeID{"n1", "n1", "n2", "n1", "n2"} {
		b, _, err := s.TakeBuild(ctx, owner, 2, time.Hour)
		noError(t, err)
		got = append(got, b.Team)
	}
	same(t, "whose turn it was", got, []cay.TeamID{hostile.ID, calm.ID, hostile.ID, calm.ID, hostile.ID})
}

// testQueue has builds wait in their order, and only the owner of a lease change
// it.
func testQueue(t *testing.T, s store.Store) {
	ctx := t.Context()
	team, other := addTeam(t, s, "a"), addTeam(t, s, "b")
	var all []cay.Build
	for i, owner := range []cay.TeamID{team.ID, other.ID, team.ID} {
		tmpl := template(owner, i, "app"+string(rune('a'+i)))
		noError(t, s.AddTemplate(ctx, tmpl))
		b := build(tmpl, 30-i, cay.BuildBuilding) // the last one waits longest
		noError(t, s.PutBuild(ctx, b))
		noError(t, s.QueueBuild(ctx, b, "sealed "+string(b.ID), ""))
		all = append(all, b)
	}
	wantKind(t, s.QueueBuild(ctx, all[0], "again", ""), cay.Conflict)
	queued := func(want ...store.QueuedBuild) {
		t.Helper()
		got, err := s.QueuedBuilds(ctx)
		noError(t, err)
		same(t, "the queue", got, want)
	}
	waits := func(b cay.Build) store.QueuedBuild { return store.QueuedBuild{Build: b.ID, Team: b.Team} }
	queued(waits(all[2]), waits(all[1]), waits(all[0]))

	got, sealed, err := s.TakeBuild(ctx, "n1", 2, time.Hour)
	noError(t, err)
	same(t, "the build that waits longest", got, all[2])
	same(t, "what it is made from", sealed, "sealed "+string(all[2].ID))
	leased := waits(all[2])
	leased.Owner = "n1"
	queued(leased, waits(all[1]), waits(all[0]))
	got, _, err = s.TakeBuild(ctx, "n2", 2, time.Hour)
	noError(t, err)
	same(t, "the next one", got, all[1])

	_, _, err = s.TakeBuild(ctx, "n1", 1, time.Hour) // it has one of the team
	wantKind(t, err, cay.NotFound)

	wantKind(t, s.RenewBuild(ctx, all[2].ID, "n2", time.Hour), cay.NotFound)
	wantKind(t, s.EndBuild(ctx, all[2].ID, "n2"), cay.NotFound)
	noError(t, s.RenewBuild(ctx, all[2].ID, "n1", -time.Second))
	leased.Over = true
	noError(t, s.EndBuild(ctx, all[1].ID, "n2"))
	queued(leased, waits(all[0]))
	noError(t, s.RemoveTemplate(ctx, team.ID, all[2].Template))
	wantKind(t, s.RenewBuild(ctx, all[2].ID, "n1", time.Hour), cay.NotFound)
	noError(t, s.RemoveTemplate(ctx, team.ID, all[0].Template))
	queued()
	_, _, err = s.TakeBuild(ctx, "n1", 2, time.Hour)
	wantKind(t, err, cay.NotFound)

	tmpl := template(team.ID, 9, "same")
	noError(t, s.AddTemplate(ctx, tmpl))
	for i, digest := range []string{"x", "x", "y"} {
		all[i] = build(tmpl, 40+i, cay.BuildBuilding)
		noError(t, s.PutBuild(ctx, all[i]))
		noError(t, s.QueueBuild(ctx, all[i], "sealed", digest))
	}
	for _, i := range []int{0, 2} {
		got, _, err = s.TakeBuild(ctx, "n1", 100, time.Hour)
		noError(t, err)
		same(t, "one that is not the same as an earlier one", got.ID, all[i].ID)
	}
	_, _, err = s.TakeBuild(ctx, "n1", 100, time.Hour)
	wantKind(t, err, cay.NotFound)
	noError(t, s.EndBuild(ctx, all[0].ID, "n1"))
	got, _, err = s.TakeBuild(ctx, "n1", 100, time.Hour)
	noError(t, err)
	same(t, "the same one, once the earlier is over", got.ID, all[1].ID)
}
