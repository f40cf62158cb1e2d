package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/client"
)

type memberCmd struct {
	Add    memberAddCmd    `cmd:"" help:"Add a person to the team, by e-mail address."`
	List   memberListCmd   `cmd:"" aliases:"ls" help:"List the team's members."`
	Role   memberRoleCmd   `cmd:"" help:"Give a member another role."`
	Remove memberRemoveCmd `cmd:"" aliases:"rm" help:"Have people be no members any more."`
}

type memberAddCmd struct {
	ofTeam
	Email string `arg:"" help:"The address, which a login has too."`
	Role  string `default:"developer" help:"viewer, developer, admin or owner."`
	Name  string `help:"The person's name."`
	Token string `placeholder:"NAME" help:"Make an access token of that name that stands for the person, as the server's operator. It is shown this once."`
}

func (c *memberAddCmd) Run(a *app) error {
	api, err := a.inTeam(c.Team)
	if err != nil {
		return err
	}
	m, err := api.AddMember(a.ctx, c.Email, c.Name, c.Role)
	if err != nil {
		return err
	}
	var token client.AccessToken
	if c.Token != "" {
		admin, err := a.admin("")
		if err != nil {
			return err
		}
		if token, err = admin.CreateTokenFor(a.ctx, m.ID, c.Token); err != nil {
			return err
		}
	}
	if a.json {
		return a.printJSON(struct {
			client.TeamMember
			Token string `json:"token,omitempty"`
		}{m, token.Token})
	}
	fmt.Fprintln(a.out, clean(m.ID))
	if token.Token != "" {
		fmt.Fprintln(a.out, clean(token.Token))
	}
	return nil
}

type memberListCmd struct{ ofTeam }

func (c *memberListCmd) Run(a *app) error {
	api, err := a.inTeam(c.Team)
	if err != nil {
		return err
	}
	list, err := api.TeamMembers(a.ctx)
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(append([]client.TeamMember{}, list...))
	}
	t := table{header: []string{"EMAIL", "ROLE", "NAME", "ADDED", "ID"}}
	for _, m := range list {
		t.add(clean(m.Email), clean(m.Role), clean(m.Name), ago(m.AddedAt, time.Now()), clean(m.ID))
	}
	t.print(a.out, width(a.out))
	return nil
}

type memberRoleCmd struct {
	ofTeam
	Member string `arg:"" help:"The address or id."`
	Role   string `arg:"" help:"viewer, developer, admin or owner."`
}

func (c *memberRoleCmd) Run(a *app) error {
	api, err := a.inTeam(c.Team)
	if err != nil {
		return err
	}
	id, err := a.memberID(api, c.Member)
	if err != nil {
		return err
	}
	return api.SetRole(a.ctx, id, c.Role)
}

// memberID finds the id of a member that may be given by address.
func (a *app) memberID(api *client.Client, ref string) (string, error) {
	if !strings.Contains(ref, "@") {
		return ref, nil
	}
	list, err := api.TeamMembers(a.ctx)
	for _, m := range list {
		if strings.EqualFold(m.Email, ref) {
			return m.ID, nil
		}
	}
	if err == nil {
		err = cay.Errorf(cay.NotFound, "member %s not found", ref).WithHint("`cay member list` shows the team's")
	}
	return "", err
}

type memberRemoveCmd struct {
	ofTeam
	Members []string `arg:"" name:"member" help:"Addresses or ids."`
}

func (c *memberRemoveCmd) Run(a *app) error {
	api, err := a.inTeam(c.Team)
	if err != nil {
		return err
	}
	for _, ref := range c.Members {
		id, err := a.memberID(api, ref)
		if err == nil {
			err = api.RemoveMember(a.ctx, id)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
