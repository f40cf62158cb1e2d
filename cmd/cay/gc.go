package main

import (
	"fmt"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/operator"
)

type gcCmd struct {
	DryRun bool `short:"n" help:"Only say what would be removed."`
	ofNode
}

// Help says what is garbage.
func (gcCmd) Help() string {
	return "The server does it by itself every hour. Snapshots and root images go that no template, sandbox or checkpoint needs; " +
		"layers, archives and pulled images that no build has used for two weeks. Images that were imported stay."
}

func (c *gcCmd) Run(a *app) error {
	var found []cay.Garbage
	err := a.wait("looking for what nothing needs", func() (err error) {
		found, err = c.collect(a)
		return err
	})
	if a.json {
		type item struct {
			Kind  string `json:"kind"`
			Name  string `json:"name"`
			Bytes int64  `json:"bytes"`
		}
		out := []item{}
		for _, g := range found {
			out = append(out, item(g))
		}
		if err != nil {
			return err
		}
		return a.printJSON(out)
	}
	if len(found) > 0 {
		t, total := table{header: []string{"KIND", "NAME", "SIZE"}}, int64(0)
		for _, g := range found {
			t.add(g.Kind, clean(g.Name), volume(g.Bytes))
			total += g.Bytes
		}
		t.print(a.out, width(a.out))
		done := "removed"
		if c.DryRun {
			done = "would be removed"
		}
		fmt.Fprintf(a.err, "  %s %s\n", volume(total), done)
	} else if err == nil {
		fmt.Fprintln(a.err, "  nothing to remove")
	}
	cfg, _ := a.config() // which was read before
	if l, asked := operator.Ask(cfg).Loading(a.ctx); c.Node == "" && asked == nil && l.Removed > 0 {
		fmt.Fprintf(a.err, "  %s of %d removed snapshots stay until the sandboxes have ended that read their files\n", volume(l.Kept), l.Removed)
	}
	return err
}

func (c *gcCmd) collect(a *app) (out []cay.Garbage, err error) {
	if c.Node == "" {
		cfg, err := a.config()
		if err != nil {
			return nil, err
		}
		return operator.Ask(cfg).Collect(a.ctx, c.DryRun)
	}
	api, node, err := c.at(a)
	if err != nil {
		return nil, err
	}
	do := api.CollectGarbage
	if c.DryRun {
		do = api.Garbage
	}
	found, err := do(a.ctx, node)
	for _, g := range found {
		out = append(out, cay.Garbage(g))
	}
	return out, err
}
