package main

import (
	"fmt"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/client"
	"github.com/cay-run/cay/internal/operator"
)

// snapshotsCmd is about the snapshots on this machine's disk, of all teams.
type snapshotsCmd struct {
	List   machineSnapshotsCmd `cmd:"" aliases:"ls" help:"List the snapshots of this machine, of all teams."`
	Verify verifyCmd           `cmd:"" help:"Read snapshots of this machine and name what is damaged."`
}

type machineSnapshotsCmd struct {
	ofNode
}

// Help says where their files are.
func (machineSnapshotsCmd) Help() string {
	return "Those of templates, of paused sandboxes, checkpoints, and those that clients took. The files of those that were evicted from the disk are " +
		"in the bucket alone, and come back when they are needed."
}

func (c *machineSnapshotsCmd) Run(a *app) error {
	api, node, err := c.at(a)
	if err != nil {
		return err
	}
	all, err := api.MachineSnapshots(a.ctx, node)
	switch {
	case err != nil:
		return err
	case a.json:
		return a.printJSON(append([]client.MachineSnapshot{}, all...))
	}
	t := table{header: []string{"ID", "KIND", "SIZE", "CREATED", "FILES", "SANDBOX", "TEAM"}}
	for _, s := range all {
		kind, bytes, created, where := s.Kind, volume(s.Bytes), "", "disk"
		if s.Evicted {
			where = "bucket"
		}
		if s.Kind == "" {
			kind, bytes = "damaged, or on its way out", ""
		}
		if s.CreatedAt != nil {
			created = ago(*s.CreatedAt, time.Now())
		}
		t.add(s.ID, kind, bytes, created, where, s.Sandbox, s.Team)
	}
	t.print(a.out, width(a.out))
	return nil
}

type verifyCmd struct {
	IDs []string `arg:"" optional:"" name:"id" help:"Snapshots or checkpoints; all when none is named."`
	ofNode
}

// Help says what is compared.
func (verifyCmd) Help() string {
	return "Compares every file of each snapshot with the checksum in its record: those of templates, of paused " +
		"sandboxes, and checkpoints. The server does it, if one runs. " +
		"The exit status is 1 when anything is damaged."
}

func (c *verifyCmd) Run(a *app) error {
	results, bad := []operator.Verified{}, 0
	err := c.verify(a, func(v operator.Verified) {
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

// verify reads the snapshots of this machine, or has a node read its own one by one.
func (c *verifyCmd) verify(a *app, tell func(operator.Verified)) error {
	if c.Node == "" {
		cfg, err := a.config()
		if err != nil {
			return err
		}
		return operator.Verify(a.ctx, cfg, c.IDs, tell)
	}
	api, node, err := c.at(a)
	if err != nil {
		return err
	}
	ids := c.IDs
	if len(ids) == 0 {
		all, err := api.MachineSnapshots(a.ctx, node)
		if err != nil {
			return err
		}
		for _, s := range all {
			if !s.Evicted {
				ids = append(ids, s.ID)
			}
		}
	}
	for _, id := range ids {
		v, err := api.VerifySnapshot(a.ctx, node, id)
		if len(c.IDs) == 0 && cay.KindOf(err) == cay.NotFound { // it was removed meanwhile
			continue
		}
		if err != nil {
			return err
		}
		tell(operator.Verified{ID: v.ID, Error: v.Damage})
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
