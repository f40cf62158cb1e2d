package storetest

import (
	"sync"
	"testing"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/store"
)

// provider has every field that is recorded.
func provider(team cay.TeamID, name string, order, created int) cay.ModelProvider {
	return cay.ModelProvider{
		Team: team, Name: name, Wire: cay.AnthropicWire, URL: "https://a.example", Secret: "key", Models: map[string]string{"a": "", "*": "b\"ü"},
		Order: order, Enabled: true, Timeout: 1500 * time.Millisecond, CreatedAt: at(created), UpdatedAt: at(created + 1), Version: 1,
	}
}

func testModels(t *testing.T, s store.Store) {
	ctx := t.Context()
	team, other := addTeam(t, s, "a"), addTeam(t, s, "b")
	third, first, second := provider(team.ID, "third", 7, 1), provider(team.ID, "first", 0, 3), provider(team.ID, "second", 7, 0)
	for _, p := range []cay.ModelProvider{third, first, second} {
		noError(t, s.AddModelProvider(ctx, p, 3))
	}
	wantKind(t, s.AddModelProvider(ctx, provider(team.ID, "fourth", 0, 4), 3), cay.Exhausted)
	wantKind(t, s.AddModelProvider(ctx, first, 9), cay.Conflict)
	foreign := provider(other.ID, "first", 0, 5)
	noError(t, s.AddModelProvider(ctx, foreign, 3))
	list, err := s.ModelProviders(ctx, team.ID)
	noError(t, err)
	same(t, "in their order", list, []cay.ModelProvider{first, second, third})

	changed := first
	changed.Wire, changed.URL, changed.Secret, changed.Models, changed.Order = cay.OpenAIWire, "http://b.example/v1", "", nil, 9
	changed.Enabled, changed.Timeout, changed.UpdatedAt, changed.Version = false, 0, at(9), 2
	noError(t, s.UpdateModelProvider(ctx, changed))
	wantKind(t, s.UpdateModelProvider(ctx, changed), cay.Conflict)
	got, err := s.ModelProvider(ctx, team.ID, "first")
	noError(t, err)
	same(t, "changed", got, changed)
	got, err = s.ModelProvider(ctx, other.ID, "first")
	noError(t, err)
	same(t, "another team's", got, foreign)
	noError(t, s.RemoveModelProvider(ctx, team.ID, "first"))
	wantKind(t, s.RemoveModelProvider(ctx, team.ID, "first"), cay.NotFound)
	_, err = s.ModelProvider(ctx, team.ID, "first")
	wantKind(t, err, cay.NotFound)

	box := sandbox(team.ID, 1)
	noError(t, s.AddSandbox(ctx, box))
	n, err := s.ModelTokens(ctx, box.ID)
	noError(t, err)
	same(t, "tokens of a new sandbox", n, int64(0))
	before := usageOf(t, s, team.ID)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			if err := s.CountModel(ctx, box, time.Now(), 10, 3); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	n, err = s.ModelTokens(ctx, box.ID)
	noError(t, err)
	same(t, "tokens of its life", n, int64(104))
	noError(t, s.CountModel(ctx, cay.Sandbox{ID: "igone", Team: team.ID}, time.Now(), 1, 2))
	used := usageOf(t, s, team.ID)
	same(t, "tokens of its team", [2]int64{used.Input - before.Input, used.Output - before.Output}, [2]int64{81, 26})
}
