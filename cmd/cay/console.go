package main

import (
	"fmt"

	"github.com/cay-run/cay/client"
)

type consoleCmd struct {
	NoBrowser bool `help:"Print the link, and open no browser."`
}

// Help says what the link is.
func (*consoleCmd) Help() string {
	return "The link opens the console once, within two minutes: as the key of E2B_API_KEY, else as the person of cay login, " +
		"else, for root on the server's machine, as its operator. From another machine: ssh -L 7070:localhost:7070 HOST, then open the link."
}

func (c *consoleCmd) Run(a *app) error {
	link, err := a.consoleLink()
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(link)
	}
	fmt.Fprintln(a.out, clean(link.URL))
	if !c.NoBrowser {
		a.browse(link.URL)
	}
	return nil
}

// consoleLink makes a link with the credential that other commands use, else with
// the operator's.
func (a *app) consoleLink() (client.ConsoleLink, error) {
	cfg, err := a.server(client.Config{APIKey: a.getenv("E2B_API_KEY")})
	if err != nil {
		return client.ConsoleLink{}, err
	}
	cfg = a.loggedIn(cfg)
	var api *client.Client
	if cfg.APIKey == "" && cfg.Session == "" {
		api, err = a.admin("")
	} else {
		api, err = client.New(cfg)
	}
	if err != nil {
		return client.ConsoleLink{}, err
	}
	return api.ConsoleLink(a.ctx)
}
