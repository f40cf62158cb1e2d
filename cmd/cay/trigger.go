package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/client"
	"github.com/cay-run/cay/internal/cli/text"
)

type hookCmd struct {
	Create hookCreateCmd `cmd:"" help:"Have a command run with each request to an address; prints the address, and the secret once."`
	List   hookListCmd   `cmd:"" aliases:"ls" help:"List the team's hooks."`
	Update hookUpdateCmd `cmd:"" help:"Change a hook, or turn it on or off."`
	Rotate hookRotateCmd `cmd:"" help:"Give a hook another secret; the old one counts too for a day."`
	triggerCmds
}

type scheduleCmd struct {
	Create scheduleCreateCmd `cmd:"" help:"Have a command run by the clock."`
	List   scheduleListCmd   `cmd:"" aliases:"ls" help:"List the team's schedules."`
	Update scheduleUpdateCmd `cmd:"" help:"Change a schedule, or turn it on or off."`
	triggerCmds
}

// triggerCmds are the commands that hooks and schedules share.
type triggerCmds struct {
	Show   triggerShowCmd   `cmd:"" help:"Show one."`
	Remove triggerRemoveCmd `cmd:"" aliases:"rm" help:"Forget some, with their runs."`
	Run    triggerRunCmd    `cmd:"" help:"Run one now, and wait for the end."`
	Runs   triggerRunsCmd   `cmd:"" help:"List runs of the last week, the newest first."`
	Log    triggerLogCmd    `cmd:"" help:"Show a run, and the last of what its command wrote."`
	Cancel triggerCancelCmd `cmd:"" help:"End a run: one that waits is not started, the command of one that runs is killed."`
}

// triggerFlags are what hooks and schedules have in common.
type triggerFlags struct {
	Template   *string           `short:"t" help:"Make a sandbox of this template for each run [base, for a new one]." xor:"where"`
	Sandbox    *string           `short:"s" help:"Wake this sandbox for each run." xor:"where"`
	Metadata   map[string]string `short:"m" placeholder:"KEY=VALUE" help:"Metadata of sandboxes that are made."`
	Env        map[string]string `short:"e" placeholder:"KEY=VALUE" help:"Variables of the command; kept encrypted."`
	User       *string           `short:"u" help:"User of the command [the sandbox's usual one]."`
	Dir        *string           `help:"Directory of the command [the user's home]."`
	Timeout    *time.Duration    `help:"How long the command may take [10m]."`
	After      *string           `enum:"kill,pause,keep" help:"The fate of the sandbox after a run: kill, pause or keep [kill; pause for one that is woken]."`
	MaxRunning *int              `help:"How many runs go on at once [4; 1 for schedules and a sandbox that is woken]."`
	MaxWaiting *int              `help:"How many runs may wait for that [100; 1 for schedules]."`
	Retries    *int              `help:"How often a run is tried again whose command fails [0]."`
}

func (f triggerFlags) options() client.TriggerOptions {
	o := client.TriggerOptions{
		Template: f.Template, SandboxID: f.Sandbox, Metadata: f.Metadata, Env: f.Env, User: f.User, Dir: f.Dir, After: f.After,
		MaxRunning: f.MaxRunning, MaxWaiting: f.MaxWaiting, Retries: f.Retries,
	}
	if f.Timeout != nil {
		seconds := int(f.Timeout.Seconds())
		o.Timeout = &seconds
	}
	none := ""
	switch { // one of them is set, so that the other is not any more
	case f.Template != nil:
		o.SandboxID = &none
	case f.Sandbox != nil:
		o.Template = &none
	}
	return o
}

// triggerNew are the options of a new trigger.
func triggerNew(kind, name, command string, f triggerFlags, disabled bool) client.TriggerOptions {
	o := f.options()
	if f.Template == nil && f.Sandbox == nil {
		base := "base"
		o.Template = &base
	}
	on := !disabled
	o.Kind, o.Name, o.Command, o.Enabled = kind, &name, &command, &on
	return o
}

// stateFlags turn a trigger on or off.
type stateFlags struct {
	Enable  bool `xor:"state" help:"Turn it on."`
	Disable bool `xor:"state" help:"Turn it off."`
}

func (f stateFlags) put(o *client.TriggerOptions) {
	if f.Enable || f.Disable {
		o.Enabled = &f.Enable
	}
}

// filterFlags say which requests to a hook are of interest.
type filterFlags struct {
	Events  *[]string `short:"E" name:"event" help:"Events that are of interest, by the sender's names [all]."`
	Filters *[]string `short:"f" name:"filter" sep:"none" placeholder:"PATH=VALUE|VALUE" help:"Only requests with one of these values at a path of their JSON body, such as pull_request.base.ref=main|release-*; all filters must pass."`
}

