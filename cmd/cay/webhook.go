package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/client"
)

type webhookCmd struct {
	Create     webhookCreateCmd     `cmd:"" help:"Have events sent to an address; prints the id, and the secret once."`
	List       webhookListCmd       `cmd:"" aliases:"ls" help:"List the team's webhooks."`
	Show       webhookShowCmd       `cmd:"" help:"Show a webhook."`
	Update     webhookUpdateCmd     `cmd:"" help:"Change a webhook, or turn it on or off."`
	Remove     webhookRemoveCmd     `cmd:"" aliases:"rm" help:"Forget webhooks."`
	Deliveries webhookDeliveriesCmd `cmd:"" help:"List what was sent to a webhook in the last week, and how that went."`
	Test       webhookTestCmd       `cmd:"" help:"Send an event to try a webhook, and say how that went."`
	Redeliver  webhookRedeliverCmd  `cmd:"" help:"Send an event of the last week once more."`
	Rotate     webhookRotateCmd     `cmd:"" help:"Give a webhook another secret; the old one signs too for a day."`
}

// maxWebhookSecret is more than any secret may have.
const maxWebhookSecret = 4 << 10

// webhookSecret reads the secret of --secret-file: a command line is no place
// for one.
func webhookSecret(a *app, file string) (*string, error) {
	if file == "" {
		return nil, nil
	}
	in := io.Reader(a.in)
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return nil, cay.Wrap(cay.Invalid, err, "the secret cannot be read")
		}
		defer f.Close()
		in = f
	}
	text, err := io.ReadAll(io.LimitReader(in, maxWebhookSecret))
	if err != nil {
		return nil, cay.Wrap(cay.Invalid, err, "the secret cannot be read")
	}
	secret := strings.TrimRight(string(text), "\r\n")
	return &secret, nil
}

type webhookCreateCmd struct {
	URL        string   `arg:"" help:"Where requests go, such as https://example.com/hook."`
	Events     []string `short:"e" name:"event" default:"*" help:"Types of events, E2B's or Cay's; * is all of Cay's [*]."`
	Name       string   `help:"Its name [the address's host]."`
	SecretFile string   `placeholder:"FILE" help:"A file with the secret that signs requests; - for standard input [the server makes one]."`
	Disabled   bool     `help:"Send nothing before it is turned on."`
}

func (c *webhookCreateCmd) Run(a *app) error {
	secret, err := webhookSecret(a, c.SecretFile)
	if err != nil {
		return err
	}
	api, err := a.client()
	if err != nil {
		return err
	}
	_, name, _ := strings.Cut(c.URL, "://")
	name, _, _ = strings.Cut(name, "/")
	name, on := or(c.Name, name), !c.Disabled
	w, err := api.CreateWebhook(a.ctx, client.WebhookOptions{Name: &name, URL: &c.URL, Events: c.Events, Enabled: &on, SignatureSecret: secret})
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(w)
	}
	fmt.Fprintln(a.out, clean(w.ID))
	if w.SignatureSecret != "" {
		fmt.Fprintf(a.err, "the secret, shown this once: %s\n", clean(w.SignatureSecret))
	}
	return nil
}

type webhookListCmd struct{}

func (webhookListCmd) Run(a *app) error {
	api, err := a.client()
	if err != nil {
		return err
	}
	list, err := api.Webhooks(a.ctx)
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(list)
	}
	t := table{header: []string{"ID", "NAME", "STATE", "EVENTS", "URL"}}
	for _, w := range list {
		t.add(clean(w.ID), clean(w.Name), webhookState(w, time.Now()), clean(strings.Join(w.Events, " ")), clean(w.URL))
	}
	t.print(a.out, width(a.out))
	return nil
}

// webhookState says in words whether a webhook works.
func webhookState(w client.Webhook, now time.Time) string {
	switch {
	case !w.Enabled && w.DisabledReason != "":
		return "off: " + clean(w.DisabledReason)
	case !w.Enabled:
		return "off"
	case !w.FailingSince.IsZero():
		return "failing since " + ago(w.FailingSince, now)
	}
	return "on"
}

type webhookShowCmd struct {
	ID string `arg:"" help:"Webhook's id."`
}

func (c *webhookShowCmd) Run(a *app) error {
	api, err := a.client()
	if err != nil {
		return err
	}
	w, err := api.Webhook(a.ctx, c.ID)
	if err != nil {
		return err
	}
	return showWebhook(a, w)
}

func showWebhook(a *app, w client.Webhook) error {
	if a.json {
		return a.printJSON(w)
	}
	now := time.Now()
	for _, row := range [][2]string{
		{"id", w.ID}, {"name", w.Name}, {"url", w.URL}, {"events", strings.Join(w.Events, " ")}, {"state", webhookState(w, now)}, {"created", ago(w.CreatedAt, now)},
	} {
		fmt.Fprintf(a.out, "%-8s %s\n", row[0], clean(row[1]))
	}
	return nil
}

