package storetest

import (
	"sync"
	"testing"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/store"
)

func eventOf(b cay.Sandbox, ms int, kind cay.EventType) cay.Event {
	return cay.Event{
		Team: b.Team, Sandbox: b.ID, Type: kind, Reason: cay.ReasonAsked, At: at(ms),
		Data: map[string]string{"a": "ü\"", "b": ""},
	}
}

func testEvents(t *testing.T, s store.Store) {
	team, other := addTeam(t, s, "a"), addTeam(t, s, "b")
	one, two, theirs := sandbox(team.ID, 1), sandbox(team.ID, 2), sandbox(other.ID, 3)
	all := []cay.Event{
		eventOf(one, 10, cay.SandboxCreated), eventOf(two, 11, cay.SandboxCreated),
		eventOf(one, 12, cay.SandboxRunning), eventOf(one, 13, cay.SandboxKilled),
	}
	last, err := s.LastEvent(t.Context(), team.ID)
	noError(t, err)
	same(t, "the last number of none", last, int64(0))
	noError(t, s.AddEvents(t.Context(), all[0], eventOf(theirs, 10, cay.SandboxCreated), all[1]))
	noError(t, s.AddEvents(t.Context(), all[2], all[3]))
	for i := range all {
		all[i].Seq = int64(i + 1)
	}
	for _, tt := range []struct {
		name string
		q    store.EventQuery
		want []cay.Event
	}{
		{"all", store.EventQuery{}, all},
		{"after", store.EventQuery{After: 2}, all[2:]},
		{"limit", store.EventQuery{After: 1, Limit: 2}, all[1:3]},
		{"newest", store.EventQuery{Newest: true, Limit: 1}, all[3:]},
		{"sandbox", store.EventQuery{Sandbox: two.ID}, all[1:2]},
		{"type", store.EventQuery{Sandbox: one.ID, Type: cay.SandboxKilled}, all[3:]},
		{"another team's sandbox", store.EventQuery{Sandbox: theirs.ID}, nil},
		{"past the end", store.EventQuery{After: 99}, nil},
	} {
		tt.q.Team = team.ID
		got, err := s.Events(t.Context(), tt.q)
		noError(t, err)
		same(t, tt.name, got, tt.want)
	}
	n, err := s.PruneEvents(t.Context(), at(13))
	noError(t, err)
	same(t, "pruned", n, 4)
	n, err = s.PruneEvents(t.Context(), at(99))
	noError(t, err)
	same(t, "pruned", n, 1)
	last, err = s.LastEvent(t.Context(), team.ID)
	noError(t, err)
	same(t, "the last number, forgotten", last, int64(4))
	noError(t, s.AddEvents(t.Context(), all[0]))
	got, err := s.Events(t.Context(), store.EventQuery{Team: team.ID})
	noError(t, err)
	if len(got) != 1 || got[0].Seq != 5 {
		t.Fatalf("numbers do not go on after all were forgotten: %v", got)
	}
}

// testPruneMany forgets more than one transaction does.
func testPruneMany(t *testing.T, s store.Store) {
	const many = 1234
	team := addTeam(t, s, "a")
	b := sandbox(team.ID, 1)
	var list []cay.Event
	for i := range many {
		list = append(list, eventOf(b, i, cay.SandboxForked))
	}
	noError(t, s.AddEvents(t.Context(), list...))
	n, err := s.PruneEvents(t.Context(), at(many-1))
	noError(t, err)
	same(t, "how many were forgotten", n, many-1)
	left, err := s.Events(t.Context(), store.EventQuery{Team: team.ID})
	noError(t, err)
	same(t, "how many are left", len(left), 1)
}

func testEventsWithState(t *testing.T, s store.Store) {
	team := addTeam(t, s, "a")
	b := sandbox(team.ID, 1)
	noError(t, s.AddSandbox(t.Context(), b, eventOf(b, 1, cay.SandboxCreated)))
	wantKind(t, s.AddSandbox(t.Context(), b, eventOf(b, 2, cay.SandboxCreated)), cay.Conflict)
	noError(t, s.UpdateSandbox(t.Context(), b, eventOf(b, 3, cay.SandboxRunning), eventOf(b, 3, cay.SandboxForked)))
	nobody := sandbox(team.ID, 2)
	wantKind(t, s.UpdateSandbox(t.Context(), nobody, eventOf(nobody, 4, cay.SandboxKilled)), cay.NotFound)
	got, err := s.Events(t.Context(), store.EventQuery{Team: team.ID})
	noError(t, err)
	var kinds []cay.EventType
	for _, e := range got {
		kinds = append(kinds, e.Type)
	}
	same(t, "what was recorded", kinds, []cay.EventType{cay.SandboxCreated, cay.SandboxRunning, cay.SandboxForked})
}

// testEventOrder has many write while one reads on: it must see every number
// once and in order.
func testEventOrder(t *testing.T, s store.Store) {
	const writers, each = 4, 25
	team := addTeam(t, s, "a")
	b := sandbox(team.ID, 1)
	var wg sync.WaitGroup
	for range writers {
		wg.Go(func() {
			for i := range each {
				if err := s.AddEvents(t.Context(), eventOf(b, i, cay.SandboxRunning)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	var after int64
	for after < writers*each && !t.Failed() {
		list, err := s.Events(t.Context(), store.EventQuery{Team: team.ID, After: after, Limit: 7})
		noError(t, err)
		for _, e := range list {
			if after++; e.Seq != after {
				t.Fatalf("number %d comes where %d is due", e.Seq, after)
			}
		}
	}
	wg.Wait()
}

func testOnce(t *testing.T, s store.Store) {
	team, other := addTeam(t, s, "a"), addTeam(t, s, "b")
	b := sandbox(team.ID, 100)
	_, _, err := s.CreatedWith(t.Context(), team.ID, "k", at(0))
	wantKind(t, err, cay.NotFound)
	b.Once = cay.Once{Key: "k", Digest: "d1"}
	noError(t, s.AddSandbox(t.Context(), b))
	once, id, err := s.CreatedWith(t.Context(), team.ID, "k", at(100))
	noError(t, err)
	same(t, "how", once, b.Once)
	same(t, "what", id, b.ID)
	_, _, err = s.CreatedWith(t.Context(), team.ID, "k", at(101))
	wantKind(t, err, cay.NotFound)
	_, _, err = s.CreatedWith(t.Context(), other.ID, "k", at(0))
	wantKind(t, err, cay.NotFound)
	later := sandbox(team.ID, 200)
	later.Once = cay.Once{Key: "k", Digest: "d2", Since: at(100)}
	wantKind(t, s.AddSandbox(t.Context(), later), cay.Conflict) // another create came first
	_, err = s.Sandbox(t.Context(), team.ID, later.ID)
	wantKind(t, err, cay.NotFound)
	later.Once.Since = at(101)
	noError(t, s.AddSandbox(t.Context(), later))
	once, id, err = s.CreatedWith(t.Context(), team.ID, "k", at(0))
	noError(t, err)
	same(t, "how, later", once, cay.Once{Key: "k", Digest: "d2"})
	same(t, "what, later", id, later.ID)
	again := sandbox(team.ID, 200)
	again.Once = cay.Once{Key: "k", Digest: "d2", Repeats: b.ID}
	wantKind(t, s.AddSandbox(t.Context(), again), cay.Conflict)
	again.Once.Repeats = later.ID
	noError(t, s.AddSandbox(t.Context(), again))
	for _, want := range []int{0, 1} {
		n, err := s.PruneOnce(t.Context(), at(200+want))
		noError(t, err)
		same(t, "forgotten", n, want)
	}
}
