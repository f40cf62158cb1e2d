package storetest

import (
	"strconv"
	"testing"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/store"
)

// trigger has every field that is recorded.
func trigger(team cay.TeamID, name string, created int) cay.Trigger {
	return cay.Trigger{
		ID: cay.NewTriggerID(), Team: team, Name: name, Kind: cay.HookTrigger, Enabled: true,
		Action: cay.TriggerAction{
			Template: "base", Sandbox: "i1", Metadata: map[string]string{"a": "ü"}, Command: "true", User: "user", Dir: "/tmp", Timeout: time.Minute, After: cay.KeepAfterRun,
		},
		Proof: cay.GitHubProof, Sealed: "sealed", Events: []string{"push"}, Filters: []cay.HookFilter{{Path: "a.b", Values: []string{"x", "y"}}},
		Cron: "* * * * *", Zone: "Europe/Berlin", Next: at(100), MaxRunning: 2, MaxWaiting: 3, Retries: 4, CreatedAt: at(created), UpdatedAt: at(created), Version: 1, Makers: []cay.Origins{{Key: "k", Person: "p"}, {Person: "q"}},
	}
}

func runOf(x cay.Trigger, delivery string, queued int) cay.Run {
	return cay.Run{
		ID: cay.NewRunID(), Team: x.Team, Trigger: x.ID, Delivery: delivery, Event: "push", State: cay.RunWaiting,
		QueuedAt: at(queued), DueAt: at(queued), Sealed: "sealed", Bytes: 10, Askers: []cay.Origins{{Key: "k"}},
	}
}

func testTriggers(t *testing.T, s store.Store) {
	ctx := t.Context()
	team, other := addTeam(t, s, "a"), addTeam(t, s, "b")
	one, two, theirs := trigger(team.ID, "one", 1), trigger(team.ID, "two", 2), trigger(other.ID, "one", 3)
	two.Kind, two.Next, two.Events, two.Filters = cay.ScheduleTrigger, at(50), nil, nil
	for _, x := range []cay.Trigger{one, two, theirs} {
		noError(t, s.AddTrigger(ctx, x, 2))
	}
	wantKind(t, s.AddTrigger(ctx, trigger(team.ID, "three", 4), 2), cay.Exhausted)
	wantKind(t, s.AddTrigger(ctx, trigger(team.ID, "one", 4), 9), cay.Conflict)
	for _, ref := range []string{"one", string(one.ID)} {
		got, err := s.Trigger(ctx, team.ID, ref)
		noError(t, err)
		same(t, "by "+ref, got, one)
	}
	_, err := s.Trigger(ctx, team.ID, string(theirs.ID))
	wantKind(t, err, cay.NotFound)
	got, err := s.TriggerOf(ctx, theirs.ID)
	noError(t, err)
	same(t, "of any team", got, theirs)
	list, err := s.Triggers(ctx, team.ID)
	noError(t, err)
	same(t, "a team's", list, []cay.Trigger{one, two})

	list, err = s.DueTriggers(ctx, at(50), 9)
	noError(t, err)
	same(t, "due", list, []cay.Trigger{two})
	list, err = s.DueTriggers(ctx, at(200), 1)
	noError(t, err)
	same(t, "the earliest due", list, []cay.Trigger{two})
	wantKind(t, s.MoveTrigger(ctx, two.ID, at(51), at(300)), cay.Conflict)
	noError(t, s.MoveTrigger(ctx, two.ID, at(50), at(300)))
	two.Next = at(300)

	wantKind(t, s.UpdateTrigger(ctx, one), cay.Conflict)
	one.Version, one.Name, one.Enabled, one.Proof, one.Sealed, one.Next = 2, "other", false, cay.SlackProof, "anew", time.Time{}
	one.Action.Command, one.Events, one.Filters, one.Cron, one.Zone = "false", []string{"x"}, nil, "", ""
	one.MaxRunning, one.MaxWaiting, one.Retries, one.UpdatedAt = 5, 6, 7, at(9)
	stranger := one
	stranger.Team = other.ID
	wantKind(t, s.UpdateTrigger(ctx, stranger), cay.Conflict)
	noError(t, s.UpdateTrigger(ctx, one))
	got, err = s.Trigger(ctx, team.ID, "other")
	noError(t, err)
	same(t, "a changed one", got, one)
	taken := two
	taken.Version, taken.Name = 2, "other"
	wantKind(t, s.UpdateTrigger(ctx, taken), cay.Conflict)

	wantKind(t, s.RemoveTrigger(ctx, other.ID, one.ID), cay.NotFound)
	run := runOf(one, "d", 1)
	_, _, err = s.QueueRun(ctx, run, 9, 100)
	noError(t, err)
	noError(t, s.RemoveTrigger(ctx, team.ID, one.ID))
	_, err = s.Run(ctx, team.ID, run.ID)
	wantKind(t, err, cay.NotFound)
}

