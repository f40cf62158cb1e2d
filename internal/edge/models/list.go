package models

import (
	"context"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control/providers"
)

const (
	listWithin = 10 * time.Second
	maxList    = 4 << 20
)

// listed is a model that a sandbox may ask for.
type listed struct {
	name  string
	owner cay.ModelProvider
}

// list tells the models of a team's providers: those that they name, and of those
// that take every name, what they list themselves.
func (g *Gateway) list(rw http.ResponseWriter, r *http.Request, from Guest, wire cay.ModelWire) {
	turn, err := g.cfg.Providers.Begin(r.Context(), from.Team, from.Sandbox)
	if err != nil {
		fail(rw, wire, err)
		return
	}
	defer func() { _ = turn.End(r.Context(), 0, 0) }() // it counts nothing
	choices, err := g.cfg.Providers.Choices(r.Context(), from.Team, wire, "")
	if err != nil {
		fail(rw, wire, err)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), listWithin)
	defer cancel()
	names := make([][]string, len(choices))
	var all sync.WaitGroup
	for i, c := range choices {
		names[i] = slices.DeleteFunc(slices.Sorted(maps.Keys(c.Models)), func(name string) bool { return name == cay.OtherModels })
		if _, every := c.Serves("\x00"); every {
			all.Go(func() { names[i] = append(names[i], g.theirs(ctx, r, turn, c)...) })
		}
	}
	all.Wait()
	var out []listed
	for i, c := range choices {
		for _, name := range names[i] {
			if !slices.ContainsFunc(out, func(l listed) bool { return l.name == name }) {
				out = append(out, listed{name, c.ModelProvider})
			}
		}
	}
	rw.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(rw).Encode(listing(wire, out)) // the guest may be gone
}

// theirs lists the models that a provider says it has; none where it does not say.
func (g *Gateway) theirs(ctx context.Context, r *http.Request, turn *providers.Turn, c providers.Choice) []string {
	key, err := turn.Key(ctx, c.ModelProvider)
	if err != nil {
		return nil
	}
	path := "/models"
	if c.Wire == cay.AnthropicWire {
		path = listPath
	}
	req, err := request(ctx, r, path, c.ModelProvider, key)
	if err != nil {
		return nil
	}
	resp, err := g.transportOf(req).RoundTrip(req)
	if err != nil {
		return nil
	}
	defer resp.Body.Close()
	var got struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	if resp.StatusCode != http.StatusOK || json.NewDecoder(io.LimitReader(resp.Body, maxList)).Decode(&got) != nil {
		return nil
	}
	var out []string
	for _, m := range got.Data {
		if m.ID != "" && len(m.ID) <= cay.MaxModelName {
			out = append(out, m.ID)
		}
	}
	return out
}

// listing is a list of models in the words of a wire.
func listing(wire cay.ModelWire, list []listed) any {
	data := make([]map[string]any, 0, len(list))
	for _, m := range list {
		one := map[string]any{"id": m.name, "object": "model", "created": m.owner.CreatedAt.Unix(), "owned_by": m.owner.Name}
		if wire == cay.AnthropicWire {
			one = map[string]any{"id": m.name, "type": "model", "created_at": m.owner.CreatedAt.Format(time.RFC3339), "display_name": m.name}
		}
		data = append(data, one)
	}
	if wire != cay.AnthropicWire {
		return map[string]any{"object": "list", "data": data}
	}
	out := map[string]any{"data": data, "has_more": false, "first_id": nil, "last_id": nil}
	if len(list) > 0 {
		out["first_id"], out["last_id"] = list[0].name, list[len(list)-1].name
	}
	return out
}
