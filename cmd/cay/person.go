package main

import (
	"strings"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/client"
)

type personCmd struct {
	List    personListCmd    `cmd:"" aliases:"ls" help:"List all people of this server."`
	Disable personDisableCmd `cmd:"" help:"Have all that people have open nothing, and the API keys that they made."`
	Enable  personEnableCmd  `cmd:"" help:"Have what disabled people have open again what it did."`
}

type personListCmd struct{}

func (personListCmd) Run(a *app) error {
	api, err := a.admin("")
	if err != nil {
		return err
	}
	list, err := api.People(a.ctx)
	if err != nil {
		return err
	}
	return a.printPeople(list)
}

func (a *app) printPeople(list []client.Person) error {
	if a.json {
		return a.printJSON(append([]client.Person{}, list...))
	}
	t := table{header: []string{"EMAIL", "NAME", "STATE", "CREATED", "ID"}}
	for _, p := range list {
		state := "enabled"
		if p.Disabled {
			state = "disabled"
		}
		t.add(clean(p.Email), clean(p.Name), state, ago(p.CreatedAt, time.Now()), clean(p.ID))
	}
	t.print(a.out, width(a.out))
	return nil
}

type personDisableCmd struct {
	People []string `arg:"" name:"person" help:"Addresses or ids."`
}

func (c *personDisableCmd) Run(a *app) error { return a.disablePeople(c.People, false) }

type personEnableCmd struct {
	People []string `arg:"" name:"person" help:"Addresses or ids."`
}

func (c *personEnableCmd) Run(a *app) error { return a.disablePeople(c.People, true) }

// disablePeople disables people, or with off enables them. All of them are known
// before the first is changed.
func (a *app) disablePeople(refs []string, off bool) error {
	api, err := a.admin("")
	if err != nil {
		return err
	}
	known, err := api.People(a.ctx)
	if err != nil {
		return err
	}
	var ids []string
	for _, ref := range refs {
		id, err := personID(known, ref)
		if err != nil {
			return err
		}
		ids = append(ids, id)
	}
	var done []client.Person
	for _, id := range ids {
		p, err := api.DisablePerson(a.ctx, id, off)
		if err != nil {
			return err
		}
		done = append(done, p)
	}
	return a.printPeople(done)
}

func personID(known []client.Person, ref string) (string, error) {
	for _, p := range known {
		if p.ID == ref || strings.EqualFold(p.Email, ref) {
			return p.ID, nil
		}
	}
	return "", cay.Errorf(cay.NotFound, "person %s not found", ref).WithHint("`cay person list` shows all")
}
