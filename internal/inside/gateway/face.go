package gateway

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// face is what clients see: the tools, prompts and resources of all servers.
type face struct {
	server  *sdk.Server
	log     *slog.Logger
	running []*supervised // sorted by name

	mu        sync.Mutex // held while the face changes
	tools     []string   // the names of what is there
	prompts   []string
	resources []string
	templates []string
}

func newFace(running []*supervised, cfg Config) *face {
	f := &face{
		server: sdk.NewServer(&sdk.Implementation{Name: "mcp-gateway", Title: "Cay's MCP gateway", Version: cfg.Version}, &sdk.ServerOptions{
			PageSize: 10 * maxOffers, // clients that read one page see all
			Capabilities: &sdk.ServerCapabilities{
				Tools: &sdk.ToolCapabilities{}, Prompts: &sdk.PromptCapabilities{}, Resources: &sdk.ResourceCapabilities{},
			},
		}),
		log: cfg.Log, running: slices.Clone(running),
	}
	slices.SortFunc(f.running, func(a, b *supervised) int { return cmp.Compare(a.Name, b.Name) })
	for _, s := range f.running {
		s.mu.Lock()
		s.changed = f.update
		s.mu.Unlock()
	}
	f.update()
	return f
}

// update has the face show what the servers have now. The things of a server
// that is down stay: a model's list of tools does not change with each crash.
func (f *face) update() {
	f.mu.Lock()
	defer f.mu.Unlock()
	offers := make([]offer, len(f.running))
	for i, s := range f.running {
		s.mu.Lock()
		offers[i] = s.offer
		s.mu.Unlock()
		offers[i].tools = allowed(s.Server, offers[i].tools, f.log)
	}
	tools := merge(f.running, offers, func(o offer) []*sdk.Tool { return o.tools }, func(t *sdk.Tool) string { return t.Name })
	f.tools = show(f.log, f.tools, tools, f.server.RemoveTools, func(name string, s *supervised, t *sdk.Tool) {
		shown := *t
		shown.Name = name
		f.server.AddTool(&shown, s.callTool(t.Name))
	})
	prompts := merge(f.running, offers, func(o offer) []*sdk.Prompt { return o.prompts }, func(p *sdk.Prompt) string { return p.Name })
	f.prompts = show(f.log, f.prompts, prompts, f.server.RemovePrompts, func(name string, s *supervised, p *sdk.Prompt) {
		shown := *p
		shown.Name = name
		f.server.AddPrompt(&shown, s.getPrompt(p.Name))
	})
	// An address is what it is: of two servers that have one, the first has it.
	f.resources = show(f.log, f.resources, firsts(f.running, offers, func(o offer) []*sdk.Resource { return o.resources }, func(r *sdk.Resource) string { return r.URI }),
		f.server.RemoveResources, func(_ string, s *supervised, r *sdk.Resource) { f.server.AddResource(r, s.readResource) })
	f.templates = show(f.log, f.templates, firsts(f.running, offers, func(o offer) []*sdk.ResourceTemplate { return o.templates }, func(r *sdk.ResourceTemplate) string { return r.URITemplate }),
		f.server.RemoveResourceTemplates, func(_ string, s *supervised, r *sdk.ResourceTemplate) {
			f.server.AddResourceTemplate(r, s.readResource)
		})
}

// allowed are the tools that clients may use.
func allowed(s Server, tools []*sdk.Tool, log *slog.Logger) []*sdk.Tool {
	if s.Tools == nil {
		return tools
	}
	var out []*sdk.Tool
	for _, t := range tools {
		if slices.Contains(s.Tools, t.Name) {
			out = append(out, t)
		}
	}
	if len(out) < len(s.Tools) {
		log.Warn("the server lacks tools that are allowed", "server", s.Name, "allowed", s.Tools)
	}
	return out
}

// entry is one thing of a server, by the name that clients know it by.
type entry[T any] struct {
	name   string
	server *supervised
	thing  T
}

// merge names the things of all servers: by their own names, and where two
// servers have one, by the server's name before it.
func merge[T any](running []*supervised, offers []offer, of func(offer) []T, name func(T) string) []entry[T] {
	owners := map[string]map[string]bool{}
	for i, o := range offers {
		for _, thing := range of(o) {
			if owners[name(thing)] == nil {
				owners[name(thing)] = map[string]bool{}
			}
			owners[name(thing)][running[i].Name] = true
		}
	}
	var out []entry[T]
	seen := map[string]bool{}
	for i, o := range offers {
		for _, thing := range of(o) {
			shown := name(thing)
			if len(owners[shown]) > 1 {
				shown = plain(running[i].Name) + "__" + shown
			}
			if !seen[shown] { // a server that has one twice has the first
				out = append(out, entry[T]{shown, running[i], thing})
			}
			seen[shown] = true
		}
	}
	return out
}

