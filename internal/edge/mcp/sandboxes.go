package mcp

import (
	"context"
	"fmt"
	"strings"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/client"
)

// maxListed bounds a list of sandboxes.
const maxListed = 100

type createIn struct {
	Template   string            `json:"template,omitempty" jsonschema:"name or id of its template; a code interpreter when left out. base is a bare system, desktop has a screen"`
	Timeout    int               `json:"timeout,omitempty" jsonschema:"seconds that it runs without being used, then it is paused or ended; 600 when left out"`
	Metadata   map[string]string `json:"metadata,omitempty" jsonschema:"entries to find it by"`
	Env        map[string]string `json:"env,omitempty" jsonschema:"environment variables of its processes"`
	NoInternet bool              `json:"no_internet,omitempty" jsonschema:"closes the internet to it"`
	Ends       bool              `json:"end_at_timeout,omitempty" jsonschema:"end it at its timeout instead of pausing it"`
}

type sandboxOut struct {
	ID       string            `json:"sandbox_id"`
	Template string            `json:"template,omitempty"`
	State    string            `json:"state"`
	Default  bool              `json:"default,omitempty"`
	Started  *time.Time        `json:"started_at,omitempty"`
	Ends     *time.Time        `json:"end_at,omitempty"`
	Metadata map[string]string `json:"metadata,omitempty"`
}

type listOut struct {
	Sandboxes []sandboxOut `json:"sandboxes"`
	More      int          `json:"more,omitempty"`
}

type doneOut struct {
	Sandbox string `json:"sandbox_id"`
	State   string `json:"state"`
}

// maxAlive bounds the time limit of a sandbox; the server may allow less.
const maxAlive = 30 * 24 * time.Hour

func (f *Face) addSandboxes(s *sdk.Server) {
	add(f, s, tool{"create_sandbox", "Make a sandbox", "Makes a fresh sandbox and returns its id. Most work needs none: tools without sandbox_id use your default one.", adds}, createSandbox)
	add(f, s, tool{"list_sandboxes", "List sandboxes", "Lists the team's sandboxes that run or are paused, newest first, and says which is your default one.", reads}, listSandboxes)
	add(f, s, tool{"destroy_sandbox", "End a sandbox", "Ends a sandbox for good, with its files and processes. Without sandbox_id it ends your default one; the next call makes another.", destroys}, destroySandbox)
	add(f, s, tool{"why", "Say what became of a sandbox", "Says why a sandbox ended (out of memory, time over, asked, host lost) with the evidence, or what happened to it last while it lives.", reads}, why)
}

func createSandbox(ctx context.Context, c *call, in createIn) (out sandboxOut, err error) {
	alive, err := seconds(in.Timeout, idle, maxAlive)
	if err != nil {
		return out, err
	}
	if in.Template == "" {
		in.Template = c.face.template(c.who)
	}
	box, err := c.api.Create(ctx, client.CreateOptions{
		Template: in.Template, Timeout: alive, Metadata: in.Metadata, Env: in.Env, NoInternet: in.NoInternet, AutoPause: !in.Ends,
	})
	if err != nil {
		return out, err
	}
	c.box = box.ID
	c.say("sandbox_id: %s", box.ID)
	return sandboxOut{ID: box.ID, Template: in.Template, State: "running"}, nil
}

func listSandboxes(ctx context.Context, c *call, _ struct{}) (out listOut, err error) {
	list, err := c.api.List(ctx)
	if err != nil {
		return out, err
	}
	own, err := c.face.found(ctx, c.who, c.clientName())
	if err != nil {
		return out, err
	}
	var text strings.Builder
	out.Sandboxes = []sandboxOut{}
	for i, box := range list {
		if i == maxListed {
			out.More = len(list) - i
			fmt.Fprintf(&text, "and %d more\n", out.More)
			break
		}
		one := sandboxOut{ID: box.ID, Template: box.Alias, State: box.State, Default: box.ID == own, Started: &box.StartedAt, Ends: &box.EndAt, Metadata: box.Metadata}
		out.Sandboxes = append(out.Sandboxes, one)
		fmt.Fprintf(&text, "%s  %s  %s, started %s", one.ID, one.State, one.Template, one.Started.Format(time.RFC3339))
		if one.Default {
			text.WriteString("  (your default)")
		}
		text.WriteByte('\n')
	}
	if len(list) == 0 {
		text.WriteString("no sandboxes")
	}
	c.say("%s", cut(text.String(), maxText))
	return out, nil
}

func destroySandbox(ctx context.Context, c *call, in target) (out doneOut, err error) {
	if c.box = in.Sandbox; c.box == "" {
		if c.box, err = c.face.found(ctx, c.who, c.clientName()); err != nil {
			return out, err
		}
	}
	if c.box == "" {
		return out, cay.Errorf(cay.NotFound, "you have no default sandbox").WithHint("list_sandboxes shows the others")
	}
	if err := c.api.Kill(ctx, c.box); err != nil {
		return out, err
	}
	c.say("%s has ended", c.box)
	return doneOut{c.box, "ended"}, nil
}

type whyIn struct {
	Sandbox string `json:"sandbox_id" jsonschema:"the sandbox"`
}

type whyOut struct {
	Sandbox  string      `json:"sandbox_id"`
	State    string      `json:"state"`
	Reason   string      `json:"reason,omitempty"`
	Evidence string      `json:"evidence,omitempty"`
	Ended    *time.Time  `json:"ended_at,omitempty"`
	Snapshot string      `json:"snapshot_id,omitempty"`
	Events   []eventLine `json:"events,omitempty"`
}

type eventLine struct {
	At     time.Time `json:"at"`
	Type   string    `json:"type"`
	Reason string    `json:"reason,omitempty"`
}

// lastEvents is how many events are told of a sandbox that lives.
const lastEvents = 10

func why(ctx context.Context, c *call, in whyIn) (out whyOut, err error) {
	c.box = in.Sandbox
	end, err := c.api.End(ctx, in.Sandbox)
	if err == nil {
		c.say("%s ended %s: %s. %s", in.Sandbox, end.EndedAt.Format(time.RFC3339), end.Reason, cut(end.Evidence, maxText))
		return whyOut{Sandbox: in.Sandbox, State: "ended", Reason: end.Reason, Evidence: cut(end.Evidence, maxText), Ended: &end.EndedAt, Snapshot: end.SnapshotID}, nil
	}
	if cay.KindOf(err) != cay.Conflict { // Conflict: it lives
		return out, err
	}
	info, err := c.api.Info(ctx, in.Sandbox)
	if err != nil {
		return out, err
	}
	out = whyOut{Sandbox: in.Sandbox, State: info.State}
	var text strings.Builder
	fmt.Fprintf(&text, "%s has not ended: it is %s, until %s\n", in.Sandbox, info.State, info.EndAt.Format(time.RFC3339))
	for e, err := range c.api.Events(ctx, client.EventOptions{Sandbox: in.Sandbox}) {
		if err != nil {
			return out, err
		}
		out.Events = append(out.Events, eventLine{e.At, e.Type, cut(e.Reason, 500)})
		out.Events = out.Events[max(0, len(out.Events)-lastEvents):]
	}
	for _, e := range out.Events {
		fmt.Fprintf(&text, "%s  %s  %s\n", e.At.Format(time.RFC3339), e.Type, e.Reason)
	}
	c.say("%s", text.String())
	return out, nil
}
