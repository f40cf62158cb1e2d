package storetest

import (
	"testing"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/store"
)

func testLimits(t *testing.T, s store.Store) {
	ctx := t.Context()
	team, other := addTeam(t, s, "a"), addTeam(t, s, "b")
	all, err := s.AllTeamLimits(ctx)
	noError(t, err)
	same(t, "the limits of all, at first", all, map[cay.TeamID]cay.TeamLimits{})
	changed := cay.Event{Team: team.ID, Type: cay.TeamLimitsChanged, At: at(1), Data: map[string]string{"limits": "x"}}
	noError(t, s.PutTeamLimits(ctx, team.ID, cay.TeamLimits{cay.LimitBuilds: 1, cay.LimitCPUs: 2}, changed))
	one := cay.TeamLimits{cay.LimitSandboxes: 0, cay.LimitSnapshots: cay.MaxLimit}
	noError(t, s.PutTeamLimits(ctx, team.ID, one))
	noError(t, s.PutTeamLimits(ctx, other.ID, nil))
	wantKind(t, s.PutTeamLimits(ctx, cay.NewTeamID(), one, changed), cay.NotFound)
	all, err = s.AllTeamLimits(ctx)
	noError(t, err)
	same(t, "the limits of all", all, map[cay.TeamID]cay.TeamLimits{team.ID: one})
	events, err := s.Events(ctx, store.EventQuery{Team: team.ID})
	noError(t, err)
	if len(events) != 1 || events[0].Type != cay.TeamLimitsChanged {
		t.Errorf("the events are %+v", events)
	}

	mine, snapshot, brought := template(team.ID, 1, "mine"), template(team.ID, 2, "snap"), template(team.ID, 3, "base")
	snapshot.Source = cay.NewSandboxID()
	noError(t, s.AddTemplate(ctx, mine))
	noError(t, s.AddTemplate(ctx, snapshot))
	noError(t, s.AddTemplate(ctx, brought))
	noError(t, s.AddTemplate(ctx, template(other.ID, 5, "theirs")))
	for want, but := range map[int][]string{2: nil, 1: {"base", "theirs"}, 0: {"mine", "base"}} {
		n, err := s.CountTemplates(ctx, team.ID, but...)
		noError(t, err)
		same(t, "the templates that count", n, want)
	}
}
