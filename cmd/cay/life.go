package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/client"
)

type pauseCmd struct {
	IDs       []string `arg:"" name:"id" help:"Sandboxes' ids."`
	FilesOnly bool     `help:"Keep files without memory and processes: smaller, and it boots when it is resumed."`
	Durable   bool     `help:"Return when the server's bucket has what was saved."`
}

// Help says what is kept.
func (pauseCmd) Help() string {
	return "Memory, processes and files are kept on disk, at no CPU and no memory, until: cay sandbox resume ID"
}

func (c *pauseCmd) Run(a *app) error {
	return a.each(c.IDs, "pausing", func(api *client.Client, id string) error {
		switch {
		case c.Durable:
			return api.PauseDurably(a.ctx, id, c.FilesOnly)
		case c.FilesOnly:
			return api.PauseFiles(a.ctx, id)
		}
		return api.Pause(a.ctx, id)
	})
}

type resumeCmd struct {
	IDs       []string      `arg:"" name:"id" help:"Sandboxes' ids."`
	Timeout   time.Duration `default:"5m" help:"When they end by themselves."`
	FilesOnly bool          `help:"Boot them from their files and leave their memory, if any was kept."`
}

func (c *resumeCmd) Run(a *app) error {
	if err := checkTimeout(c.Timeout); err != nil {
		return err
	}
	return a.each(c.IDs, "resuming", func(api *client.Client, id string) error {
		start := api.Connect
		if c.FilesOnly {
			start = api.Boot
		}
		box, err := start(a.ctx, id, c.Timeout)
		if err == nil && box.Notice != "" {
			fmt.Fprintf(a.err, "%s: %s\n", clean(id), clean(box.Notice))
		}
		return err
	})
}

// each does something to sandboxes, one after another, and prints the ids of
// those that it succeeded for.
func (a *app) each(ids []string, doing string, do func(*client.Client, string) error) error {
	api, err := a.client()
	if err != nil {
		return err
	}
	var errs []error
	done := []string{}
	for _, id := range ids {
		if err := a.wait(doing+" "+clean(id), func() error { return do(api, id) }); err != nil {
			errs = append(errs, err)
			continue
		}
		done = append(done, id)
		if !a.json {
			fmt.Fprintln(a.out, clean(id))
		}
	}
	if a.json {
		errs = append(errs, a.printJSON(done))
	}
	return errors.Join(errs...)
}

type forkCmd struct {
	ID      string        `arg:"" help:"Sandbox's id."`
	Count   int           `short:"n" default:"1" help:"How many, up to 100."`
	Timeout time.Duration `default:"5m" help:"When they end by themselves."`
	From    string        `placeholder:"CHECKPOINT" help:"Make them as it was at a checkpoint: id or label."`
}

// Help says what a fork is.
func (forkCmd) Help() string {
	return "Forks are copies of a running sandbox, with its memory, processes and files of this moment, or of a checkpoint, and ids of their own. Their ids are printed; the sandbox runs on."
}

func (c *forkCmd) Run(a *app) error {
	if err := checkTimeout(c.Timeout); err != nil {
		return err
	}
	api, err := a.client()
	if err != nil {
		return err
	}
	var forks []*client.Sandbox
	failed := a.wait("forking "+clean(c.ID), func() error {
		if c.From == "" {
			forks, err = api.Fork(a.ctx, c.ID, c.Count, c.Timeout)
			return err
		}
		var from string
		if from, err = checkpointID(a, api, c.ID, c.From); err == nil {
			forks, err = api.ForkCheckpoint(a.ctx, from, c.Count, c.Timeout)
		}
		return err
	})
	if a.json {
		return errors.Join(failed, a.printJSON(append([]*client.Sandbox{}, forks...)))
	}
	for _, f := range forks {
		fmt.Fprintln(a.out, clean(f.ID))
	}
	return failed
}

type snapshotCmd struct {
	ID   string `arg:"" help:"Sandbox's id."`
	Name string `help:"Name to find it by; its newest state counts."`
}

// Help says what a snapshot is for.
func (snapshotCmd) Help() string {
	return "The sandbox runs on. The id that is printed can be given to: cay sandbox create"
}

func (c *snapshotCmd) Run(a *app) error {
	api, err := a.client()
	if err != nil {
		return err
	}
	var s client.Snapshot
	err = a.wait("saving "+clean(c.ID), func() error {
		s, err = api.Snapshot(a.ctx, c.ID, c.Name)
		return err
	})
	switch {
	case err != nil:
		return err
	case a.json:
		return a.printJSON(s)
	}
	fmt.Fprintln(a.out, clean(s.ID))
	return nil
}

func checkTimeout(d time.Duration) error {
	if d > 0 {
		return nil
	}
	return cay.Errorf(cay.Invalid, "--timeout must be more than 0, not %s", d).WithHint("e.g. --timeout 10m")
}
