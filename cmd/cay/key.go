package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/client"
)

type keyCmd struct {
	Create keyCreateCmd `cmd:"" help:"Make an API key. It is shown this once."`
	List   keyListCmd   `cmd:"" aliases:"ls" help:"List the team's API keys."`
	Rename keyRenameCmd `cmd:"" help:"Give an API key another name."`
	Expire keyExpireCmd `cmd:"" help:"Give an API key another end."`
	Remove keyRemoveCmd `cmd:"" aliases:"rm" help:"Have API keys open nothing any more, and end what they hold open."`
}

// ofTeam is a flag of commands that are about one team.
type ofTeam struct {
	Team string `placeholder:"TEAM" help:"Of this team, as the server's operator, in place of that of E2B_API_KEY."`
}

type keyCreateCmd struct {
	ofTeam
	Name     string            `arg:"" help:"Its name."`
	Scope    []string          `placeholder:"SCOPE" help:"A right that it has, as sandboxes:read, or a role: viewer, developer, owner [all that its maker may]."`
	Expires  string            `placeholder:"WHEN" help:"When it ends: a time as 24h or 30d from now, or 2027-01-31T00:00:00Z [never]."`
	Template []string          `placeholder:"TEMPLATE" help:"The only templates that it makes sandboxes of [any]."`
	Metadata map[string]string `placeholder:"KEY=VALUE" help:"Metadata of every sandbox that it makes."`
	Budget   []string          `sep:"none" placeholder:"METER=LIMIT/PERIOD" help:"A bound of its use, as money=50/month or creates=100/day; repeat it for more."`
	Action   string            `default:"pause" help:"The fate of running sandboxes when a budget is used up: refuse (they go on), pause or kill."`
}

// budgets are what --budget asks for.
func (c *keyCreateCmd) budgets() (list []client.NewBudget, err error) {
	for _, text := range c.Budget {
		meter, rest, ok := strings.Cut(text, "=")
		limit, period, also := strings.Cut(rest, "/")
		if !ok || !also || meter == "" || limit == "" || period == "" {
			return nil, cay.Errorf(cay.Invalid, "--budget: %.80q is no METER=LIMIT/PERIOD", text).WithHint("as money=50/month; periods are day, week, month and once")
		}
		list = append(list, client.NewBudget{Name: c.Name, Meter: meter, Limit: limit, Period: period, Action: c.Action})
	}
	return list, nil
}

// bound makes the budgets of a new key. When one cannot be made it removes the
// key, which was shown to no one yet, and the budgets before it.
func (a *app) bound(api *client.Client, key string, list []client.NewBudget) error {
	var made []string
	for _, b := range list {
		b.Key = key
		done, err := api.AddBudget(a.ctx, b)
		if err == nil {
			made = append(made, done.ID)
			continue
		}
		ctx := context.WithoutCancel(a.ctx)
		left := api.RemoveAPIKey(ctx, key)
		for _, id := range made {
			left = errors.Join(left, api.RemoveBudget(ctx, id))
		}
		if left != nil {
			fmt.Fprintf(a.err, "The key %s is left, without all of its budgets: %v\n", clean(key), left)
		}
		return err
	}
	return nil
}

func (c *keyCreateCmd) Run(a *app) error {
	ends, err := when(c.Expires, time.Now())
	if err != nil {
		return err
	}
	budgets, err := c.budgets()
	if err != nil {
		return err
	}
	api, err := a.inTeam(c.Team)
	if err != nil {
		return err
	}
	k, err := api.CreateAPIKey(a.ctx, client.NewAPIKey{
		Name: c.Name, Scopes: c.Scope, ExpiresAt: ends, Templates: c.Template, Metadata: c.Metadata,
	})
	if err != nil {
		return err
	}
	if err := a.bound(api, k.ID, budgets); err != nil {
		return err
	}
	if a.json {
		return a.printJSON(k)
	}
	fmt.Fprintln(a.out, clean(k.Key))
	return nil
}

// when reads a time: a duration from now, in which d are days, or a moment. Nil
// is for none.
func when(text string, now time.Time) (*time.Time, error) {
	if text == "" {
		return nil, nil
	}
	if at, err := time.Parse(time.RFC3339, text); err == nil {
		return &at, nil
	}
	d, err := time.ParseDuration(text)
	if days, whole := strings.CutSuffix(text, "d"); whole {
		var n int
		n, err = strconv.Atoi(days)
		d = time.Duration(min(n, 100_000)) * 24 * time.Hour
	}
	if err != nil || d <= 0 {
		return nil, cay.Errorf(cay.Invalid, "%.40q is no time ahead", text).WithHint("as 24h, 30d or 2027-01-31T00:00:00Z")
	}
	at := now.Add(d)
	return &at, nil
}

type keyListCmd struct{ ofTeam }

func (c *keyListCmd) Run(a *app) error {
	api, err := a.inTeam(c.Team)
	if err != nil {
		return err
	}
	list, err := api.APIKeys(a.ctx)
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(append([]client.APIKey{}, list...))
	}
	now := time.Now()
	t := table{header: []string{"ID", "NAME", "KEY", "CREATED", "USED", "EXPIRES", "MAY"}}
	for _, k := range list {
		t.add(clean(k.ID), clean(k.Name), clean(k.Mask), ago(k.CreatedAt, now), agoOr(k.LastUsed, now, "never"),
			agoOr(k.ExpiresAt, now, "never"), clean(may(k)))
	}
	t.print(a.out, width(a.out))
	return nil
}

// may says in a few words what a key may do.
func may(k client.APIKey) string {
	text := strings.Join(k.Scopes, " ")
	if all := cay.TeamScopes.Names(); len(k.Scopes) >= len(all) {
		text = "everything"
	}
	if len(k.Templates) > 0 {
		text += " of " + strings.Join(k.Templates, ", ")
	}
	return text
}

func agoOr(t *time.Time, now time.Time, none string) string {
	if t == nil {
		return none
	}
	return ago(*t, now)
}

type keyRenameCmd struct {
	ofTeam
	ID   string `arg:"" help:"Its id."`
	Name string `arg:"" help:"The new name."`
}

func (c *keyRenameCmd) Run(a *app) error {
	api, err := a.inTeam(c.Team)
	if err != nil {
		return err
	}
	k, err := api.RenameAPIKey(a.ctx, c.ID, c.Name)
	if err == nil && a.json {
		return a.printJSON(k)
	}
	return err
}

type keyExpireCmd struct {
	ofTeam
	ID   string `arg:"" help:"Its id."`
	When string `arg:"" help:"As 24h, 30d or 2027-01-31T00:00:00Z; never for no end."`
}

func (c *keyExpireCmd) Run(a *app) error {
	var at *time.Time
	var err error
	if c.When != "never" {
		if at, err = when(c.When, time.Now()); err != nil {
			return err
		}
	}
	api, err := a.inTeam(c.Team)
	if err != nil {
		return err
	}
	k, err := api.ExpireAPIKey(a.ctx, c.ID, at)
	if err == nil && a.json {
		return a.printJSON(k)
	}
	return err
}

type keyRemoveCmd struct {
	ofTeam
	IDs []string `arg:"" name:"id" help:"Ids of keys."`
}

func (c *keyRemoveCmd) Run(a *app) error {
	api, err := a.inTeam(c.Team)
	if err != nil {
		return err
	}
	for _, id := range c.IDs {
		if err := api.RemoveAPIKey(a.ctx, id); err != nil {
			return err
		}
	}
	return nil
}
