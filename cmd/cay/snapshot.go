package main

import (
	"fmt"

	"github.com/cay-run/cay/internal/operator"
)

// snapshotsCmd is about the snapshots on this machine's disk, of all teams.
type snapshotsCmd struct {
	Verify verifyCmd `cmd:"" help:"Read snapshots of this machine and name what is damaged."`
}

type verifyCmd struct {
	IDs []string `arg:"" optional:"" name:"id" help:"Snapshots or checkpoints; all when none is named."`
}

// Help says what is compared.
func (verifyCmd) Help() string {
	return "Compares every file of each snapshot with the checksum in its record: those of templates, of paused " +
		"sandboxes, and checkpoints. The server does it, if one runs. " +
		"The exit status is 1 when anything is damaged."
}

func (c *verifyCmd) Run(a *app) error {
	cfg, err := a.config()
	if err != nil {
		return err
	}
	results, bad := []operator.Verified{}, 0
	err = operator.Verify(a.ctx, cfg, c.IDs, func(v operator.Verified) {
		results = append(results, v)
		if v.Error != "" {
			bad++
		}
		if !a.json {
			a.printVerified(v)
		}
	})
	if err != nil {
		return err
	}
	if a.json {
		if err := a.printJSON(results); err != nil {
			return err
		}
	} else {
		fmt.Fprintf(a.err, "%d snapshots, %d damaged\n", len(results), bad)
	}
	if bad > 0 {
		return exitStatus(1)
	}
	return nil
}

func (a *app) printVerified(v operator.Verified) {
	if v.Error != "" {
		fmt.Fprintf(a.out, "✗ %s  %s\n", v.ID, v.Error)
		return
	}
	fmt.Fprintf(a.out, "✓ %s\n", v.ID)
}
