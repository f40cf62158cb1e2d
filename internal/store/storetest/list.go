package storetest

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/store"
)

func testList(t *testing.T, s store.Store) {
	team := addTeam(t, s, "a")
	var boxes []cay.Sandbox
	for i := range 6 {
		box := sandbox(team.ID, i/2*10) // pairs that start together
		box.Metadata = map[string]string{"n": fmt.Sprint(i % 3), "all": "yes"}
		if i == 5 {
			box.State = cay.Killed
		}
		if i == 0 {
			box.Template = "other"
		}
		noError(t, s.AddSandbox(t.Context(), box))
		boxes = append(boxes, box)
	}
	tests := []struct {
		name string
		q    store.SandboxQuery
	}{
		{"all", store.SandboxQuery{}},
		{"ascending", store.SandboxQuery{Ascending: true}},
		{"state", store.SandboxQuery{States: []cay.State{cay.Running, cay.Paused}}},
		{"template", store.SandboxQuery{Template: "other"}},
		{"metadata", store.SandboxQuery{Metadata: map[string]string{"n": "1", "all": "yes"}}},
		{"no such metadata", store.SandboxQuery{Metadata: map[string]string{"n": "1", "all": "no"}}},
		{"started", store.SandboxQuery{StartedAfter: at(10)}},
		{"started a moment later", store.SandboxQuery{StartedAfter: at(10).Add(time.Microsecond)}},
		{"first page", store.SandboxQuery{Limit: 2}},
		{"second page", store.SandboxQuery{Limit: 2, After: &store.Cursor{StartedAt: at(10), ID: boxes[2].ID}}},
		{"page up", store.SandboxQuery{Ascending: true, After: &store.Cursor{StartedAt: at(10), ID: boxes[2].ID}}},
		{"everything", store.SandboxQuery{
			States: []cay.State{cay.Running}, Template: "tmpl", StartedAfter: at(1), Limit: 3,
			Metadata: map[string]string{"all": "yes"},
			After:    &store.Cursor{StartedAt: at(20), ID: boxes[4].ID},
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.q.Team = team.ID
			checkList(t, s, boxes, tt.q)
		})
	}
}

// fataler is a test or a rapid run.
type fataler interface {
	Fatalf(format string, args ...any)
}

// checkList compares what the store finds with what the model finds.
func checkList(t fataler, s store.Store, all []cay.Sandbox, q store.SandboxQuery) {
	ctx := context.Background()
	got, err := s.Sandboxes(ctx, q)
	if err != nil {
		t.Fatalf("%+v: %v", q, err)
	}
	if want := find(all, q); !slices.Equal(idsOf(got), idsOf(want)) {
		t.Fatalf("%+v finds\n%v\nwant\n%v", q, idsOf(got), idsOf(want))
	}
	n, err := s.CountSandboxes(ctx, q)
	if err != nil {
		t.Fatalf("%+v: %v", q, err)
	}
	q.After, q.Limit = nil, 0
	if want := len(find(all, q)); n != want {
		t.Fatalf("%+v counts %d, want %d", q, n, want)
	}
}

// find is the model of a list.
func find(all []cay.Sandbox, q store.SandboxQuery) []cay.Sandbox {
	less := func(a, b cay.Sandbox) int {
		c := a.StartedAt.Compare(b.StartedAt)
		if !q.Ascending {
			c = -c
		}
		return cmp.Or(c, cmp.Compare(a.ID, b.ID))
	}
	var out []cay.Sandbox
	for _, b := range all {
		ok := b.Team == q.Team &&
			(len(q.States) == 0 || slices.Contains(q.States, b.State)) &&
			(q.Template == "" || q.Template == b.Template) &&
			!b.StartedAt.Before(q.StartedAfter)
		for k, v := range q.Metadata {
			have, there := b.Metadata[k]
			ok = ok && there && have == v
		}
		if q.After != nil {
			ok = ok && less(cay.Sandbox{StartedAt: q.After.StartedAt, ID: q.After.ID}, b) < 0
		}
		if ok {
			out = append(out, b)
		}
	}
	slices.SortFunc(out, less)
	if q.Limit > 0 && len(out) > q.Limit {
		out = out[:q.Limit]
	}
	return out
}

// testModel does random things to a store and to a list in memory and
// compares what both say.
func testModel(t *testing.T, open func(t testing.TB) store.Store) {
	s := open(t)
	states := []cay.State{cay.Creating, cay.Running, cay.Paused, cay.Killed}
	values := []string{"", "a", "b"}

	rapid.Check(t, func(r *rapid.T) {
		var all []cay.Sandbox
		teams := []cay.TeamID{ // of this run alone
			addTeam(t, s, string(cay.NewTeamID())).ID, addTeam(t, s, string(cay.NewTeamID())).ID,
		}
		r.Repeat(map[string]func(*rapid.T){
			"add": func(r *rapid.T) {
				b := sandbox(rapid.SampledFrom(teams).Draw(r, "team"), rapid.IntRange(0, 9).Draw(r, "started"))
				b.State = rapid.SampledFrom(states).Draw(r, "state")
				b.Metadata = map[string]string{"k": rapid.SampledFrom(values).Draw(r, "value")}
				if err := s.AddSandbox(context.Background(), b); err != nil {
					r.Fatal(err)
				}
				all = append(all, b)
			},
			"update": func(r *rapid.T) {
				if len(all) == 0 {
					r.Skip("nothing to update")
				}
				b := &all[rapid.IntRange(0, len(all)-1).Draw(r, "which")]
				b.State = rapid.SampledFrom(states).Draw(r, "state")
				b.EndAt = at(rapid.IntRange(0, 1e6).Draw(r, "end"))
				if err := s.UpdateSandbox(context.Background(), *b); err != nil {
					r.Fatal(err)
				}
				b.Version++
				got, err := s.Sandbox(context.Background(), b.Team, b.ID)
				if err != nil || !got.EndAt.Equal(b.EndAt) || got.State != b.State {
					r.Fatalf("wrote %+v, read %+v, %v", *b, got, err)
				}
			},
			"list": func(r *rapid.T) {
				q := store.SandboxQuery{
					Team:      rapid.SampledFrom(teams).Draw(r, "team"),
					States:    rapid.SliceOfDistinct(rapid.SampledFrom(states), rapid.ID).Draw(r, "states"),
					Ascending: rapid.Bool().Draw(r, "ascending"),
					Limit:     rapid.IntRange(0, 5).Draw(r, "limit"),
				}
				if rapid.Bool().Draw(r, "by metadata") {
					q.Metadata = map[string]string{"k": rapid.SampledFrom(values).Draw(r, "value")}
				}
				if rapid.Bool().Draw(r, "by start") {
					q.StartedAfter = at(rapid.IntRange(0, 9).Draw(r, "after"))
				}
				if len(all) > 0 && rapid.Bool().Draw(r, "page") {
					b := all[rapid.IntRange(0, len(all)-1).Draw(r, "cursor")]
					q.After = &store.Cursor{StartedAt: b.StartedAt, ID: b.ID}
				}
				checkList(r, s, all, q)
			},
		})
	})
}
