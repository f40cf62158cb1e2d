package main

import (
	"context"
	"fmt"
	"time"

	"github.com/cay-run/cay/client"
)

type teamCmd struct {
	Create  teamCreateCmd  `cmd:"" help:"Make a team, and with --key its first key."`
	List    teamListCmd    `cmd:"" aliases:"ls" help:"List all teams."`
	Show    teamShowCmd    `cmd:"" help:"Tell of a team and what it has."`
	Rename  teamRenameCmd  `cmd:"" help:"Give a team another name."`
	Disable teamDisableCmd `cmd:"" help:"Have a team's credentials open nothing, and end what they hold open."`
	Enable  teamEnableCmd  `cmd:"" help:"Have the credentials of a disabled team open again what they did."`
	Limits  teamLimitsCmd  `cmd:"" help:"The limits of a team."`
	Remove  teamRemoveCmd  `cmd:"" aliases:"rm" help:"Remove teams."`
}

type teamCreateCmd struct {
	Name string `arg:"" help:"Its name: lower-case letters, digits, '.', '_' and '-'."`
	Key  string `placeholder:"NAME" help:"Make a key of that name too. It is shown this once."`
}

func (c *teamCreateCmd) Run(a *app) error {
	api, err := a.admin("")
	if err != nil {
		return err
	}
	t, err := api.CreateTeam(a.ctx, c.Name)
	if err != nil {
		return err
	}
	var key client.APIKey
	if c.Key != "" {
		in, err := a.admin(t.ID)
		if err != nil {
			return err
		}
		if key, err = in.CreateAPIKey(a.ctx, client.NewAPIKey{Name: c.Key}); err != nil {
			return err
		}
	}
	if a.json {
		out := struct {
			client.Team
			Key string `json:"key,omitempty"`
		}{t, key.Key}
		return a.printJSON(out)
	}
	fmt.Fprintln(a.out, clean(t.ID))
	if key.Key != "" {
		fmt.Fprintln(a.out, clean(key.Key))
	}
	return nil
}

type teamListCmd struct{}

func (teamListCmd) Run(a *app) error {
	api, err := a.admin("")
	if err != nil {
		return err
	}
	list, err := api.Teams(a.ctx)
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(append([]client.Team{}, list...))
	}
	t := table{header: []string{"NAME", "ID", "CREATED", "STATE"}}
	for _, one := range list {
		t.add(clean(one.Name), clean(one.ID), ago(one.CreatedAt, time.Now()), teamState(one))
	}
	t.print(a.out, width(a.out))
	return nil
}

func teamState(t client.Team) string {
	if t.Disabled {
		return "disabled"
	}
	return "enabled"
}

type teamRef struct {
	Team string `arg:"" help:"Its name or id."`
}

type teamShowCmd struct{ teamRef }

func (c *teamShowCmd) Run(a *app) error {
	return a.oneTeam(func(ctx context.Context, api *client.Client) (client.Team, error) { return api.Team(ctx, c.Team) })
}

type teamRenameCmd struct {
	teamRef
	Name string `arg:"" help:"The new name."`
}

func (c *teamRenameCmd) Run(a *app) error {
	return a.oneTeam(func(ctx context.Context, api *client.Client) (client.Team, error) {
		return api.RenameTeam(ctx, c.Team, c.Name)
	})
}

type teamDisableCmd struct{ teamRef }

func (c *teamDisableCmd) Run(a *app) error {
	return a.oneTeam(func(ctx context.Context, api *client.Client) (client.Team, error) {
		return api.DisableTeam(ctx, c.Team, false)
	})
}

type teamEnableCmd struct{ teamRef }

func (c *teamEnableCmd) Run(a *app) error {
	return a.oneTeam(func(ctx context.Context, api *client.Client) (client.Team, error) {
		return api.DisableTeam(ctx, c.Team, true)
	})
}

// oneTeam does something with a team and tells of it.
func (a *app) oneTeam(do func(context.Context, *client.Client) (client.Team, error)) error {
	api, err := a.admin("")
	if err != nil {
		return err
	}
	t, err := do(a.ctx, api)
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(t)
	}
	fmt.Fprintf(a.out, "%s (%s): %s, made %s\n", clean(t.Name), clean(t.ID), teamState(t), ago(t.CreatedAt, time.Now()))
	if has := t.Has; has != nil {
		fmt.Fprintf(a.out, "sandboxes: %d running, %d paused; templates and snapshots: %d; API keys: %d; secrets: %d\n",
			has.Running, has.Paused, has.Templates, has.Keys, has.Secrets)
	}
	return nil
}

type teamRemoveCmd struct {
	Teams []string `arg:"" name:"team" help:"Names or ids."`
	Force bool     `help:"Also with all that they have: sandboxes end, templates, snapshots, images, secrets and keys go."`
}

func (c *teamRemoveCmd) Run(a *app) error {
	api, err := a.admin("")
	if err != nil {
		return err
	}
	for _, ref := range c.Teams {
		if err := api.RemoveTeam(a.ctx, ref, c.Force); err != nil {
			return err
		}
	}
	return nil
}
