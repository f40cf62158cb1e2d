package main

import (
	"errors"
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
	Name   string `arg:"" help:"Template's name: code-interpreter-newer, desktop, mcp-gateway, docker, devcontainer, claude-agent or codex."`
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
	return a.withTrees(func(b *image.Builder, p image.Progress) error {
		return b.Prepare(a.ctx, image.CodeInterpreterPython(), p)
	})
}

// withTrees does something to the trees of the data directory. Neither server
// nor engine is needed.
func (a *app) withTrees(do func(b *image.Builder, p image.Progress) error) error {
	cfg, err := a.config()
	if err != nil {
		return err
	}
	if err := loopfs.Mount(a.ctx, cfg.Data); err != nil {
		return err
	}
	if err := os.MkdirAll(cfg.Data, 0o711); err != nil {
		return cay.Wrap(cay.Unavailable, err, "cannot make the directory %s", cfg.Data).WithHint("run as root, or set CAY_DATA_DIR")
	}
	p := newProgress(a.err)
	defer p.end()
	return do(image.NewBuilder(cfg.Data, nil), p.update)
}

type templatePackCmd struct {
	File  string   `arg:"" help:"File to write."`
	Names []string `arg:"" optional:"" help:"Templates' names; none means those that every server has."`
}

// Help says what is in the file.
func (templatePackCmd) Help() string {
	return "As root, on a machine with a network; no server need run. The file holds the packages that the templates are made of, " +
		"for the same version of Cay and the same architecture, and nothing that belongs to this machine but the mirrors that it asked."
}

func (c *templatePackCmd) Run(a *app) error {
	names := c.Names
	if len(names) == 0 {
		names = builtin.Names()
	}
	recipes, err := builtin.Recipes(names...)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(c.File, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return cay.Wrap(cay.Invalid, err, "cannot write %s: %v", c.File, err)
	}
	err = a.withTrees(func(b *image.Builder, p image.Progress) error { return b.Pack(a.ctx, f, recipes, p) })
	if err := errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, os.Remove(c.File))
	}
	return nil
}

type templateUnpackCmd struct {
	File string `arg:"" help:"File that cay template pack wrote."`
}

// Help says when to use it.
func (templateUnpackCmd) Help() string {
	return "As root, before the server's first start or its start after an upgrade: it then builds its templates of them, without a network."
}

func (c *templateUnpackCmd) Run(a *app) error {
	recipes, err := builtin.Recipes(append(builtin.Names(), builtin.Extras()...)...)
	if err != nil {
		return err
	}
	f, err := os.Open(c.File)
	if err != nil {
		return cay.Wrap(cay.Invalid, err, "cannot read %s: %v", c.File, err)
	}
	defer f.Close()
	return a.withTrees(func(b *image.Builder, p image.Progress) error { return b.Unpack(a.ctx, f, recipes, p) })
}
