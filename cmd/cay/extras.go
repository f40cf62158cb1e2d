package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/cay-run/cay/internal/server"
	"github.com/cay-run/cay/internal/template"
)

type templateAddCmd struct {
	Name   string `arg:"" help:"Template's name: desktop."`
	Remove bool   `short:"d" help:"Take it away again; cay gc then gives its room on the disk back."`
}

// Help says what there is and what it costs.
func (templateAddCmd) Help() string {
	return "On the server's machine, as root, while the server runs. There is: " + strings.Join(template.Extras(), ", ") + ". " +
		"It takes minutes, the network and some gigabytes of disk; from then on the server keeps it and every team may use it."
}

func (c *templateAddCmd) Run(a *app) error {
	cfg, err := a.config()
	if err != nil {
		return err
	}
	if c.Remove {
		return server.RemoveExtra(a.ctx, cfg, c.Name)
	}
	begun := time.Now()
	p := newProgress(a.err)
	err = server.AddExtra(a.ctx, cfg, c.Name, p.update)
	p.end()
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(map[string]string{"name": c.Name})
	}
	fmt.Fprintf(a.err, "  %s is there after %s; make a sandbox: cay sandbox create %s\n",
		clean(c.Name), time.Since(begun).Round(100*time.Millisecond), clean(c.Name))
	return nil
}
