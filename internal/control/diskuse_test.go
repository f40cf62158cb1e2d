package control_test

import (
	"testing"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/control"
	"github.com/cay-run/cay/internal/disk"
)

// A template that adds little to another shows that little as its own, where
// the file system tells what files share; else images are shared as wholes.
func TestDiskUse(t *testing.T) {
	const snapshot, image = 1000, 1 << 20 // as controltest has them
	w := newWorld(t)                      // with base, of s1
	for name, s := range map[string]cay.Snapshot{
		"":      {ID: "s1", Root: "base"},
		"child": {ID: "s2", Root: "child"},
		"same":  {ID: "s3", Root: "child"},
	} {
		w.node.Keep(s)
		if name == "" {
			continue
		}
		_, err := w.c.Publish(t.Context(), control.Publication{
			Team: w.team.ID, Names: []string{name}, Snapshot: s.ID, RecipeDigest: name, Limits: cay.Limits{CPUs: 1, MemoryMB: 512, DiskMB: 1024},
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	check := func(want map[string][2]int64) {
		t.Helper()
		use, err := w.c.DiskUse(t.Context(), w.team.ID)
		if err != nil || len(use) != len(want) {
			t.Fatalf("got %v: %v", use, err)
		}
		for _, u := range use {
			found, err := w.c.Template(t.Context(), w.team.ID, string(u.Template))
			if err != nil {
				t.Fatal(err)
			}
			if own, shared := want[found.Names[0]][0], want[found.Names[0]][1]; u.Own != own || u.Shared != shared {
				t.Errorf("%s: own %d and shared %d, want %d and %d", found.Names[0], u.Own, u.Shared, own, shared)
			}
		}
	}
	check(map[string][2]int64{"base": {snapshot + image, 0}, "child": {snapshot, image}, "same": {snapshot, image}})
	w.node.Places = map[string][]disk.Extent{
		"base":  {{Start: 0, Bytes: 700}, {Start: 5000, Bytes: 100}},
		"child": {{Start: 0, Bytes: 700}, {Start: 9000, Bytes: 10}},
	}
	check(map[string][2]int64{"base": {snapshot + 100, 700}, "child": {snapshot, 710}, "same": {snapshot, 710}})
}
