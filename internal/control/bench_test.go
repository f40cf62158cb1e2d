package control_test

import (
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
// real, the node is one in memory that does both at once.
func BenchmarkCreate(b *testing.B) {
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
	c, err := control.Open(ctx, control.Config{Store: s, Node: controltest.NewNode(), NodeID: "n", Tokens: tokens, Logs: logs})
	must(err)
	_, err = c.Publish(ctx, fleet.Publication{
		Team: team.ID, Names: []string{"base"}, Snapshot: "s1", RecipeDigest: "d1",
		Limits: cay.Limits{CPUs: 2, MemoryMB: 512, DiskMB: 1024},
	})
	must(err)
	caller := cay.ForTeam(team.ID)
	spec := cay.CreateSpec{Template: "base", Timeout: time.Hour, Secure: true, Network: cay.DefaultNetwork()}
	b.ReportAllocs()
	for b.Loop() {
		box, err := c.Create(ctx, caller, spec)
		must(err)
		must(c.Kill(ctx, caller, box.ID))
	}
}
