package main

import (
	"errors"
	"fmt"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/config"
	"github.com/cay-run/cay/internal/machine/host"
	"github.com/cay-run/cay/internal/machine/loopfs"
	"github.com/cay-run/cay/internal/operator"
)

// storageCmd is about the file system that the data directory may have of its
// own (docs/adr/0025).
type storageCmd struct {
	Status storageStatusCmd `cmd:"" default:"withargs" help:"Say whether templates share blocks, and how full the storage is."`
	Create storageCreateCmd `cmd:"" help:"Give the data directory a file system of its own, whose files share blocks."`
	Grow   storageGrowCmd   `cmd:"" help:"Make that file system larger."`
}

type storageStatusCmd struct {
	ofNode
}

func (c *storageStatusCmd) Run(a *app) error {
	if c.Node != "" {
		return c.ofAnother(a)
	}
	cfg, err := a.config()
	if err != nil {
		return err
	}
	s, err := loopfs.Look(cfg.Data)
	if err != nil {
		return err
	}
	down := loopfs.Down(cfg.Data)
	switch {
	case a.json:
		return errors.Join(a.printJSON(s), down)
	case down != nil:
		return down
	case !s.Exists:
		fmt.Fprintf(a.err, "  %s has no file system of its own; cay doctor says whether that costs anything\n", cfg.Data)
	case !s.Mounted:
		fmt.Fprintf(a.err, "  %s in %s, mounted when the server starts\n", volume(s.Bytes), cfg.Data)
	default:
		a.printStorage(cfg.Data, s.Device, s.Bytes, s.Free, s.Direct)
	}
	return nil
}

// ofAnother tells of the storage of a node's machine.
func (c *storageStatusCmd) ofAnother(a *app) error {
	api, node, err := c.at(a)
	if err != nil {
		return err
	}
	s, err := api.MachineStorage(a.ctx, node)
	switch {
	case err != nil:
		return err
	case a.json:
		return a.printJSON(s)
	case s.Down:
		return cay.Errorf(cay.Unavailable, "the file system of %s on node %s has shut itself down: the disk below it failed or is full", s.DataDirectory, node)
	case !s.Own:
		fmt.Fprintf(a.err, "  %s has no file system of its own; cay doctor says whether that costs anything\n", clean(s.DataDirectory))
		return nil
	}
	a.printStorage(clean(s.DataDirectory), clean(s.Device), s.Bytes, s.FreeBytes, s.Direct)
	return nil
}

func (a *app) printStorage(data, device string, bytes, free int64, direct bool) {
	t := table{header: []string{"DATA", "DEVICE", "SIZE", "FREE", "DIRECT"}}
	how := "yes"
	if !direct {
		how = "no: files that are read are in memory twice"
	}
	t.add(data, device, volume(bytes), volume(free), how)
	t.print(a.out, width(a.out))
}

type storageCreateCmd struct {
	Size string `placeholder:"SIZE" help:"Its share of the disk, e.g. 100GiB [the data that is there, and half of the free space]."`
}

// Help says what happens.
func (storageCreateCmd) Help() string {
	return "On ext4 every template takes its whole size. This makes an XFS in one file in the data directory, with all of its " +
		"room taken from the disk, and moves what is there into it. `cay up` mounts it over the directory, `cay down` takes it away. " +
		"Nothing of Cay may run meanwhile, and the disk must have room for both; an error, or a crash, leaves all as it was. " +
		"It needs mkfs.xfs (Debian's package is xfsprogs)."
}

func (c *storageCreateCmd) Run(a *app) error {
	cfg, size, err := a.storageOf(c.Size)
	if err != nil {
		return err
	}
	if err := a.wait("making a file system and moving "+cfg.Data+" into it", func() error {
		return host.CreateStorage(a.ctx, operator.Host(cfg), size)
	}); err != nil {
		return err
	}
	fmt.Fprintln(a.err, "  templates share blocks from now on, with those they are built from; cay up mounts what they are in")
	return nil
}

type storageGrowCmd struct {
	Size string `required:"" placeholder:"SIZE" help:"Its new size in all, e.g. 200GiB."`
}

func (c *storageGrowCmd) Run(a *app) error {
	cfg, size, err := a.storageOf(c.Size)
	if err != nil {
		return err
	}
	if err := loopfs.Grow(a.ctx, cfg.Data, size); err != nil {
		return err
	}
	fmt.Fprintf(a.err, "  %s in %s from now on\n", volume(size), cfg.Data)
	return nil
}

// storageOf reads the settings and a size; no size is 0.
func (a *app) storageOf(text string) (config.Config, int64, error) {
	cfg, err := a.config()
	if err != nil || text == "" {
		return cfg, 0, err
	}
	size, ok := config.Size(text)
	if !ok || size == 0 {
		return cfg, 0, cay.Errorf(cay.Invalid, "--size %q is no size such as 100GiB", text)
	}
	return cfg, size, nil
}
