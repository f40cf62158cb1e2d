package main

import (
	"github.com/cay-run/cay/client"
	"github.com/cay-run/cay/internal/cli/changes"
)

type diffCmd struct {
	ID   string `arg:"" help:"Sandbox's id."`
	From string `arg:"" optional:"" help:"Checkpoint's id or label; unless given, the newest that the sandbox comes from."`
	To   string `arg:"" optional:"" help:"Another one; unless given, the sandbox as it is now."`
	Stat bool   `help:"Only which files, not what is in them."`
}

// Help says what is compared.
func (diffCmd) Help() string {
	return "Files are compared, not memory: + was added, ~ changed, - removed, with a unified diff of text. A file whose time alone differs is the same."
}

func (c *diffCmd) Run(a *app) error {
	api, err := a.client()
	if err != nil {
		return err
	}
	var out client.Comparison
	err = a.wait("comparing", func() error {
		if c.From != "" {
			if c.From, err = checkpointID(a, api, c.ID, c.From); err != nil {
				return err
			}
		}
		if c.To == "" {
			out, err = api.Changes(a.ctx, c.ID, c.From)
			return err
		}
		if c.To, err = checkpointID(a, api, c.ID, c.To); err == nil {
			out, err = api.Compare(a.ctx, c.From, c.To)
		}
		return err
	})
	switch {
	case err != nil:
		return err
	case a.json:
		return a.printJSON(out)
	}
	changes.Print(a.out, out, !c.Stat, isTerminal(a.out))
	return nil
}
