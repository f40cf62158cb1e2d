package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/client"
)

type eventsCmd struct {
	ID     string `arg:"" optional:"" help:"Only of this sandbox, which may be over."`
	Follow bool   `short:"f" help:"Go on with what happens."`
	Type   string `help:"Only of this type, as sandbox.killed."`
	After  int64  `help:"Only those with a greater number; -1 for what is yet to come."`
}

// Help says how long events are kept.
func (eventsCmd) Help() string {
	return "Events are kept for a week. With --json each is a line of its own."
}

func (c *eventsCmd) Run(a *app) error {
	api, err := a.client()
	if err != nil {
		return err
	}
	o := client.EventOptions{Sandbox: c.ID, Type: c.Type, After: c.After, Follow: c.Follow}
	for e, err := range api.Events(a.ctx, o) {
		if err != nil {
			return err
		}
		if err := a.printEvent(e); err != nil {
			return err
		}
	}
	return nil
}

func (a *app) printEvent(e client.Event) error {
	if a.json {
		return json.NewEncoder(a.out).Encode(e)
	}
	text := fmt.Sprintf("%s  %-6d %s  %s", e.At.Local().Format(time.DateTime), e.Seq, clean(e.SandboxID), clean(e.Type))
	if e.Reason != "" {
		text += " (" + clean(e.Reason) + ")"
	}
	if data := pairs(e.Data); data != "" {
		text += "  " + data
	}
	_, err := fmt.Fprintln(a.out, text)
	return err
}

type whyCmd struct {
	IDs []string `arg:"" name:"id" help:"Sandboxes' ids."`
}

func (c *whyCmd) Run(a *app) error {
	api, err := a.client()
	if err != nil {
		return err
	}
	var errs []error
	ends := []client.End{}
	for _, id := range c.IDs {
		end, err := api.End(a.ctx, id)
		switch {
		case cay.KindOf(err) == cay.NotFound:
			err = cay.Errorf(cay.NotFound, "nothing is known of sandbox %s", clean(id)).
				WithHint("ends are kept for a week, and each team sees its own")
		case err == nil && !a.json:
			fmt.Fprint(a.out, why(end))
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		ends = append(ends, end)
	}
	if a.json {
		errs = append(errs, a.printJSON(ends))
	}
	return errors.Join(errs...)
}

// reasons are the ends in words.
var reasons = map[string]string{
	string(cay.CauseAsked):       "it was ended on request",
	string(cay.CauseTimeout):     "its time was over",
	string(cay.CauseOutOfMemory): "it ran out of memory",
	string(cay.CauseEngine):      "the engine that ran it ended",
	string(cay.CauseHostLost):    "it was lost with its host",
	string(cay.CauseFailedStart): "it could not be started",
	string(cay.CauseBudget):      "a budget of its team is used up, and ends sandboxes",
	string(cay.CauseMemoryLost):  "its memory could not be read from its snapshot",
}

func why(e client.End) string {
	text := reasons[e.Reason]
	if text == "" {
		text = e.Reason
	}
	by := e.ByName
	if by == "" {
		by = e.By
	}
	var out strings.Builder
	line := func(name, text string) {
		if text != "" {
			fmt.Fprintf(&out, "  %-10s %s\n", name, clean(text))
		}
	}
	fmt.Fprintf(&out, "%s: %s\n", clean(e.SandboxID), clean(text))
	line("reason", e.Reason)
	line("evidence", e.Evidence)
	line("by key", by)
	line("ended", e.EndedAt.Local().Format(time.DateTime)+", "+unit(e.EndedAt.Sub(e.StartedAt))+" after it started")
	line("snapshot", e.SnapshotID)
	name := e.Alias
	if name == "" {
		name = e.TemplateID
	}
	line("template", name)
	for _, k := range slices.Sorted(maps.Keys(e.Metadata)) {
		line("metadata", k+"="+e.Metadata[k])
	}
	return out.String()
}