// plain is a name with what the names of tools may have.
func plain(name string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '.' {
			return r
		}
		return '_'
	}, name)
}

// firsts are the things of all servers without those whose name an earlier one has.
func firsts[T any](running []*supervised, offers []offer, of func(offer) []T, name func(T) string) []entry[T] {
	var out []entry[T]
	seen := map[string]bool{}
	for i, o := range offers {
		for _, thing := range of(o) {
			if !seen[name(thing)] {
				out = append(out, entry[T]{name(thing), running[i], thing})
			}
			seen[name(thing)] = true
		}
	}
	return out
}

// show adds entries and removes those of before that are none any more. The
// library panics on what it cannot serve: such an entry is left out.
func show[T any](log *slog.Logger, before []string, entries []entry[T], remove func(...string), add func(string, *supervised, T)) []string {
	var names []string
	for _, e := range entries {
		err := try(func() { add(e.name, e.server, e.thing) })
		if err != nil {
			log.Warn("an entry of a server is left out", "server", e.server.Name, "name", e.name, "err", err)
			continue
		}
		names = append(names, e.name)
	}
	if gone := slices.DeleteFunc(before, func(n string) bool { return slices.Contains(names, n) }); len(gone) > 0 {
		remove(gone...)
	}
	return names
}

func try(do func()) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("%v", v)
		}
	}()
	do()
	return nil
}

// callTool passes calls of a tool on. Failures are told to the model.
func (v *supervised) callTool(name string) sdk.ToolHandler {
	return func(ctx context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		params := map[string]any{"name": name}
		if len(r.Params.Arguments) > 0 {
			params["arguments"] = r.Params.Arguments
		} else {
			params["arguments"] = struct{}{}
		}
		if why := v.approve(ctx, name, r.Params.Arguments); why != "" {
			return failed(why), nil
		}
		raw, err := v.call(ctx, "tools/call", params, telling(ctx, r))
		if err != nil {
			return failed(v.words(err)), nil
		}
		out, err := toolResult(raw)
		if err != nil {
			return failed(fmt.Sprintf("server %s answered tool %s with what is no result: %v", v.Name, name, err)), nil
		}
		return out, nil
	}
}

// words are an error for the model.
func (v *supervised) words(err error) string {
	var refused *refusal
	if errors.As(err, &refused) {
		return fmt.Sprintf("server %s refused: %s", v.Name, refused.Message)
	}
	return err.Error()
}

func failed(text string) *sdk.CallToolResult {
	return &sdk.CallToolResult{IsError: true, Content: []sdk.Content{&sdk.TextContent{Text: text}}}
}

// toolResult reads a result, and keeps the bytes of what is for programs: large
// numbers would be rounded.
func toolResult(raw json.RawMessage) (*sdk.CallToolResult, error) {
	out := new(sdk.CallToolResult)
	if err := json.Unmarshal(raw, out); err != nil {
		return nil, err
	}
	var wire struct {
		Structured json.RawMessage `json:"structuredContent"`
	}
	if err := json.Unmarshal(raw, &wire); err != nil {
		return nil, err
	}
	if len(wire.Structured) > 0 && out.StructuredContent != nil {
		out.StructuredContent = wire.Structured
	}
	return out, nil
}

// telling passes progress on to a client that asked for it.
func telling(ctx context.Context, r *sdk.CallToolRequest) func(json.RawMessage) {
	token := r.Params.GetProgressToken()
	if token == nil {
		return nil
	}
	return func(params json.RawMessage) {
		out := new(sdk.ProgressNotificationParams)
		if json.Unmarshal(params, out) != nil {
			return
		}
		out.ProgressToken = token
		_ = r.Session.NotifyProgress(ctx, out) // the client learns of the end all the same
	}
}

func (v *supervised) getPrompt(name string) sdk.PromptHandler {
	return func(ctx context.Context, r *sdk.GetPromptRequest) (*sdk.GetPromptResult, error) {
		params := map[string]any{"name": name}
		if len(r.Params.Arguments) > 0 {
			params["arguments"] = r.Params.Arguments
		}
		return asked[sdk.GetPromptResult](ctx, v, "prompts/get", params)
	}
}

func (v *supervised) readResource(ctx context.Context, r *sdk.ReadResourceRequest) (*sdk.ReadResourceResult, error) {
	return asked[sdk.ReadResourceResult](ctx, v, "resources/read", map[string]any{"uri": r.Params.URI})
}

// asked asks a server for what is no tool's result: errors are the protocol's.
func asked[T any](ctx context.Context, v *supervised, method string, params map[string]any) (*T, error) {
	raw, err := v.call(ctx, method, params, nil)
	if err != nil {
		return nil, errors.New(v.words(err))
	}
	out := new(T)
	if err := json.Unmarshal(raw, out); err != nil {
		return nil, fmt.Errorf("server %s answered %s with nonsense: %w", v.Name, method, err)
	}
	return out, nil
}
