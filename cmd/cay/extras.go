package main

import (
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/machine/loopfs"
	"github.com/cay-run/cay/internal/operator"
	"github.com/cay-run/cay/internal/template/builtin"
	"github.com/cay-run/cay/internal/template/image"
)

type templateAddCmd struct {
	Name   string `arg:"" help:"Template's name: code-interpreter-newer or desktop."`
	Remove bool   `short:"d" help:"Take it away again; cay gc then gives its room on the disk back."`
}

// Help says what there is and what it costs.
func (templateAddCmd) Help() string {
	return "On the server's machine, as root, while the server runs. There is: " + strings.Join(builtin.Extras(), ", ") + ". " +
		"It takes minutes, the network and some gigabytes of disk; from then on the server keeps it and every team may use it."
}

func (c *templateAddCmd) Run(a *app) error {
	cfg, err := a.config()
	if err != nil {
		return err
	}
	if c.Remove {
		return operator.Ask(cfg).RemoveExtra(a.ctx, c.Name)
	}
	begun := time.Now()
	p := newProgress(a.err)
	err = operator.Ask(cfg).AddExtra(a.ctx, c.Name, p.update)
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

type templateWaitCmd struct {
	Names []string `arg:"" optional:"" help:"Templates' names; none means all."`
}

// Help says which templates it is about.
func (templateWaitCmd) Help() string {
	return "On the server's machine, as root. A server builds the templates that Cay brings while it serves: the first time, " +
		"and again after an upgrade. Until then code-interpreter-v1 has Python alone, and the others are not there."
}

func (c *templateWaitCmd) Run(a *app) error {
	cfg, err := a.config()
	if err != nil {
		return err
	}
	p := newProgress(a.err)
	err = operator.Ask(cfg).WaitForTemplates(a.ctx, c.Names, p.update)
	p.end()
	return err
}

// templatePrepareCmd is for scripts/demo: a cay without its engine makes the
// tree of the first template while the engine is compiled.
type templatePrepareCmd struct{}

func (templatePrepareCmd) Run(a *app) error {
	cfg, err := a.config()
	if err != nil {
		return err
	}
	if err := loopfs.Down(cfg.Data); err != nil {
		return err
	}
	if err := os.MkdirAll(cfg.Data, 0o711); err != nil {
		return cay.Wrap(cay.Unavailable, err, "cannot make the directory %s", cfg.Data).WithHint("run as root, or set CAY_DATA_DIR")
	}
	p := newProgress(a.err)
	defer p.end()
	return image.NewBuilder(cfg.Data, nil).Prepare(a.ctx, image.CodeInterpreterPython(), p.update)
}
