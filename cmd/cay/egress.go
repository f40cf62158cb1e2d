package main

import (
	"fmt"
	"time"

	"github.com/cay-run/cay/client"
)

type egressCmd struct {
	ID     string `arg:"" name:"id" help:"Sandbox's id."`
	Denied bool   `help:"Only what was refused."`
}

// Help says what is listed.
func (egressCmd) Help() string {
	return "The latest connections that a policy refused, allowed by name, or sent through a proxy. " +
		"Connections that are allowed by address go straight through the kernel and are not listed."
}

func (c *egressCmd) Run(a *app) error {
	api, err := a.client()
	if err != nil {
		return err
	}
	list, err := api.Connections(a.ctx, c.ID)
	if err != nil {
		return err
	}
	shown := []client.Connection{}
	for _, x := range list {
		if !c.Denied || !x.Allowed {
			shown = append(shown, x)
		}
	}
	if a.json {
		return a.printJSON(shown)
	}
	if len(shown) == 0 {
		fmt.Fprintln(a.err, "nothing was refused, and nothing went by name")
		return nil
	}
	t := table{header: []string{"WHEN", "VERDICT", "PROTOCOL", "NAME", "ADDRESS", "SENT", "RECEIVED", "RULE"}}
	now := time.Now()
	for _, x := range shown {
		verdict := "denied"
		switch {
		case x.Open:
			verdict = "open"
		case x.Allowed:
			verdict = "allowed"
		}
		t.add(ago(x.At, now), verdict, clean(x.Protocol), clean(x.Name), clean(x.Address),
			fmt.Sprint(x.Sent), fmt.Sprint(x.Received), clean(x.Rule))
	}
	t.print(a.out, width(a.out))
	return nil
}
