package fleet

import (
	"context"
	"fmt"
	"strings"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control/ledger"
	"github.com/cay-run/cay/internal/store"
)

// LimitUse is a limit of a team, and what is used of it.
type LimitUse struct {
	Value int64 // 0 is no bound
	Own   bool  // it is set for this team; else it is the server's default
	Used  int64 // -1 for a rate
}

// Limits returns all limits of the caller's team, and what it uses of them now.
func (c *Catalogue) Limits(ctx context.Context, who cay.Caller) (map[cay.Limit]LimitUse, error) {
	if err := who.May(cay.ReadSandboxes); err != nil {
		return nil, err
	}
	return c.limits(ctx, who.Team)
}

func (c *Catalogue) limits(ctx context.Context, team cay.TeamID) (map[cay.Limit]LimitUse, error) {
	used, err := c.used(ctx, team)
	if err != nil {
		return nil, err
	}
	own, all := c.ledger.OwnLimits(team), c.ledger.Limits(team)
	out := make(map[cay.Limit]LimitUse)
	for _, one := range cay.AllLimits() {
		u := LimitUse{Value: all[one.Limit], Used: -1}
		_, u.Own = own[one.Limit]
		if n, counted := used[one.Limit]; counted {
			u.Used = n
		}
		out[one.Limit] = u
	}
	return out, nil
}

// used counts what a team has of what is counted.
func (c *Catalogue) used(ctx context.Context, team cay.TeamID) (map[cay.Limit]int64, error) {
	load, err := c.store.RunningOf(ctx, team, "")
	if err != nil {
		return nil, err
	}
	templates, err := c.ledger.CountTemplates(ctx, c.store, team)
	if err != nil {
		return nil, err
	}
	queue, err := c.store.QueuedBuilds(ctx)
	if err != nil {
		return nil, err
	}
	volumes, volumeMB, err := c.volumes(ctx, team)
	if err != nil {
		return nil, err
	}
	saved, err := c.node.SavedBytes(ctx, team)
	return map[cay.Limit]int64{
		cay.LimitSandboxes: int64(load.Sandboxes), cay.LimitCPUs: int64(load.Promised.CPUs),
		cay.LimitMemory: int64(load.Promised.MemoryMB), cay.LimitDisk: int64(load.Promised.DiskMB),
		cay.LimitTemplates: int64(templates), cay.LimitSnapshots: saved, cay.LimitBuilds: int64(store.BuildsOf(queue, team)),
		cay.LimitVolumes: volumes, cay.LimitVolumeMB: volumeMB,
	}, err
}

// volumes counts a team's volumes and their snapshots, and sums up their sizes.
func (c *Catalogue) volumes(ctx context.Context, team cay.TeamID) (n, sizeMB int64, err error) {
	all, err := c.store.Volumes(ctx, team)
	if err != nil {
		return 0, 0, err
	}
	for _, v := range all {
		sizeMB += int64(v.SizeMB)
	}
	saved, err := c.store.VolumeSnapshots(ctx, team, "")
	for _, s := range saved {
		sizeMB += int64(s.SizeMB)
	}
	return int64(len(all) + len(saved)), sizeMB, err
}

// LimitChange says what limits become: a value, or nil for the server's default.
type LimitChange map[cay.Limit]*int64

// ChangeLimits changes the limits of the caller's team that are named, or, with
// whole, replaces all: those that are not named become the server's defaults.
// They hold from the next request on. A limit below what is used ends nothing:
// new work is refused until less is used. It returns what Limits does.
func (c *Catalogue) ChangeLimits(ctx context.Context, who cay.Caller, change LimitChange, whole bool) (map[cay.Limit]LimitUse, error) {
	if err := who.May(cay.Admin); err != nil {
		return nil, err
	}
	names := cay.TeamLimits{}
	for name := range change {
		names[name] = 0
	}
	if err := names.Check(); err != nil { // also of those that become defaults
		return nil, err
	}
	err := c.ledger.ChangeLimits(ctx, who.Team,
		func(own cay.TeamLimits) cay.TeamLimits { return change.apply(own, whole) },
		func(before, after cay.TeamLimits) cay.Event {
			return ledger.NewEvent(who, cay.Sandbox{Team: who.Team}, cay.TeamLimitsChanged, cay.ReasonAsked, "limits", line(after), "before", line(before))
		})
	if err != nil {
		return nil, err
	}
	return c.limits(ctx, who.Team)
}

func (change LimitChange) apply(own cay.TeamLimits, whole bool) cay.TeamLimits {
	if own == nil || whole {
		own = cay.TeamLimits{}
	}
	for name, value := range change {
		if value == nil {
			delete(own, name)
		} else {
			own[name] = *value
		}
	}
	return own
}

// line shows the limits that are set.
func line(own cay.TeamLimits) string {
	var out []string
	for _, one := range cay.AllLimits() {
		if value, ok := own[one.Limit]; ok {
			out = append(out, fmt.Sprintf("%s=%d", one.Limit, value))
		}
	}
	if out == nil {
		return "defaults"
	}
	return strings.Join(out, " ")
}