func (f filterFlags) put(o *client.TriggerOptions) error {
	o.Events = f.Events
	if f.Filters == nil {
		return nil
	}
	list := []client.HookFilter{}
	for _, text := range *f.Filters {
		path, values, ok := strings.Cut(text, "=")
		if !ok {
			return cay.Errorf(cay.Invalid, "--filter %.80q: must be PATH=VALUE", text)
		}
		list = append(list, client.HookFilter{Path: path, Values: strings.Split(values, "|")})
	}
	o.Filters = &list
	return nil
}

type hookCreateCmd struct {
	Name    string `arg:"" help:"The hook's name."`
	Command string `arg:"" help:"The command, for a login shell. It finds the payload in the file $CAY_PAYLOAD."`
	Proof   string `enum:"github,slack,standard,bearer" default:"bearer" help:"How requests prove where they come from: github, slack, standard (Standard Webhooks) or bearer [bearer]."`
	triggerFlags
	filterFlags
	SecretFile string `placeholder:"FILE" help:"A file with the secret; - for standard input [the server makes one]."`
	Disabled   bool   `help:"Answer nothing before it is turned on."`
}

func (c *hookCreateCmd) Run(a *app) error {
	o := triggerNew("hook", c.Name, c.Command, c.triggerFlags, c.Disabled)
	o.Proof = &c.Proof
	if err := c.put(&o); err != nil {
		return err
	}
	var err error
	if o.Secret, err = webhookSecret(a, c.SecretFile); err != nil {
		return err
	}
	api, err := a.client()
	if err != nil {
		return err
	}
	x, err := api.CreateTrigger(a.ctx, o)
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(x)
	}
	fmt.Fprintln(a.out, clean(x.URL))
	if x.Secret != "" {
		fmt.Fprintf(a.err, "the secret, shown this once: %s\n", clean(x.Secret))
	}
	return nil
}

type scheduleCreateCmd struct {
	Name    string  `arg:"" help:"The schedule's name."`
	Cron    string  `arg:"" help:"When: minute, hour, day of the month, month, day of the week, such as '30 6 * * mon-fri'."`
	Command string  `arg:"" help:"The command, for a login shell."`
	Zone    *string `help:"Name of the time zone, such as Europe/Berlin [UTC]."`
	triggerFlags
	Disabled bool `help:"Run nothing before it is turned on."`
}

func (c *scheduleCreateCmd) Run(a *app) error {
	o := triggerNew("schedule", c.Name, c.Command, c.triggerFlags, c.Disabled)
	o.Cron, o.Zone = &c.Cron, c.Zone
	api, err := a.client()
	if err != nil {
		return err
	}
	x, err := api.CreateTrigger(a.ctx, o)
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(x)
	}
	if !x.NextAt.IsZero() {
		fmt.Fprintf(a.out, "next at %s\n", x.NextAt.Local().Format(time.DateTime+" MST"))
	}
	return nil
}

type hookListCmd struct{}

func (hookListCmd) Run(a *app) error {
	return listTriggers(a, "hook", []string{"NAME", "STATE", "PROOF", "IN", "EVENTS", "URL"}, func(x client.Trigger) []string {
		return []string{clean(x.Name), onOff(x), clean(x.Proof), placeOf(x), clean(strings.Join(x.Events, " ")), clean(x.URL)}
	})
}

type scheduleListCmd struct{}

func (scheduleListCmd) Run(a *app) error {
	return listTriggers(a, "schedule", []string{"NAME", "STATE", "CRON", "ZONE", "IN", "NEXT"}, func(x client.Trigger) []string {
		next := "–"
		if !x.NextAt.IsZero() {
			next = x.NextAt.Local().Format(time.DateTime)
		}
		return []string{clean(x.Name), onOff(x), clean(x.Cron), clean(or(x.Zone, "UTC")), placeOf(x), next}
	})
}

func listTriggers(a *app, kind string, header []string, row func(client.Trigger) []string) error {
	api, err := a.client()
	if err != nil {
		return err
	}
	all, err := api.Triggers(a.ctx)
	if err != nil {
		return err
	}
	list := []client.Trigger{}
	for _, x := range all {
		if x.Kind == kind {
			list = append(list, x)
		}
	}
	if a.json {
		return a.printJSON(list)
	}
	t := table{header: header}
	for _, x := range list {
		t.add(row(x)...)
	}
	t.print(a.out, width(a.out))
	return nil
}

