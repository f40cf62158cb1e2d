package control_test

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/auth"
	"github.com/cay-run/cay/internal/control"
	"github.com/cay-run/cay/internal/control/controltest"
	"github.com/cay-run/cay/internal/control/fleet"
	"github.com/cay-run/cay/internal/control/logbook"
	"github.com/cay-run/cay/internal/store/storetest"
)

// BenchmarkCreate is what control adds to a create and a kill: the database is
// real, the node is one in memory that does both at once. Limits cost little,
// also where a thousand other teams have theirs and a sandbox that runs.
func BenchmarkCreate(b *testing.B) {
	b.Run("no limits", func(b *testing.B) { benchmarkCreate(b, nil, 0) })
	limits := cay.TeamLimits{cay.LimitSandboxes: 1e6, cay.LimitCPUs: 1e6, cay.LimitMemory: 1e9, cay.LimitDisk: 1e9}
	b.Run("limits", func(b *testing.B) { benchmarkCreate(b, limits, 0) })
	b.Run("limits of 1000 teams", func(b *testing.B) { benchmarkCreate(b, limits, 1000) })
}

func benchmarkCreate(b *testing.B, limits cay.TeamLimits, others int) {
	ctx := b.Context()
	must := func(err error) {
		b.Helper()
		if err != nil {
			b.Fatal(err)
		}
	}
	s := storetest.Open(b, filepath.Join(b.TempDir(), "cay.db"))
	logs, err := logbook.Open(b.TempDir())
	must(err)
	team, _, err := auth.FirstStart(ctx, s)
	must(err)
	tokens, err := auth.NewTokens(make([]byte, 32))
	must(err)
	c, err := control.Open(ctx, control.Config{Store: s, Node: controltest.NewNode(), NodeID: "n", Tokens: tokens, Logs: logs, TeamLimits: limits})
	must(err)
	_, err = c.Publish(ctx, fleet.Publication{
		Team: team.ID, Names: []string{"base"}, Public: true, Snapshot: "s1", RecipeDigest: "d1",
		Limits: cay.Limits{CPUs: 2, MemoryMB: 512, DiskMB: 1024},
	})
	must(err)
	caller := cay.ForTeam(team.ID)
	spec := cay.CreateSpec{Template: "base", Timeout: time.Hour, Secure: true, Network: cay.DefaultNetwork()}
	for i := range others {
		other := cay.Team{ID: cay.NewTeamID(), Name: fmt.Sprint("other", i), CreatedAt: time.Now()}
		must(s.AddTeam(ctx, other))
		_, err := c.ChangeLimits(ctx, cay.ForTeam(other.ID), fleet.LimitChange{cay.LimitSandboxes: new(int64(5))}, true)
		must(err)
		_, err = c.Create(ctx, cay.ForTeam(other.ID), spec)
		must(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		box, err := c.Create(ctx, caller, spec)
		must(err)
		must(c.Kill(ctx, caller, box.ID))
	}
}