type webhookUpdateCmd struct {
	ID         string   `arg:"" help:"Webhook's id."`
	URL        *string  `help:"Another address."`
	Events     []string `short:"e" name:"event" help:"Types of events, in place of all."`
	Name       *string  `help:"Another name."`
	Enable     bool     `xor:"state" help:"Turn it on, from what happens now on."`
	Disable    bool     `xor:"state" help:"Turn it off."`
	SecretFile string   `placeholder:"FILE" help:"A file with another secret; - for standard input."`
}

func (c *webhookUpdateCmd) Run(a *app) error {
	secret, err := webhookSecret(a, c.SecretFile)
	if err != nil {
		return err
	}
	api, err := a.client()
	if err != nil {
		return err
	}
	o := client.WebhookOptions{Name: c.Name, URL: c.URL, Events: c.Events, SignatureSecret: secret}
	if c.Enable || c.Disable {
		o.Enabled = &c.Enable
	}
	w, err := api.UpdateWebhook(a.ctx, c.ID, o)
	if err != nil {
		return err
	}
	return showWebhook(a, w)
}

type webhookRemoveCmd struct {
	IDs []string `arg:"" name:"id" help:"Ids of webhooks."`
}

func (c *webhookRemoveCmd) Run(a *app) error {
	api, err := a.client()
	if err != nil {
		return err
	}
	for _, id := range c.IDs {
		if err := api.RemoveWebhook(a.ctx, id); err != nil {
			return err
		}
	}
	return nil
}

type webhookDeliveriesCmd struct {
	ID     string `arg:"" help:"Webhook's id."`
	Failed bool   `help:"Only those whose last attempt failed."`
	Limit  int    `default:"25" help:"How many, the newest first [25]."`
}

func (c *webhookDeliveriesCmd) Run(a *app) error {
	api, err := a.client()
	if err != nil {
		return err
	}
	o := client.DeliveryOptions{Limit: c.Limit}
	if c.Failed {
		o.Status = "failed"
	}
	list, err := api.WebhookDeliveries(a.ctx, c.ID, o)
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(list)
	}
	t := table{header: []string{"EVENT", "TYPE", "SANDBOX", "ATTEMPTS", "LAST", "TOOK", "OUTCOME"}}
	now := time.Now()
	for _, d := range list {
		last := d.Attempts[len(d.Attempts)-1]
		t.add(clean(d.EventID), clean(d.EventType), clean(d.SandboxID), fmt.Sprint(len(d.Attempts)), ago(last.Timestamp, now),
			fmt.Sprintf("%dms", last.DurationMs), outcomeOf(last, now))
	}
	t.print(a.out, width(a.out))
	return nil
}

// outcomeOf says how an attempt went, and what follows.
func outcomeOf(x client.WebhookAttempt, now time.Time) string {
	if x.Status == "success" {
		return fmt.Sprint(x.ResponseStatus)
	}
	out := clean(x.ErrorMessage)
	if !x.NextAttemptAt.IsZero() {
		out += "; again in " + max(0, x.NextAttemptAt.Sub(now)).Round(time.Second).String()
	}
	return out
}

type webhookTestCmd struct {
	ID string `arg:"" help:"Webhook's id."`
}

func (c *webhookTestCmd) Run(a *app) error {
	api, err := a.client()
	if err != nil {
		return err
	}
	out, err := api.TestWebhook(a.ctx, c.ID)
	if err != nil {
		return err
	}
	if a.json {
		if err := a.printJSON(out); err != nil {
			return err
		}
	}
	if !out.Success {
		return cay.Errorf(cay.Unavailable, "%s: %s", clean(out.ErrorClass), clean(out.ErrorMessage))
	}
	if !a.json {
		fmt.Fprintf(a.out, "%d after %dms\n", out.StatusCode, out.DurationMs)
	}
	return nil
}

type webhookRedeliverCmd struct {
	ID    string `arg:"" help:"Webhook's id."`
	Event string `arg:"" help:"Event's id, as deliveries shows it."`
}

func (c *webhookRedeliverCmd) Run(a *app) error {
	api, err := a.client()
	if err != nil {
		return err
	}
	return api.RedeliverWebhook(a.ctx, c.ID, c.Event)
}

type webhookRotateCmd struct {
	ID         string `arg:"" help:"Webhook's id."`
	SecretFile string `placeholder:"FILE" help:"A file with the secret; - for standard input [the server makes one]."`
}

func (c *webhookRotateCmd) Run(a *app) error {
	secret, err := webhookSecret(a, c.SecretFile)
	if err != nil {
		return err
	}
	api, err := a.client()
	if err != nil {
		return err
	}
	asked := ""
	if secret != nil {
		asked = *secret
	}
	made, err := api.RotateWebhook(a.ctx, c.ID, asked)
	if err != nil || made == "" {
		return err
	}
	if a.json {
		return a.printJSON(map[string]string{"signatureSecret": made})
	}
	fmt.Fprintln(a.out, clean(made))
	return nil
}