func onOff(x client.Trigger) string {
	if x.Enabled {
		return "on"
	}
	return "off"
}

// placeOf says where a trigger's command runs.
func placeOf(x client.Trigger) string { return clean(or(x.Template, x.SandboxID)) }

type hookUpdateCmd struct {
	Hook    string  `arg:"" help:"Hook's name or id."`
	Name    *string `help:"Another name."`
	Command *string `help:"Another command."`
	Proof   *string `enum:"github,slack,standard,bearer" help:"Another proof."`
	triggerFlags
	filterFlags
	stateFlags
}

func (c *hookUpdateCmd) Run(a *app) error {
	o := c.options()
	o.Name, o.Command, o.Proof = c.Name, c.Command, c.Proof
	if err := c.filterFlags.put(&o); err != nil {
		return err
	}
	c.stateFlags.put(&o)
	return updateTrigger(a, c.Hook, o)
}

type scheduleUpdateCmd struct {
	Schedule string  `arg:"" help:"Schedule's name or id."`
	Name     *string `help:"Another name."`
	Cron     *string `help:"Another time."`
	Zone     *string `help:"Another time zone."`
	Command  *string `help:"Another command."`
	triggerFlags
	stateFlags
}

func (c *scheduleUpdateCmd) Run(a *app) error {
	o := c.options()
	o.Name, o.Command, o.Cron, o.Zone = c.Name, c.Command, c.Cron, c.Zone
	c.put(&o)
	return updateTrigger(a, c.Schedule, o)
}

func updateTrigger(a *app, ref string, o client.TriggerOptions) error {
	api, err := a.client()
	if err != nil {
		return err
	}
	x, err := api.UpdateTrigger(a.ctx, ref, o)
	if err != nil {
		return err
	}
	return showTrigger(a, x)
}

type triggerShowCmd struct {
	Trigger string `arg:"" help:"Its name or id."`
}

func (c *triggerShowCmd) Run(a *app) error {
	api, err := a.client()
	if err != nil {
		return err
	}
	x, err := api.Trigger(a.ctx, c.Trigger)
	if err != nil {
		return err
	}
	return showTrigger(a, x)
}

func showTrigger(a *app, x client.Trigger) error {
	if a.json {
		return a.printJSON(x)
	}
	rows := [][2]string{
		{"id", x.ID}, {"name", x.Name}, {"kind", x.Kind}, {"state", onOff(x)}, {"url", x.URL}, {"proof", x.Proof},
		{"events", strings.Join(x.Events, " ")}, {"cron", x.Cron}, {"zone", x.Zone}, {"template", x.Template}, {"sandbox", x.SandboxID},
		{"metadata", pairs(x.Metadata)}, {"command", x.Command}, {"user", x.User}, {"dir", x.Dir}, {"env", strings.Join(x.Env, " ")},
		{"timeout", (time.Duration(x.Timeout) * time.Second).String()}, {"after", x.After},
		{"runs", fmt.Sprintf("%d at once, %d may wait, %d retries", x.MaxRunning, x.MaxWaiting, x.Retries)},
	}
	for _, f := range x.Filters {
		rows = append(rows, [2]string{"filter", f.Path + "=" + strings.Join(f.Values, "|")})
	}
	if !x.NextAt.IsZero() {
		rows = append(rows, [2]string{"next", x.NextAt.Local().Format(time.DateTime + " MST")})
	}
	for _, row := range rows {
		if row[1] != "" {
			fmt.Fprintf(a.out, "%-8s %s\n", row[0], clean(row[1]))
		}
	}
	return nil
}

type triggerRemoveCmd struct {
	Triggers []string `arg:"" name:"name" help:"Names or ids."`
}

func (c *triggerRemoveCmd) Run(a *app) error {
	api, err := a.client()
	if err != nil {
		return err
	}
	for _, ref := range c.Triggers {
		if err := api.RemoveTrigger(a.ctx, ref); err != nil {
			return err
		}
	}
	return nil
}

type hookRotateCmd struct {
	Hook       string `arg:"" help:"Hook's name or id."`
	SecretFile string `placeholder:"FILE" help:"A file with the secret; - for standard input [the server makes one]."`
}

func (c *hookRotateCmd) Run(a *app) error {
	secret, err := webhookSecret(a, c.SecretFile)
	if err != nil {
		return err
	}
	given := ""
	if secret != nil {
		given = *secret
	}
	api, err := a.client()
	if err != nil {
		return err
	}
	made, err := api.RotateTrigger(a.ctx, c.Hook, given)
	if err == nil && made != "" {
		fmt.Fprintln(a.out, clean(made))
	}
	return err
}

