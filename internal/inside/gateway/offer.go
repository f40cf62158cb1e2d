package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// maxOffers bounds the tools, prompts or resources of one server, and maxPages
// the answers in which it lists them.
const (
	maxOffers = 1000
	maxPages  = 100
)

// offer is what a server has.
type offer struct {
	tools     []*sdk.Tool
	prompts   []*sdk.Prompt
	resources []*sdk.Resource
	templates []*sdk.ResourceTemplate
}

// offered asks a server for all that it says it has.
func offered(ctx context.Context, p *peer, h hello, junk func([]byte)) (offer, error) {
	var o offer
	var err error
	if h.Capabilities.Tools != nil {
		if o.tools, err = list(ctx, p, "tools/list", "tools", junk, honest); err != nil {
			return o, err
		}
	}
	if h.Capabilities.Prompts != nil {
		if o.prompts, err = list[sdk.Prompt](ctx, p, "prompts/list", "prompts", junk, nil); err != nil {
			return o, err
		}
	}
	if h.Capabilities.Resources == nil {
		return o, nil
	}
	if o.resources, err = list[sdk.Resource](ctx, p, "resources/list", "resources", junk, nil); err != nil {
		return o, err
	}
	o.templates, err = list[sdk.ResourceTemplate](ctx, p, "resources/templates/list", "resourceTemplates", junk, nil)
	var refused *refusal
	if errors.As(err, &refused) { // many have resources and no templates
		err = nil
	}
	return o, err
}

// list reads all pages of a list. An entry that is none is told to junk and left
// out; check may refuse more, and sets what only the bytes tell.
func list[T any](ctx context.Context, p *peer, method, field string, junk func([]byte), check func(*T, json.RawMessage) error) ([]*T, error) {
	var out []*T
	cursor := ""
	for range maxPages {
		params := map[string]any{}
		if cursor != "" {
			params["cursor"] = cursor
		}
		raw, err := p.call(ctx, method, params, nil)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", method, err)
		}
		var page map[string]json.RawMessage
		var entries []json.RawMessage
		if err := json.Unmarshal(raw, &page); err != nil {
			return nil, fmt.Errorf("%s: it answers with nonsense: %w", method, err)
		}
		if err := json.Unmarshal(page[field], &entries); err != nil {
			return nil, fmt.Errorf("%s: it answers with nonsense: %w", method, err)
		}
		for _, entry := range entries {
			one := new(T)
			err := json.Unmarshal(entry, one)
			if err == nil && check != nil {
				err = check(one, entry)
			}
			if err != nil {
				junk(fmt.Appendf(nil, "%s: an entry is left out: %v", method, err))
				continue
			}
			if len(out) == maxOffers {
				return nil, fmt.Errorf("%s: it lists more than %d", method, maxOffers)
			}
			out = append(out, one)
		}
		cursor = ""
		if next, ok := page["nextCursor"]; ok {
			if err := json.Unmarshal(next, &cursor); err != nil {
				return nil, fmt.Errorf("%s: nextCursor is no string", method)
			}
		}
		if cursor == "" {
			return out, nil
		}
	}
	return nil, fmt.Errorf("%s: its list has no end", method)
}

// honest refuses a tool whose schema is none, and keeps the bytes of those that
// are: numbers in them are not ours to round.
func honest(t *sdk.Tool, raw json.RawMessage) error {
	var wire struct {
		Input  json.RawMessage `json:"inputSchema"`
		Output json.RawMessage `json:"outputSchema"`
	}
	if err := json.Unmarshal(raw, &wire); err != nil {
		return err
	}
	if t.Name == "" {
		return errors.New("a tool without a name")
	}
	var input struct {
		Type string `json:"type"`
	}
	if err := json.Unmarshal(wire.Input, &input); err != nil || input.Type != "object" {
		return fmt.Errorf("tool %.100q: its input schema is not that of an object", t.Name)
	}
	t.InputSchema, t.OutputSchema = wire.Input, nil
	if len(wire.Output) > 0 && wire.Output[0] == '{' { // a client can check nothing by another
		t.OutputSchema = wire.Output
	}
	return nil
}