func testRuns(t *testing.T, s store.Store) {
	ctx := t.Context()
	team, other := addTeam(t, s, "a"), addTeam(t, s, "b")
	one, two, theirs := trigger(team.ID, "one", 1), trigger(team.ID, "two", 2), trigger(other.ID, "one", 3)
	one.MaxRunning = 1
	for _, x := range []cay.Trigger{one, two, theirs} {
		x.Next = time.Time{}
		noError(t, s.AddTrigger(ctx, x, 9))
	}
	queue := func(x cay.Trigger, delivery string, queued int) cay.Run {
		t.Helper()
		run := runOf(x, delivery, queued)
		got, repeated, err := s.QueueRun(ctx, run, 3, 1000)
		noError(t, err)
		same(t, "a queued run", got, run)
		if repeated {
			t.Errorf("%s was there", delivery)
		}
		return run
	}
	a, b, c, d := queue(one, "1", 10), queue(one, "2", 20), queue(one, "3", 30), queue(two, "1", 15)
	foreign := queue(theirs, "1", 5)
	got, repeated, err := s.QueueRun(ctx, runOf(one, "2", 99), 3, 1000)
	noError(t, err)
	same(t, "the same delivery", got, b)
	if !repeated {
		t.Error("a delivery that comes again is a run of its own")
	}
	_, _, err = s.QueueRun(ctx, runOf(one, "4", 40), 3, 1000)
	wantKind(t, err, cay.Exhausted)
	_, _, err = s.QueueRun(ctx, runOf(two, "2", 40), 3, 49)
	wantKind(t, err, cay.Exhausted)
	skipped := runOf(one, "5", 41)
	skipped.State, skipped.Error, skipped.EndedAt, skipped.Sealed, skipped.Bytes = cay.RunSkipped, "ü\"", at(41), "", 0
	got, _, err = s.QueueRun(ctx, skipped, 3, 1000)
	noError(t, err)
	same(t, "a run that is over", got, skipped)

	mostOfTeam := 9
	startable := func(name string, now, limit int, want ...cay.Run) {
		t.Helper()
		list, err := s.StartableRuns(ctx, at(now), mostOfTeam, limit)
		noError(t, err)
		same(t, name, list, want)
	}
	startable("none is due", 4, 9)
	startable("as many of each as may run", 100, 9, foreign, a, d)
	startable("a limit", 100, 1, foreign)
	mostOfTeam = 1
	startable("a team's share", 100, 9, foreign, a)
	mostOfTeam = 9
	next, err := s.NextDue(ctx, at(15))
	noError(t, err)
	same(t, "the next time", next, at(20))
	next, err = s.NextDue(ctx, at(50))
	noError(t, err)
	same(t, "no next time", next, time.Time{})

	begun := a
	begun.State, begun.Attempt, begun.StartedAt, begun.BegunAt, begun.Sandbox = cay.RunRunning, 1, at(50), at(51), "i9"
	noError(t, s.PutRun(ctx, begun, cay.RunWaiting, 0))
	wantKind(t, s.PutRun(ctx, begun, cay.RunWaiting, 0), cay.Conflict)
	wantKind(t, s.PutRun(ctx, begun, cay.RunRunning, 0), cay.Conflict)
	running, err := s.RunningRuns(ctx)
	noError(t, err)
	same(t, "that run", running, []cay.Run{begun})
	startable("one runs", 100, 9, foreign, d)
	mostOfTeam = 1
	startable("one of the team's runs", 100, 9, foreign)
	mostOfTeam = 9
	code := -1
	begun.State, begun.EndedAt, begun.ExitCode, begun.Error, begun.Output, begun.Sealed, begun.Bytes = cay.RunFailed, at(60), &code, "why", "ü\n\uFFFD", "", 0
	noError(t, s.PutRun(ctx, begun, cay.RunRunning, 1))
	got, err = s.Run(ctx, team.ID, a.ID)
	noError(t, err)
	same(t, "an ended run", got, begun)
	_, err = s.Run(ctx, other.ID, a.ID)
	wantKind(t, err, cay.NotFound)
	startable("its place is free", 100, 9, foreign, d, b)

	runs := func(name string, q store.RunQuery, want ...cay.Run) {
		t.Helper()
		q.Team, q.Limit = team.ID, max(q.Limit, 9*(1-min(q.Limit, 1)))
		list, err := s.Runs(ctx, q)
		noError(t, err)
		for i := range want {
			want[i].Sealed = "" // a list has no bodies
		}
		same(t, name, list, want)
	}
	runs("all", store.RunQuery{}, skipped, c, b, d, begun)
	runs("of one", store.RunQuery{Trigger: two.ID}, d)
	runs("in a state", store.RunQuery{State: cay.RunWaiting}, c, b, d)
	runs("a page", store.RunQuery{Limit: 2}, skipped, c)
	runs("the next page", store.RunQuery{Limit: 2, After: &store.RunCursor{At: c.QueuedAt, ID: c.ID}}, b, d)

	one.Version, one.Enabled = 2, false
	noError(t, s.UpdateTrigger(ctx, one))
	startable("one that is turned off starts none", 100, 9, foreign, d)

	for i := range 3 {
		over := runOf(two, "over "+strconv.Itoa(i), 60+i)
		over.State = cay.RunSucceeded
		_, _, err := s.QueueRun(ctx, over, 3, 1000)
		noError(t, err)
	}
	n, err := s.PruneRuns(ctx, at(11), 2)
	noError(t, err)
	if n != 2 { // the oldest, and the third of two
		t.Errorf("%d runs were forgotten", n)
	}
	noError(t, s.RemoveTrigger(ctx, team.ID, two.ID))
	_, _, err = s.QueueRun(ctx, runOf(two, "9", 99), 3, 1000)
	wantKind(t, err, cay.NotFound)
	runs("what is left", store.RunQuery{Trigger: one.ID}, skipped, c, b)
}