type triggerRunCmd struct {
	Trigger string `arg:"" help:"Its name or id."`
	Payload string `placeholder:"FILE" help:"A file for the command to find in $CAY_PAYLOAD; - for standard input."`
	Type    string `default:"application/json" help:"Type of the payload [application/json]."`
	Detach  bool   `short:"d" help:"Do not wait: print the run's id."`
}

func (c *triggerRunCmd) Run(a *app) error {
	payload := []byte("{}")
	if c.Payload != "" {
		in := io.Reader(a.in)
		if c.Payload != "-" {
			f, err := os.Open(c.Payload)
			if err != nil {
				return cay.Wrap(cay.Invalid, err, "the payload cannot be read")
			}
			defer f.Close()
			in = f
		}
		var err error
		if payload, err = io.ReadAll(io.LimitReader(in, cay.MaxHookBody+1)); err != nil {
			return cay.Wrap(cay.Invalid, err, "the payload cannot be read")
		}
	}
	api, err := a.client()
	if err != nil {
		return err
	}
	run, err := api.StartRun(a.ctx, c.Trigger, c.Type, payload)
	if err != nil {
		return err
	}
	if c.Detach {
		if a.json {
			return a.printJSON(run)
		}
		fmt.Fprintln(a.out, clean(run.ID))
		return nil
	}
	for !run.Over() {
		select {
		case <-a.ctx.Done():
			return a.ctx.Err()
		case <-time.After(300 * time.Millisecond):
		}
		if run, err = api.TriggerRun(a.ctx, run.ID); err != nil {
			return err
		}
	}
	if err := showRun(a, run); err != nil {
		return err
	}
	if run.State != "succeeded" {
		return cay.Errorf(cay.Conflict, "the run %s", clean(run.State))
	}
	return nil
}

type triggerRunsCmd struct {
	Trigger string `arg:"" optional:"" help:"Name or id [all]."`
	State   string `help:"Only those that are waiting, running, succeeded, failed, cancelled or skipped."`
	Limit   int    `default:"25" help:"How many [25]."`
}

func (c *triggerRunsCmd) Run(a *app) error {
	api, err := a.client()
	if err != nil {
		return err
	}
	list, err := api.TriggerRuns(a.ctx, client.TriggerRunOptions{Trigger: c.Trigger, State: c.State, Limit: c.Limit})
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(list)
	}
	triggers, err := api.Triggers(a.ctx)
	if err != nil {
		return err
	}
	names := map[string]string{}
	for _, x := range triggers {
		names[x.ID] = x.Name
	}
	t := table{header: []string{"RUN", "OF", "EVENT", "STATE", "STATUS", "TRIES", "QUEUED", "TOOK", "SANDBOX"}}
	now := time.Now()
	for _, r := range list {
		t.add(clean(r.ID), clean(or(names[r.TriggerID], r.TriggerID)), clean(r.Event), clean(r.State), statusOf(r), fmt.Sprint(r.Attempt), ago(r.QueuedAt, now), tookOf(r), clean(r.SandboxID))
	}
	t.print(a.out, width(a.out))
	return nil
}

// statusOf is the exit status of a run's command, or why there is none.
func statusOf(r client.TriggerRun) string {
	switch {
	case r.Error != "":
		return clean(r.Error)
	case r.ExitCode != nil:
		return fmt.Sprint(*r.ExitCode)
	}
	return "–"
}

func tookOf(r client.TriggerRun) string {
	if r.StartedAt.IsZero() || r.EndedAt.IsZero() {
		return "–"
	}
	return r.EndedAt.Sub(r.StartedAt).Round(time.Millisecond).String()
}

type triggerLogCmd struct {
	ID string `arg:"" name:"run" help:"Run's id."`
}

func (c *triggerLogCmd) Run(a *app) error {
	api, err := a.client()
	if err != nil {
		return err
	}
	run, err := api.TriggerRun(a.ctx, c.ID)
	if err != nil {
		return err
	}
	return showRun(a, run)
}

func showRun(a *app, r client.TriggerRun) error {
	if a.json {
		return a.printJSON(r)
	}
	fmt.Fprintf(a.err, "%s: %s, status %s, took %s\n", clean(r.ID), clean(r.State), statusOf(r), tookOf(r))
	_, err := io.WriteString(a.out, text.CleanLines(r.Output))
	return err
}

type triggerCancelCmd struct {
	ID string `arg:"" name:"run" help:"Run's id."`
}

func (c *triggerCancelCmd) Run(a *app) error {
	api, err := a.client()
	if err != nil {
		return err
	}
	return api.CancelRun(a.ctx, c.ID)
}
