package control_test

import (
	"testing"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control/fleet"
)

// A template takes what all its builds take, each snapshot once.
func TestDiskUse(t *testing.T) {
	w := newWorld(t) // with base, of s1
	for _, id := range []cay.SnapshotID{"s2", "s3", "s3"} {
		_, err := w.c.Publish(t.Context(), fleet.Publication{
			Team: w.team.ID, Names: []string{"other"}, Snapshot: id, RecipeDigest: string(id), Limits: cay.Limits{CPUs: 1, MemoryMB: 512, DiskMB: 1024},
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	use, err := w.c.DiskUse(t.Context(), w.who())
	if err != nil || len(use) != 2 {
		t.Fatalf("got %v: %v", use, err)
	}
	for _, u := range use {
		found, err := w.c.Template(t.Context(), w.who(), string(u.Template))
		if err != nil {
			t.Fatal(err)
		}
		if want := map[string]int64{"base": 1000, "other": 2000}[found.Names[0]]; u.Own != want {
			t.Errorf("%s takes %d, want %d", found.Names[0], u.Own, want)
		}
	}
}
