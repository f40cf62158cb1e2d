package main

import (
	"fmt"
	"os"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/snapshot"
	"github.com/cay-run/cay/internal/storage"
)

// snapshotsCmd is about the snapshots on this machine's disk, whoever's they are.
type snapshotsCmd struct {
	Verify verifyCmd `cmd:"" help:"Read snapshots of this machine and name what is damaged."`
}

type verifyCmd struct {
	IDs []string `arg:"" optional:"" name:"id" help:"Snapshots or checkpoints; all when none is named."`
}

// Help says what is compared.
func (verifyCmd) Help() string {
	return "Compares every file of each snapshot with the checksum in its record: those of templates, of paused " +
		"sandboxes, and checkpoints. It works on the data directory, with or without a server running. " +
		"The exit status is 1 when anything is damaged."
}

// verified is what is said of one snapshot.
type verified struct {
	ID    string `json:"snapshotID"`
	Error string `json:"error,omitempty"`
}

func (c *verifyCmd) Run(a *app) error {
	cfg, err := a.config()
	if err != nil {
		return err
	}
	if _, err := os.Stat(cfg.Data); err != nil {
		return cay.Wrap(cay.NotFound, err, "there is no data directory %s", cfg.Data).
			WithHint("set CAY_DATA_DIR as it is set for the server")
	}
	if err := storage.Mount(a.ctx, cfg.Data); err != nil {
		return err
	}
	dir, err := snapshot.Open(cfg.Data)
	if err != nil {
		return err
	}
	ids := c.IDs
	if len(ids) == 0 {
		if ids, err = dir.IDs(); err != nil {
			return err
		}
	}
	results, bad := []verified{}, 0
	for _, id := range ids {
		err := dir.Verify(a.ctx, cay.SnapshotID(id))
		switch {
		case a.ctx.Err() != nil:
			return a.ctx.Err()
		case cay.KindOf(err) == cay.NotFound && len(c.IDs) == 0: // removed meanwhile
			continue
		case err != nil:
			bad++
			results = append(results, verified{ID: id, Error: err.Error()})
		default:
			results = append(results, verified{ID: id})
		}
		if !a.json {
			a.printVerified(results[len(results)-1])
		}
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

func (a *app) printVerified(v verified) {
	if v.Error != "" {
		fmt.Fprintf(a.out, "✗ %s  %s\n", v.ID, v.Error)
		return
	}
	fmt.Fprintf(a.out, "✓ %s\n", v.ID)
}
