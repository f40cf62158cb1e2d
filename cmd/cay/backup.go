package main

import (
	"fmt"

	"github.com/cay-run/cay/internal/operator"
)

type backupCmd struct {
	File string `arg:"" help:"New file for the archive."`
}

// Help says what is in it.
func (backupCmd) Help() string {
	return "On the server's machine, as root, while the server runs. The archive has the records as they are at one moment, and all keys: " +
		"who has it has every sandbox and secret. Snapshots and images are not in it; they never change, so copy the directories " +
		"snapshots and images of the data directory after it, with any tool."
}

func (c *backupCmd) Run(a *app) error {
	cfg, err := a.config()
	if err != nil {
		return err
	}
	if err := operator.Ask(cfg).Backup(a.ctx, c.File); err != nil {
		return err
	}
	fmt.Fprintf(a.err, "  records and keys are in %s\n", c.File)
	return nil
}

type restoreCmd struct {
	File string `arg:"" help:"An archive of cay backup."`
}

// Help says how.
func (restoreCmd) Help() string {
	return "Into a data directory without records and keys, with no server running. Copy snapshots and images back beside it, then start " +
		"the server: paused sandboxes and templates are as they were; those that ran have ended."
}

func (c *restoreCmd) Run(a *app) error {
	cfg, err := a.config()
	if err != nil {
		return err
	}
	if err := operator.Restore(a.ctx, cfg, c.File); err != nil {
		return err
	}
	fmt.Fprintf(a.err, "  records and keys are in %s; start the server: cay up\n", cfg.Data)
	return nil
}
