package main

import (
	"fmt"
	"strconv"
	"time"

	"github.com/cay-run/cay/client"
)

type budgetCmd struct {
	Add    budgetAddCmd    `cmd:"" help:"Bound what is used in a period; prints the id."`
	List   budgetListCmd   `cmd:"" aliases:"ls" help:"List the team's budgets and what is used of each."`
	Set    budgetSetCmd    `cmd:"" help:"Change a budget."`
	Remove budgetRemoveCmd `cmd:"" aliases:"rm" help:"Remove budgets."`
}

type budgetAddCmd struct {
	ofTeam
	Meter    string            `required:"" help:"money, or a meter such as vcpu_seconds, memory_gib_seconds, creates."`
	Limit    string            `required:"" help:"How much, in the meter's unit or the currency, like 12.5."`
	Period   string            `default:"month" help:"day, week (from Monday), month, in UTC, or once."`
	Action   string            `default:"pause" help:"The fate of running sandboxes when it is used up: refuse (they go on), pause or kill. Creates and resumes are refused in any case."`
	Name     string            `help:"Its name."`
	Key      string            `placeholder:"ID" help:"Only what this API key makes."`
	Metadata map[string]string `placeholder:"KEY=VALUE" help:"Only sandboxes with this entry of metadata."`
}

func (c *budgetAddCmd) Run(a *app) error {
	api, err := a.inTeam(c.Team)
	if err != nil {
		return err
	}
	b, err := api.AddBudget(a.ctx, client.NewBudget{
		Name: c.Name, Key: c.Key, Metadata: c.Metadata, Meter: c.Meter, Limit: c.Limit, Period: c.Period, Action: c.Action,
	})
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(b)
	}
	fmt.Fprintln(a.out, clean(b.ID))
	if b.Exhausted {
		fmt.Fprintln(a.err, "It is used up already, and acts now.")
	}
	return nil
}

type budgetListCmd struct{ ofTeam }

func (c *budgetListCmd) Run(a *app) error {
	api, err := a.inTeam(c.Team)
	if err != nil {
		return err
	}
	list, err := api.Budgets(a.ctx)
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(append([]client.Budget{}, list...))
	}
	a.printBudgets(list)
	return nil
}

func (a *app) printBudgets(list []client.Budget) {
	t := table{header: []string{"ID", "NAME", "OF", "METER", "USED", "LIMIT", "%", "PERIOD", "AT 100 %", "BEGINS ANEW"}}
	for _, b := range list {
		of := "team"
		if b.Key != "" {
			of = "key " + b.Key
		}
		for key, value := range b.Metadata {
			of += " " + key + "=" + value
		}
		resets := "never"
		if b.ResetsAt != nil {
			resets = ago(*b.ResetsAt, time.Now())
		}
		t.add(clean(b.ID), clean(b.Name), clean(of), clean(b.Meter), clean(b.Used), clean(b.Limit), strconv.Itoa(b.Percent),
			clean(b.Period), clean(b.Action), resets)
	}
	t.print(a.out, width(a.out))
}

type budgetSetCmd struct {
	ofTeam
	ID     string  `arg:"" help:"Its id."`
	Limit  *string `help:"Another limit. Its thresholds are told anew."`
	Action *string `help:"refuse, pause or kill."`
	Name   *string `help:"Another name."`
}

func (c *budgetSetCmd) Run(a *app) error {
	api, err := a.inTeam(c.Team)
	if err != nil {
		return err
	}
	b, err := api.ChangeBudget(a.ctx, c.ID, client.BudgetChange{Name: c.Name, Limit: c.Limit, Action: c.Action})
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(b)
	}
	a.printBudgets([]client.Budget{b})
	return nil
}

type budgetRemoveCmd struct {
	ofTeam
	IDs []string `arg:"" name:"id" help:"Their ids."`
}

func (c *budgetRemoveCmd) Run(a *app) error {
	api, err := a.inTeam(c.Team)
	if err != nil {
		return err
	}
	for _, id := range c.IDs {
		if err := api.RemoveBudget(a.ctx, id); err != nil {
			return err
		}
	}
	return nil
}
